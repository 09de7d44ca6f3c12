// SPDX-License-Identifier: GPL-2.0-or-later
//
// `kage status`: asks the QEMUs of this user's VMs how their GPU's replication is.
#pragma once

#include "control/status/replication_status.hpp"
#include "control/vm/vm_registry.hpp"

#include <string>
#include <vector>

namespace kagemusha::control {

// All GPU devices of one VM.
vm_reading read_vm(const registered_vm& vm);

struct status_options {
    std::string vm;                       // only this one; "": all
    std::vector<std::string> qmp_sockets; // of VMs that somebody else started
    bool json = false;
    bool watch = false; // again every second, until Ctrl-C
};

// What to read: this user's VMs, or the named ones. Nothing and a sentence in `error`.
std::vector<registered_vm> chosen_vms(const status_options& options, std::string& error);

// Exit status of the tool: 0, 1 when a VM is degraded or does not answer, 125 when nothing could be asked. Of
// `watch`: 0 at Ctrl-C, whatever was seen. A VM that is named and does not run yet, or no more, is waited
// for.
int run_status(const status_options& options);

} // namespace kagemusha::control
