// SPDX-License-Identifier: GPL-2.0-or-later
//
// `kage demo`: a VM whose host dies in the middle of what its program computes on the GPU, and which
// goes on. Both hosts are this machine: two supervisors, as `run VM.toml` and `standby VM.toml` start them,
// each with a QEMU. Here are files, processes and sockets; what is done when is decided by crash_fsm.
#pragma once

#include "control/demo/program.hpp"
#include "control/run/guest_run.hpp"

#include <string>

namespace kagemusha::control {

struct crash_demo_options {
    demo_program program = demo_program::hashcat;
    std::string standby_gpu; // "": the same
    std::string svg;         // where the picture of the takeover goes; "": none
};

// Exit status of the tool: 0 only if the answer is right and the standby's GPU had its part in it.
int run_crash_demo(const guest_run_options& options, const crash_demo_options& more);

} // namespace kagemusha::control
