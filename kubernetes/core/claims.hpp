// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a pod gets by a ResourceClaim (resource.k8s.io/v1) that the scheduler has allocated. Pure.
#pragma once

#include "kubernetes/core/allocation.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kagemusha::kubernetes {

// What a claim has of this driver, as the scheduler wrote it down; checked, but not against any node.
struct allocated_share {
    std::string request, pool, device, share_id; // share_id: "" if there is none
    std::string gpu;                             // "": the device has no name of ours
    std::uint32_t percent = 0;                   // 0: no whole number from 1 to 100
};
// Nothing and a sentence: it is not allocated, or has not one device of ours.
std::optional<allocated_share> allocated_to(const nlohmann::json& claim, std::string& refusal);

// What a claim or its class tells this driver, as "opaque" configuration.
struct claim_parameters {
    std::string standby; // the claim of the standby's pod, in the same namespace; "": there is none
};
// Nothing and a sentence: they are not understood.
std::optional<claim_parameters> parameters_of(const nlohmann::json& claim, const allocated_share& share,
                                              std::string& refusal);

struct prepared_claim {
    std::string uid;
    allocated_share share;
    grant given;
};

// A claim has a name of DNS; so has its namespace.
bool is_dns_name(std::string_view text);

// A claim's uid is a part of file names and of CDI's names.
bool is_uid(std::string_view text);

// `claim`: as the API server has it. Nothing and a sentence: for the event that the pod's owner reads.
std::optional<prepared_claim> prepare(const nlohmann::json& claim, std::string_view uid,
                                      std::string_view node, const inventory& gpus, std::string& refusal);

// A CDI specification with one device, the name of that device, and of the file.
nlohmann::json claim_specification(const prepared_claim& claim, const node_paths& paths);
std::string claim_cdi_name(std::string_view uid);
std::string claim_file_name(std::string_view uid);

} // namespace kagemusha::kubernetes
