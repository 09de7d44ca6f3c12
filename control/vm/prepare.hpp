// SPDX-License-Identifier: GPL-2.0-or-later
//
// From a VM's description to the command lines of its QEMUs on this host: what it is made of is found (or
// built, for our guest image), and a fingerprint of it is taken, which both hosts compare before one stands
// by for the other.
#pragma once

#include "control/base/process.hpp"
#include "control/qemu/vm_config.hpp"
#include "control/vm/description.hpp"
#include "control/vm/fingerprint.hpp"
#include "control/vm/kept_files.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kagemusha::control {

// Where this host's run of it has its own files.
struct vm_places {
    std::string directory; // for the guest's payload and the logs; exists
    std::string status_socket, gate, console_socket, console_log;
    std::string gpu_address; // of the standby's GPU; "": the description's
    // Directories for the sockets of a confined QEMU's links (relay/relayed_links.hpp).
    std::string to_peers = {}, of_qemu = {};
    std::string share = {}; // directory of the GPUs' share arbiters; "": the VM shares with nobody
    std::optional<host_offers> offers = {}; // nothing: QEMU is not confined
    kept_files* kept = nullptr;             // its guest's files are kept there; nullptr: nobody needs that
};

struct prepared_vm {
    vm_config config; // of the primary
    vm_config own;    // the same before it was confined, and with the files of this host's release
    std::vector<std::string> command, standby_command;
    std::vector<std::pair<std::string, std::string>> environment;
    kagemusha::control::fingerprint fingerprint; // with the files of this host's release
    std::string keys; // the directory of QEMU's copies (qemu_keys.hpp); "": it has none
    confinement_decision confinement;
    std::string driver; // the library that the GPU's backend loads; "": its own choice
};

// Nothing: what is wrong was said on stderr.
std::optional<prepared_vm> prepare_vm(const vm_description& vm, const vm_places& places);

// From now on with the guest's files that these parts name: own ones, or kept ones (places.kept is there). A
// sentence when that can't be: nothing is changed then.
std::string use_guest_files(prepared_vm& prepared, const vm_description& vm, const vm_places& places,
                            const ha::description_parts& parts);

// The device of a VM that has one, on its primary or its standby. `keys`: as in prepared_vm; `driver`: the
// library that its backend loads ("": its own choice). Pure.
gpu_config gpu_of(const vm_description& vm, const std::string& address, bool standby,
                  const std::string& keys = {}, const std::string& driver = {});

} // namespace kagemusha::control
