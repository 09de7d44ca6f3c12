// SPDX-License-Identifier: GPL-2.0-or-later
// schedule: lets the lanes of one warp run.
#pragma once

#include "warp.hpp"

namespace kagemusha::machine {

// Runs a warp until all its lanes have exited or wait at barriers, or it has had its turn, or the launch
// failed. Whether it executed anything.
bool run_warp(warp& w, std::uint32_t turn);

// Lets go who waits at a barrier that is full: after arrivals and exits.
void open_barriers(block& b);

// builtins.cpp: printf, assert and malloc of device code.
void run_builtin(warp& w, const instruction& i, frame& callee, mask m);

} // namespace kagemusha::machine
