// SPDX-License-Identifier: GPL-2.0-or-later
//
// The share arbiter of a GPU (kagemusha-gpu) as a process: whether it is there, and its start.
#pragma once

#include <string>

namespace kagemusha::control {

// Starts it, out of reach of our terminal and of our end, and waits until clients can connect. `for_good`: it
// stays without VMs. "" or why not. Another one that serves this socket is no failure.
std::string start_share_arbiter(const std::string& socket, bool for_good = false);

// Also one of another version. Waits for a second at most.
bool share_arbiter_answers(const std::string& socket);

} // namespace kagemusha::control
