// SPDX-License-Identifier: GPL-2.0-or-later
//
// See standby.hpp.
#include "kubernetes/core/standby.hpp"

#include "kubernetes/core/json_below.hpp"
#include "kubernetes/core/slices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace kagemusha::kubernetes {

using nlohmann::json;

namespace {

struct condition {
    const char* type;
    bool is_true = false;
    std::string reason; // one word
    std::string message;
};

// By namespace and name.
using claims_by_name = std::map<std::pair<std::string, std::string>, const json*>;

bool is_entry_of(const json& entry, const allocated_share& share) {
    return text_of(entry, "driver") == driver_name && text_of(entry, "pool") == share.pool &&
           text_of(entry, "device") == share.device && text_of(entry, "shareID") == share.share_id;
}

// What is written down of the claim's device; null: nothing is.
const json& entry_of(const json& claim, const allocated_share& share) {
    static const json none;
    const auto& entries = below(claim, {"status", "devices"});
    if (entries.is_array())
        for (const auto& entry : entries)
            if (entry.is_object() && is_entry_of(entry, share))
                return entry;
    return none;
}

const json& condition_in(const json& entry, std::string_view type) {
    static const json none;
    const auto& all = below(entry, {"conditions"});
    if (all.is_array())
        for (const auto& one : all)
            if (one.is_object() && text_of(one, "type") == type)
                return one;
    return none;
}

condition share_condition(const allocated_share& share, const own_node& node, bool prepared) {
    const auto* const known = node.gpus.find(share.gpu);
    if (!known)
        return {share_ready, false, "NoSuchGpu", "the claim's device is no GPU of this node"};
    if (auto trouble = known->trouble(); !trouble.empty())
        return {share_ready, false, "GpuTrouble", std::move(trouble)};
    if (!prepared)
        return {share_ready, false, "NotPrepared", "the node has not started a pod with it"};
    return {share_ready, true, "Prepared", ""};
}

struct verdict {
    bool ready = false, failed = false;
    std::string reason, message;
};

verdict waits(std::string reason, std::string message) {
    return {false, false, std::move(reason), std::move(message)};
}
verdict fails(std::string reason, std::string message) {
    return {false, true, std::move(reason), std::move(message)};
}

// Fails what no waiting mends: then the scheduler takes the share away, and the pod's owner reads the message.
verdict judge(const json& claim, const allocated_share& share, const claims_by_name& all) {
    std::string refusal;
    const auto parameters = parameters_of(claim, share, refusal);
    if (!parameters)
        return fails("BadParameters", refusal);
    const auto& name = parameters->standby;
    if (name.empty())
        return {true, false, "NoStandbyWanted", ""};
    const auto& metadata = below(claim, {"metadata"});
    if (text_of(metadata, "name") == name)
        return fails("OwnStandby", "the claim names itself as its standby");
    const auto found = all.find({text_of(metadata, "namespace"), name});
    if (found == all.end())
        return waits("NoClaim",
                     fmt::format("there is no claim {} with a device of {} in this namespace yet: is the "
                                 "standby's pod there, and is there room for it?",
                                 name, driver_name));
    const auto& standby = *found->second;
    const auto its = allocated_to(standby, refusal);
    if (!its)
        return fails("BadStandby", fmt::format("the standby's claim {}: {}", name, refusal));
    const auto its_parameters = parameters_of(standby, *its, refusal);
    if (!its_parameters)
        return fails("BadStandby", fmt::format("the standby's claim {}: {}", name, refusal));
    if (!its_parameters->standby.empty())
        return fails("BadStandby", fmt::format("the standby's claim {} waits for a standby itself", name));
    if (its->pool == share.pool)
        return fails("SameNode", fmt::format("the standby's claim {} has a GPU of this node, {}, too: it "
                                             "would die with it",
                                             name, share.pool));
    if (its->percent < share.percent)
        return fails("TooSmall",
                     fmt::format("the standby's claim {} has {} percent of a GPU, and this one {}", name,
                                 its->percent, share.percent));
    const auto& there = condition_in(entry_of(standby, *its), share_ready);
    if (text_of(there, "status") != "True")
        return waits("NotReady", fmt::format("the standby's share is not ready: {}",
                                             there.is_null() ? "the driver of its node has not told"
                                                             : shown_sentence(text_of(there, "message"))));
    return {true, false, "StandbyReady",
            fmt::format("the standby has {} percent of a GPU of {}", its->percent, its->pool)};
}

// Whether something changes: the time of a condition is that of its last change from true to false or back.
bool put(json& entry, const condition& wanted, std::string_view now) {
    const json value = {{"type", wanted.type},
                        {"status", wanted.is_true ? "True" : "False"},
                        {"reason", wanted.reason},
                        {"message", wanted.message}};
    auto& all = entry["conditions"];
    if (!all.is_array())
        all = json::array();
    auto at = std::ranges::find_if(
        all, [&](const json& one) { return one.is_object() && text_of(one, "type") == wanted.type; });
    if (at == all.end()) {
        all.push_back(value);
        all.back()["lastTransitionTime"] = now;
        return true;
    }
    const bool turned = text_of(*at, "status") != text_of(value, "status");
    if (!turned && text_of(*at, "reason") == wanted.reason && text_of(*at, "message") == wanted.message)
        return false;
    const auto since = turned ? std::string(now) : text_of(*at, "lastTransitionTime");
    *at = value;
    (*at)["lastTransitionTime"] = since.empty() ? std::string(now) : since;
    return true;
}

bool update(json& claim, const allocated_share& share, const own_node& node, const claims_by_name& all,
            std::string_view now) {
    const bool prepared = node.is_prepared(text_of(below(claim, {"metadata"}), "uid"));
    const auto said = judge(claim, share, all);
    auto& entries = claim["status"]["devices"];
    if (!entries.is_array())
        entries = json::array();
    auto at = std::ranges::find_if(
        entries, [&](const json& entry) { return entry.is_object() && is_entry_of(entry, share); });
    if (at == entries.end()) {
        entries.push_back({{"driver", driver_name}, {"pool", share.pool}, {"device", share.device}});
        at = std::prev(entries.end());
        if (!share.share_id.empty())
            (*at)["shareID"] = share.share_id;
    }
    bool changed = put(*at, share_condition(share, node, prepared), now);
    // Once the pod was bound the pair is its supervisors' business: a takeover makes the standby the primary.
    if (!prepared || condition_in(*at, standby_ready).is_null()) {
        changed |= put(*at, {standby_ready, said.ready, said.reason, said.message}, now);
        changed |= put(*at, {standby_failed, said.failed, said.reason, said.failed ? said.message : ""}, now);
    }
    return changed;
}

} // namespace

bool has_our_device(const json& claim) {
    const auto& results = below(claim, {"status", "allocation", "devices", "results"});
    return results.is_array() && std::ranges::any_of(results, [](const json& result) {
               return result.is_object() && text_of(result, "driver") == driver_name;
           });
}

std::vector<json> claims_to_write(const std::vector<json>& claims, const own_node& node,
                                  std::string_view now) {
    claims_by_name all;
    for (const auto& claim : claims) {
        const auto& metadata = below(claim, {"metadata"});
        all[{text_of(metadata, "namespace"), text_of(metadata, "name")}] = &claim;
    }
    std::vector<json> out;
    std::string refusal;
    for (const auto& claim : claims) {
        const auto share = allocated_to(claim, refusal);
        if (!share || share->pool != node.name)
            continue;
        json written = claim;
        if (update(written, *share, node, all, now))
            out.push_back(std::move(written));
    }
    return out;
}

} // namespace kagemusha::kubernetes
