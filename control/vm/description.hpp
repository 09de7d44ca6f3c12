// SPDX-License-Identifier: GPL-2.0-or-later
//
// A protected VM as its owner describes it: one TOML file, the same on both hosts (docs/vm.md).
// Everything is checked when it is read; a mistake is told with the line where it is.
#pragma once

#include "control/confine/confinement.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kagemusha::control {

struct described_disk {
    std::string path;
    std::string format = "raw";
    bool writable = false; // each host has an image of its own
};

struct described_network {
    std::string netdev; // QEMU's -netdev without its id: "tap,ifname=vm0", "user", …
    std::string model = "virtio-net-pci";
    std::string mac;
};

// What it has of a GPU that several VMs share (share/README.md).
struct described_share {
    std::uint32_t percent = 0; // of the GPU's time; 0: an equal part of what nobody asked for
    std::uint32_t cap_percent = 100, priority = 0;
    std::uint64_t memory_mib = 0; // 0: no quota but the device's
    std::uint32_t parts = 0;      // profile = "1/N"
    std::string policy;           // of the GPU; "": what its other VMs have, or "fair"
    // Of this host, found at the start (share/vm_share.hpp): where the GPU's arbiter listens.
    std::string socket;
    std::uint64_t gpu_memory_bytes = 0;
};

struct described_gpu {
    std::string backend = "opencl";
    std::string gpu;
    std::string driver;                    // of the backend cuda: find_host_driver()
    std::string differences = "repair";    // or "ship": docs/vm.md
    std::vector<std::string> ship_kernels; // names of kernels whose results are shipped with "repair", too
    std::vector<std::pair<std::string, std::string>> properties;
    std::optional<described_share> share; // nothing: it shares with nobody
};

struct described_arbiter {
    enum class kind { none, lock, etcd, fence };
    kind what = kind::none;
    std::string path;                   // lock, fence: the record's file
    std::vector<std::string> endpoints; // etcd
    std::string tls;                    // etcd: a directory with ca.pem, cert.pem, key.pem
    std::string user, password;         // etcd: of the file that `login` names
    // fence: how the other host is cut off, whether that would work; how long a standby lets the primary be
    // first; after which silence nobody is cut off any more
    std::vector<std::string> command, check_command;
    std::uint32_t delay_ms = 5000, give_up_ms = 60000;
    std::uint32_t lease_ms = 0;
};

struct described_protection {
    std::string standby; // where its supervisor listens; "": a VM that nobody protects
    std::string gpu;     // where its GPU listens, and where its QEMU does; made from `standby` unless given
    std::string state;
    std::string tls; // directory of `kage keys`
    // How long an epoch may be; one with output ends earlier, but not before the shortest time, and not so
    // often that the VM stands still for more than a share of its time. Both the same: epochs of one length.
    std::uint32_t min_epoch_ms = 2, max_epoch_ms = 100, max_paused_percent = 10;
    std::uint32_t priority = 0; // of a takeover, when many VMs of a host are taken over: higher ones first
    std::uint32_t heartbeat_ms = 50, heartbeat_budget_ms = 500, qemu_budget_ms = 5000;
    bool stop_without_standby = false;
};

// For how long something may stand still before it is given up (control/pilot/progress_watch.hpp); 0: for
// ever. In milliseconds.
struct described_supervision {
    std::uint32_t checkpoint_ms = 0; // set from the longest epoch unless the description has it
    std::uint32_t main_loop_ms = 20000, transfer_ms = 60000, switchover_ms = 10000;
    std::uint32_t gpu_takeover_ms = 3'600'000; // not how long: how often, see ha::primary_config
    std::uint32_t log_mib = 16;                // a console's log, and QEMU's; twice that with the older one
};

struct vm_description {
    std::string name;
    std::uint64_t memory_mib = 1024;
    unsigned cpus = 1;
    std::string accel = "auto";
    std::string machine; // QEMU's, with its version; "": default_machine
    std::string cpu;     // QEMU's name of a model; "": the host's, or all that TCG has
    // What boots: our guest image with a job, a kernel, or else the first disk.
    std::string guest, job;
    std::vector<std::string> files;
    std::string kernel, initramfs, append;
    std::vector<described_disk> disks;
    std::vector<described_network> networks;
    std::optional<described_gpu> gpu;
    std::string console_log; // "": in the directory of the user's VMs
    bool sandbox = true;     // of QEMU
    std::vector<std::string> qemu_options;
    described_protection protection;
    described_supervision supervision;
    described_arbiter arbiter;
    described_confinement confinement;
};

// Where, beside a standby's supervisor, its GPU and its QEMU listen unless the description says otherwise:
// the next ports, or "unix:PATH.gpu" and "unix:PATH.state". Empty: `standby` is no address.
std::string gpu_address_beside(const std::string& standby);
std::string state_address_beside(const std::string& standby);
// The sentence that refuses a standby at this address with this VM's arbiter; empty: it may be one.
std::string why_not_a_standby(const vm_description& vm, const std::string& address);
// The sentence that refuses an endpoint of etcd: without TLS only this machine's.
std::string why_not_an_endpoint(const std::string& url);
// On this machine: a Unix socket or a loopback address. Names are not looked up but for "localhost".
bool is_local_address(const std::string& address);
// Whoever may connect there is the VM's primary, if nothing proves who he is: any local user may connect to a
// port of this machine, and nobody but its owner to a Unix socket.
bool needs_tls(const std::string& address);

// `file` is for messages; relative paths in the text are relative to `directory`. Nothing and sentences
// ("FILE:LINE:COLUMN: …", one for each mistake) in `errors`.
std::optional<vm_description> parse_vm_description(std::string_view text, const std::string& file,
                                                   const std::string& directory,
                                                   std::vector<std::string>& errors);
std::optional<vm_description> read_vm_description(const std::string& path, std::vector<std::string>& errors);

} // namespace kagemusha::control
