// SPDX-License-Identifier: GPL-2.0-or-later
//
// A described VM's share of its GPU, from the description to the arbiter and to QEMU's environment.
#pragma once

#include "control/share/share_lease.hpp"
#include "control/vm/description.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kagemusha::control {

// Finds the GPU of a VM that shares one: sets the socket of its arbiter, and the device's limits. "" or why
// not. Nothing to do for other VMs.
std::string find_shared_gpu(vm_description& vm);

// What is asked for. Pure.
share_hello hello_of(const described_share& share, const std::string& vm, bool standby);

// `vm`: the name under which it runs on this host. nullptr with an empty `error`: it shares with nobody.
std::unique_ptr<share_lease> take_share(const vm_description& vm, const std::string& name, bool standby,
                                        share_lease::says report,
                                        std::vector<std::pair<std::string, std::string>>& environment,
                                        std::string& error);

} // namespace kagemusha::control
