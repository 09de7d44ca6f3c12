// SPDX-License-Identifier: GPL-2.0-or-later
//
// A share of a GPU that a scheduler of the site has given to the place where we run (a container of Kubernetes).
// It comes in the environment, and a VM's description gets what it does not name itself:
//
//   KAGEMUSHA_GPU             the GPU's own selector
//   KAGEMUSHA_GPU_SHARE       percent of its time, 1 to 100
//   KAGEMUSHA_GPU_MEMORY_MIB  its quota of memory; without it there is none
//   KAGEMUSHA_GPU_ARBITER     the socket of the GPU's share arbiter
#pragma once

#include "control/vm/description.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace kagemusha::control {

struct granted_share {
    std::string gpu, arbiter;
    std::uint32_t percent = 0;
    std::uint64_t memory_mib = 0; // 0: no quota

    bool operator==(const granted_share&) const = default;
};

// Nothing with an empty `error`: nobody has given one. `variable`: getenv().
std::optional<granted_share> read_granted_share(const std::function<const char*(const char*)>& variable,
                                                std::string& error);

// Puts what was given where the description is silent. "" or a sentence: it wants more, or another GPU. Pure.
std::string use_granted_share(const granted_share& granted, described_gpu& gpu);

// A VM's name for the arbiter, which VMs of all places of a host ask: containers have VMs of one name. `place`: the
// container's host name. At most SHARE_NAME_BYTES with its 0. Pure.
std::string name_in_place(const std::string& vm, const std::string& place);

} // namespace kagemusha::control
