// SPDX-License-Identifier: GPL-2.0-or-later
//
// `kage gpus mig`: lists, makes and destroys MIG instances of this host's GPUs.
#pragma once

#include "control/mig/mig_plan.hpp"

#include <string>

namespace kagemusha::control {

struct mig_options {
    mig_request request; // without `described`, which this fills in
    std::string library; // NVML by path; "": the system's
    bool enable = false, disable = false;
    bool dry_run = false; // says what would be done
    bool json = false;    // of the list
};

// Exit status of the tool.
int run_mig(mig_options options);

// What `kage gpus` adds to its list: the GPUs that can be cut, and their instances. "" without NVML, or such GPUs.
std::string mig_text_of_host();

} // namespace kagemusha::control
