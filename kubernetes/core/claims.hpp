// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a pod gets by a ResourceClaim (resource.k8s.io/v1) that the scheduler has allocated. Pure.
#pragma once

#include "kubernetes/core/allocation.hpp"

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace kagemusha::kubernetes {

struct prepared_claim {
    std::string uid;
    std::string request, pool, device, share_id; // as the allocation has them; share_id: "" if there is none
    grant given;
};

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
