// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a VM needs in which jobs are begun and followed: an agent and a keeper in its guest, and a network of its
// own to them on each of its hosts.
#pragma once

#include <string>

namespace kagemusha::control::job {

struct job_vm {
    std::string folder; // of this VM on this host
    std::string name;   // of the VM, the same on both hosts
    std::string guest;  // kernel flavour of our image
    bool outside = true;
};

// Writes folder/secret, folder/job.sh and folder/tables.toml: the tables [boot] and [[network]] of a description
// (docs/vm.md) in the same folder. The same on each host, but for the folder. "" or a sentence.
std::string prepare_job_vm(const job_vm& vm);

// Becomes the process of the network of such a VM. The agent's socket is folder/net/exec/node1.
[[noreturn]] void run_job_network(const std::string& folder, bool outside);

} // namespace kagemusha::control::job
