// SPDX-License-Identifier: GPL-2.0-or-later
//
// What the scheduler knows of this node's GPUs: ResourceSlices of resource.k8s.io/v1. Pure.
//
//   shares      each GPU is one device with a hundred units of "share", of which claims take as many as they
//               name (consumable capacity)
//   partitions  each GPU is a set of counters, and its halves, quarters and eighths are devices that take
//               theirs from it (partitionable devices), for clusters without consumable capacity
//
// A MIG instance is a device like a GPU, with shares or parts of its own. Instances are published as an administrator
// has made them, and not made for a claim: a GPU that somebody uses is never cut anew (control/mig/mig_plan.hpp).
#pragma once

#include "kubernetes/core/inventory.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::kubernetes {

inline constexpr char driver_name[] = "gpu.kagemusha.io";
inline constexpr char share_capacity[] = "share";

enum class slicing { shares, partitions };

struct slice_place {
    std::string node;     // its name: also that of the pool
    std::string node_uid; // the slices go with the node
    slicing how = slicing::shares;
    bool standby_conditions = false; // pods wait for what standby.hpp tells of their claims
};

// All slices of the pool at this generation. GPUs that are gone are left out.
std::vector<nlohmann::json> resource_slices(const std::vector<known_gpu>& gpus, const slice_place& place,
                                            std::uint64_t generation);

// Whether they say the same, whatever generation and server have put into them.
bool same_slices(const std::vector<nlohmann::json>& there, const std::vector<nlohmann::json>& wanted);

struct named_device {
    std::string gpu;
    std::uint32_t percent = 0; // of a partition; 0: the claim says
};
// What a device's name means; nothing: it is none of ours.
std::optional<named_device> device_named(std::string_view name);

} // namespace kagemusha::kubernetes
