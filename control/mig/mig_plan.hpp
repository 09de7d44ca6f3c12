// SPDX-License-Identifier: GPL-2.0-or-later
//
// What `kage gpus mig` does: decided here from what the library told, and refused with a sentence where it would take
// something from somebody. A GPU that is in use is never changed. Pure.
#pragma once

#include "control/mig/mig_facts.hpp"

#include <optional>
#include <string>
#include <vector>

namespace kagemusha::control {

struct mig_request {
    std::string gpu;                  // its number or "GPU-…"; "": the only one
    std::optional<bool> enable;       // MIG mode
    std::vector<std::string> create;  // profiles, in this order
    std::vector<std::string> destroy; // "MIG-…"
    bool destroy_all = false;
    std::vector<std::string> described = {}; // what this user's VMs name as their `gpu`; "": the default
};

struct mig_action {
    enum class kind { set_mode, create, destroy } what = kind::create;
    bool on = false;               // set_mode
    std::uint32_t profile_id = 0;  // create
    std::uint32_t instance_id = 0; // destroy
    std::string name;              // for people: the profile, the instance
};

struct mig_plan {
    std::string error; // a sentence: nothing is to be done
    std::uint32_t gpu = 0;
    std::vector<mig_action> actions;
};

// Instances are destroyed before others are made. Asking for the mode that there is gives no action.
mig_plan plan_mig(const std::vector<mig_gpu>& gpus, const mig_request& request);

// For people, as `kage gpus` prints it; "" when no GPU can be cut.
std::string mig_text(const std::vector<mig_gpu>& gpus);

} // namespace kagemusha::control
