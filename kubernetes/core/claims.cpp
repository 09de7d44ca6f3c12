// SPDX-License-Identifier: GPL-2.0-or-later
//
// See claims.hpp.
#include "kubernetes/core/claims.hpp"

#include "kubernetes/core/cdi.hpp"
#include "kubernetes/core/quantity.hpp"
#include "kubernetes/core/slices.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kagemusha::kubernetes {

using nlohmann::json;

namespace {

constexpr char claim_kind[] = "kagemusha.io/claim";
constexpr std::size_t uid_length = 36;
constexpr std::size_t max_results = 32; // the API's

std::string text_of(const json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// The object at this path of keys; null: there is none.
const json& below(const json& object, std::initializer_list<const char*> keys) {
    static const json none;
    const json* at = &object;
    for (const char* key : keys) {
        const auto found = at->is_object() ? at->find(key) : at->end();
        if (!at->is_object() || found == at->end())
            return none;
        at = &*found;
    }
    return *at;
}

// Percent that the claim has of a device; 0: it does not say, or no number.
std::uint64_t consumed_share(const json& result) {
    const auto& consumed = below(result, {"consumedCapacity"});
    for (const auto& key : {std::string(share_capacity), fmt::format("{}/{}", driver_name, share_capacity)})
        if (const auto text = consumed.is_object() ? text_of(consumed, key.c_str()) : std::string();
            !text.empty())
            return parse_quantity(text).value_or(0);
    return 0;
}

} // namespace

bool is_uid(std::string_view text) {
    return text.size() == uid_length && std::ranges::all_of(text, [](char c) {
               return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || c == '-';
           });
}

std::optional<prepared_claim> prepare(const json& claim, std::string_view uid, std::string_view node,
                                      const inventory& gpus, std::string& refusal) {
    if (text_of(below(claim, {"metadata"}), "uid") != uid) {
        refusal = "the claim was deleted, and there is another one of its name";
        return std::nullopt;
    }
    const auto& results = below(claim, {"status", "allocation", "devices", "results"});
    const json* ours = nullptr;
    std::size_t count = 0;
    if (results.is_array() && results.size() <= max_results)
        for (const auto& result : results)
            if (result.is_object() && text_of(result, "driver") == driver_name) {
                ours = &result;
                ++count;
            }
    if (count != 1) {
        refusal = count == 0
                      ? fmt::format("the claim is not allocated, or has no device of {}", driver_name)
                      : fmt::format("the claim has {} devices of {}: a VM has one GPU", count, driver_name);
        return std::nullopt;
    }
    prepared_claim out{std::string(uid),         text_of(*ours, "request"), text_of(*ours, "pool"),
                       text_of(*ours, "device"), text_of(*ours, "shareID"), {}};
    const auto named = out.pool == node ? device_named(out.device) : std::nullopt;
    const auto* const known = named ? gpus.find(named->gpu) : nullptr;
    if (!known) {
        refusal = "the claim's device is no GPU of this node: it was there before a restart, or never";
        return std::nullopt;
    }
    if (refusal = known->trouble(); !refusal.empty())
        return std::nullopt;
    const auto percent = named->percent != 0 ? named->percent : consumed_share(*ours);
    if (percent < 1 || percent > units_of_gpu) {
        refusal = fmt::format("the claim has no whole number of percent, 1 to {}, of the capacity \"{}\"",
                              units_of_gpu, share_capacity);
        return std::nullopt;
    }
    out.given = {known->gpu, static_cast<std::uint32_t>(percent),
                 (known->gpu.memory_bytes >> 20) * percent / units_of_gpu};
    return out;
}

json claim_specification(const prepared_claim& claim, const node_paths& paths) {
    const json device = {
        {"name", claim.uid},
        {"containerEdits", container_edits(claim.given.gpu, paths, environment_of(claim.given))}};
    return {{"cdiVersion", "0.5.0"}, {"kind", claim_kind}, {"devices", json::array({device})}};
}

std::string claim_cdi_name(std::string_view uid) {
    return fmt::format("{}={}", claim_kind, uid);
}

std::string claim_file_name(std::string_view uid) {
    return fmt::format("kagemusha.io-claim-{}.json", uid);
}

} // namespace kagemusha::kubernetes
