// SPDX-License-Identifier: GPL-2.0-or-later
//
// What `run`, `shell` and `demo` have in common: from options to a finished run with its payload and its
// files.
#pragma once

#include "control/qemu/machine.hpp"
#include "control/run/out_archive.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control {

struct guest_run_options {
    std::string flavour;            // "" the default
    std::string accel = "auto";     // auto, kvm, tcg
    std::string backend = "opencl"; // "none": a guest without a GPU
    std::string gpu;
    std::string driver;                      // of the backend cuda: find_host_driver()
    std::vector<std::string> device_options; // KEY=VALUE
    std::string module_parameters;
    std::uint64_t memory_mib = 1024;
    unsigned cpus = 2;
    long timeout_s = 600;
    bool verbose = false;
    bool keep = false;              // the run's directory with its logs
    bool quiet = false;             // nothing of ours on stderr but errors
    std::vector<std::string> files; // SOURCE[:NAME] → /payload/NAME
    std::string out_dir;            // what the job leaves in /out comes here; "" for nothing
    out_limits out;
    std::string report;             // JSON file about the run, "" for none
    std::string qmp_socket;         // another monitor
    std::string name;               // for `kage status`; "": vm-PID
    std::vector<std::string> ports; // NAME=SOCKET: virtio-serial ports on listening sockets
    std::vector<std::string> qemu_options;
    // Replication of the GPU; "" for none.
    std::string vm_id;          // of the protected VM, the same on both hosts
    std::string replicate_to;   // where its standby listens
    std::string standby_listen; // this VM is the standby, and listens there
    std::string tls_dir;        // made by `kage keys`
    bool compress = false;      // for slow links
};

struct guest_run_result {
    machine_result machine;
    std::string cpu;            // "KVM" or "TCG (why)"
    std::string kernel_release; // of the guest
    bool prepared = false;      // false: it did not come to a run; the reason was said
};

// Runs the shell script text `job` in a guest ("" with interactive: a shell at our terminal).
guest_run_result run_in_guest(const guest_run_options& options, const std::string& job, bool interactive,
                              const std::function<bool(std::string_view)>& show);

// Exit status of a tool that did what `result` says: the job's own, 124 after the time limit, 125 when guest
// or QEMU failed, 128 + signal when interrupted. Says on stderr what went wrong.
int exit_status(const guest_run_result& result);

} // namespace kagemusha::control
