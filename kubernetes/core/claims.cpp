// SPDX-License-Identifier: GPL-2.0-or-later
//
// See claims.hpp.
#include "kubernetes/core/claims.hpp"

#include "kubernetes/core/cdi.hpp"
#include "kubernetes/core/json_below.hpp"
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
constexpr std::size_t max_name = 253;
constexpr char parameters_version[] = "gpu.kagemusha.io/v1", parameters_kind[] = "ShareParameters";

// Percent that the claim has of a device; 0: it does not say, or no number.
std::uint64_t consumed_share(const json& result) {
    const auto& consumed = below(result, {"consumedCapacity"});
    for (const auto& key : {std::string(share_capacity), fmt::format("{}/{}", driver_name, share_capacity)})
        if (const auto text = consumed.is_object() ? text_of(consumed, key.c_str()) : std::string();
            !text.empty())
            return parse_quantity(text).value_or(0);
    return 0;
}

// Whether a piece of configuration is for this request; without a list it is for all. A request that was chosen of a
// list is called REQUEST/CHOSEN, and configuration may name either.
bool is_for(const json& configuration, const std::string& request) {
    const auto& requests = below(configuration, {"requests"});
    if (!requests.is_array() || requests.empty())
        return true;
    const auto whole = request.substr(0, request.find('/'));
    return std::ranges::any_of(
        requests, [&](const json& one) { return one.is_string() && (one == request || one == whole); });
}

} // namespace

bool is_uid(std::string_view text) {
    return text.size() == uid_length && std::ranges::all_of(text, [](char c) {
               return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || c == '-';
           });
}

bool is_dns_name(std::string_view text) {
    return !text.empty() && text.size() <= max_name &&
           std::ranges::all_of(text,
                               [](char c) {
                                   return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
                                          c == '.';
                               }) &&
           text[0] != '.' && text.find("..") == std::string_view::npos;
}

std::optional<allocated_share> allocated_to(const json& claim, std::string& refusal) {
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
    allocated_share out{text_of(*ours, "request"),
                        text_of(*ours, "pool"),
                        text_of(*ours, "device"),
                        text_of(*ours, "shareID"),
                        {},
                        0};
    if (const auto named = device_named(out.device)) {
        const auto percent = named->percent != 0 ? named->percent : consumed_share(*ours);
        out.gpu = named->gpu;
        out.percent = percent <= units_of_gpu ? static_cast<std::uint32_t>(percent) : 0;
    }
    return out;
}

std::optional<claim_parameters> parameters_of(const json& claim, const allocated_share& share,
                                              std::string& refusal) {
    claim_parameters out;
    const auto& all = below(claim, {"status", "allocation", "devices", "config"});
    if (!all.is_array())
        return out;
    // A class's come first; what the claim says itself is later, and counts.
    for (const auto& one : all) {
        const auto& opaque = below(one, {"opaque"});
        if (!opaque.is_object() || text_of(opaque, "driver") != driver_name || !is_for(one, share.request))
            continue;
        const auto& said = below(opaque, {"parameters"});
        if (!said.is_object()) {
            refusal = "the parameters for this driver are no object";
            return std::nullopt;
        }
        out = {};
        for (const auto& [key, value] : said.items()) {
            const auto text = value.is_string() ? value.get<std::string>() : std::string();
            if (key == "apiVersion" ? text != parameters_version
                : key == "kind"     ? text != parameters_kind
                                    : key != "standby" || !is_dns_name(text)) {
                refusal = fmt::format("the parameter \"{}\" is not understood: there are apiVersion {}, kind "
                                      "{}, and standby, the name of a ResourceClaim",
                                      shown(key), parameters_version, parameters_kind);
                return std::nullopt;
            }
            if (key == "standby")
                out.standby = text;
        }
    }
    return out;
}

std::optional<prepared_claim> prepare(const json& claim, std::string_view uid, std::string_view node,
                                      const inventory& gpus, std::string& refusal) {
    if (text_of(below(claim, {"metadata"}), "uid") != uid) {
        refusal = "the claim was deleted, and there is another one of its name";
        return std::nullopt;
    }
    const auto share = allocated_to(claim, refusal);
    if (!share || !parameters_of(claim, *share, refusal))
        return std::nullopt;
    const auto* const known = share->pool == node ? gpus.find(share->gpu) : nullptr;
    if (!known) {
        refusal = "the claim's device is no GPU of this node: it was there before a restart, or never";
        return std::nullopt;
    }
    if (refusal = known->trouble(); !refusal.empty())
        return std::nullopt;
    if (share->percent == 0) {
        refusal = fmt::format("the claim has no whole number of percent, 1 to {}, of the capacity \"{}\"",
                              units_of_gpu, share_capacity);
        return std::nullopt;
    }
    return prepared_claim{
        std::string(uid),
        *share,
        {known->gpu, share->percent, (known->gpu.memory_bytes >> 20) * share->percent / units_of_gpu}};
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
