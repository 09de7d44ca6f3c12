// SPDX-License-Identifier: GPL-2.0-or-later
//
// The programs that the demo can run in its guest: hashcat with OpenCL, and the training of a network with CUDA.
// Data for crash_fsm and story: how much work a run can have, from the least on, and what people are told. Pure.
#pragma once

#include <string>
#include <vector>

namespace kagemusha::control {

enum class demo_program { hashcat, training };

struct demo_work {
    double size = 0;     // in what the program counts its speed in: candidates, steps
    std::string command; // for the guest's job, after `run` and the number of the run
    std::string describe;
};

// Each at most some three times as large as the one before it.
std::vector<demo_work> work_of(demo_program program);

// The guest's job: runs the program as often as its console says `run NUMBER COMMAND`. alike: both hosts have the
// same kind of GPU.
std::string job_of(demo_program program, bool alike);

const char* name_of(demo_program program);         // "hashcat"
const char* beginning_of(demo_program program);    // what is said when it has begun
const char* description_of(demo_program program);  // "hashcat (Debian's, unmodified), OpenCL, in the guest"
const char* first_run_costs(demo_program program); // what only its first run has to do

} // namespace kagemusha::control
