// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a virtual machine is made of, as plain data. Everything that decides how QEMU is called is in here, so
// that the command line (qemu_command.hpp) is a pure function and can be tested without starting anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kagemusha::control {

enum class accelerator { kvm, tcg };

// A virtio-serial port of the guest (found there by its name under /sys/class/virtio-ports).
struct serial_port {
    enum class end {
        file,
        socket
    }; // what is on the host's side: a file that is written, or a listening Unix socket
    std::string name;
    end host_end = end::file;
    std::string path;
};

// The paravirtual GPU. The names are those of the device's properties; values are passed as they are.
struct gpu_config {
    std::string backend = "opencl";
    std::string gpu; // "" the default, a number, or a part of the GPU's name
    std::vector<std::pair<std::string, std::string>> properties;
};

struct disk_config {
    std::string path;
    std::string format = "raw";
    bool writable = false; // then it is part of the VM's checkpoints (qemu-device/checkpoint-disk.c)
};

// A network card. What the guest sends is held back by filters (hold…) while it is protected, and passes the
// gate.
struct network_config {
    std::string netdev; // of QEMU's -netdev, without id
    std::string model;
    std::string mac;
};

// The serial console when nobody sits at it.
struct console_config {
    std::string socket, log;
    std::optional<int> listener = {}; // the socket, open
};

// Checkpoints that come before the longest interval is over, because output waits.
struct early_checkpoints {
    std::uint32_t min_epoch_ms = 0;
    std::uint32_t max_paused_percent = 0;
};

// With its version: an alias ("pc") is another machine in each release of QEMU, and a guest can't go from one
// to the other. A later QEMU has it, too.
inline constexpr char default_machine[] = "pc-i440fx-10.0";

struct vm_config {
    std::string qemu;
    std::vector<std::string> firmware_dirs;
    std::string kernel, initramfs;
    std::string append;              // to the kernel's command line
    std::string root_image, payload; // both "" for a probe: the guest then only says that it came up
    bool described = false;          // by its owner: no probe, whatever is missing
    std::vector<disk_config> disks;
    std::vector<network_config> networks;
    std::optional<std::string> gate;       // the supervisor's page (supervise/gate.hpp)
    std::optional<console_config> console; // not at our stdin and stdout
    std::optional<early_checkpoints> early;
    std::string state_keys; // directory, for the stream of the VM's state; "": not encrypted
    std::string state_vm;   // whose they are
    bool standby = false;   // waits for the state of a VM that runs elsewhere
    std::string machine = default_machine;
    std::string cpu; // QEMU's name of the processor's model; "": all that the accelerator has
    accelerator accel = accelerator::tcg;
    std::uint32_t tsc_khz = 0; // of the host's time stamp counter, for TCG guests; 0: the guest measures it
    std::uint64_t memory_mib = 1024;
    unsigned cpus = 2;
    std::optional<gpu_config> gpu;
    std::vector<serial_port> ports;
    std::optional<int> qmp_fd;                // a connected socket that QEMU inherits
    std::optional<std::string> qmp_socket;    // a second monitor, for somebody else (tests)
    std::optional<std::string> status_socket; // a third one, for `kage status`
    std::optional<int> status_listener;       // its socket, open
    bool sandboxed = true;                    // QEMU starts no program, raises no privilege, …
    std::vector<std::string> extra;           // appended as they are
};

// The keys of whoever receives the VM's state, and of whoever sends it, through QMP.
inline constexpr char state_from_id[] = "state-from", state_to_id[] = "state-to";
// Who may send it.
inline constexpr char state_peer_id[] = "state-peer";
// TLS 1.3 as everywhere else.
inline constexpr char state_tls_priority[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3";

// Where the device is found through QMP.
inline constexpr char gpu_qom_path[] = "/machine/peripheral/vgpu0";

} // namespace kagemusha::control
