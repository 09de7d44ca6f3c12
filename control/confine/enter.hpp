// SPDX-License-Identifier: GPL-2.0-or-later
//
// Carries out what confinement.hpp decides: in the process that becomes QEMU, before it starts anything. And
// finds what this host offers.
#pragma once

#include "control/confine/confinement.hpp"

#include <string>

namespace kagemusha::control {

// Tries it in a process of its own. Before the caller has threads.
host_offers look_at_host();

// Of one thread. Empty, or why it is not possible, a sentence; then this process must end.
std::string enter_confinement(const confinement& what);

} // namespace kagemusha::control
