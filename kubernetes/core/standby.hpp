// SPDX-License-Identifier: GPL-2.0-or-later
//
// Conditions of allocated devices (status.devices of a ResourceClaim), which the scheduler waits for before it binds
// a pod (binding conditions). A claim may name the claim of its standby: its pod is bound when the standby's share is
// there, on another node, taken by its kubelet, with a share arbiter that answers. Each driver writes what it knows
// of the claims that its own node has; it reads of others what their drivers wrote. Pure.
#pragma once

#include "kubernetes/core/claims.hpp"

#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::kubernetes {

// The share can be used now: the GPU is listed, its arbiter answers, the kubelet has prepared the claim.
inline constexpr char share_ready[] = "kagemusha.io/ShareReady";
// Binding conditions: the standby's share is ready, or there is to be none; and: it can't be so where this one is.
inline constexpr char standby_ready[] = "kagemusha.io/StandbyReady";
inline constexpr char standby_failed[] = "kagemusha.io/StandbyFailed";

struct own_node {
    std::string name;
    const inventory& gpus;
    std::function<bool(std::string_view uid)> is_prepared; // a claim, by the kubelet here
};

// Of all claims of the cluster those of this node whose conditions are to change, as they are to be written. `now`: as
// the API writes it, "2026-01-01T00:00:00Z".
std::vector<nlohmann::json> claims_to_write(const std::vector<nlohmann::json>& claims, const own_node& node,
                                            std::string_view now);

// Whether a claim is one for claims_to_write at all: what else there is need not be kept.
bool has_our_device(const nlohmann::json& claim);

} // namespace kagemusha::kubernetes
