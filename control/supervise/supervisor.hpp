// SPDX-License-Identifier: GPL-2.0-or-later
//
// `kage run VM.toml` and `kage standby VM.toml`: starts a described VM or its standby, and stays with it
// until it ends here. Two threads: this one with QEMU, its monitor, our signals and our socket; the supervisor_loop's
// (supervisor_loop.hpp).
//
// QEMU is a child that the kernel kills when this process dies, so nobody speaks for a VM that has no
// supervisor. The other way round a QEMU that dies leaves the supervisor, which tells the standby.
#pragma once

#include <string>
#include <vector>

namespace kagemusha::control {

struct supervisor_options {
    std::string description; // the file
    std::string name;        // under which `kage status` shows it; "": the VM's, with -standby for a standby
    std::string address;     // another than the description's: of the standby, or where we listen
    std::vector<std::string> images; // of the writable disks, other ones than the description's
    bool standby = false;
    bool anew = false;      // although a standby may have the VM's last state
    bool overwrite = false; // a standby: although its images may have what is wanted
    bool json = false;      // the log's lines as JSON objects
};

// Exit status of the tool.
int run_supervisor(const supervisor_options& options);

// `kage qemu-command`: prints what would be started.
int print_qemu_command(const supervisor_options& options);

} // namespace kagemusha::control
