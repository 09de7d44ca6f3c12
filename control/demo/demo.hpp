// SPDX-License-Identifier: GPL-2.0-or-later
//
// `kage demo`: an unmodified third-party program computes on the host's GPU from inside a guest, and the
// answer is checked outside.
#pragma once

#include "control/run/guest_run.hpp"

namespace kagemusha::control {

// Exit status of the tool: 0 only if the answer is right and the GPU found it.
int run_demo(guest_run_options options);

} // namespace kagemusha::control
