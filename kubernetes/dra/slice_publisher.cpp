// SPDX-License-Identifier: GPL-2.0-or-later
//
// See slice_publisher.hpp.
#include "kubernetes/dra/slice_publisher.hpp"

#include "control/base/json_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace kagemusha::kubernetes {

using control::text_in;
using nlohmann::json;

namespace {

constexpr char slices_path[] = "/apis/resource.k8s.io/v1/resourceslices";

std::string name_of(const json& slice) {
    const auto metadata = slice.find("metadata");
    return metadata == slice.end() ? std::string() : text_in(*metadata, "name");
}

std::uint64_t generation_of(const json& slice) {
    const auto at = json::json_pointer("/spec/pool/generation");
    const auto* const found = slice.contains(at) ? &slice.at(at) : nullptr;
    return found && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

} // namespace

std::string slice_publisher::find_node() {
    if (!place_.node_uid.empty())
        return {};
    const auto node = server_.get("/api/v1/nodes/" + place_.node);
    if (!node.ok())
        return node.error;
    const auto metadata = node.body.find("metadata");
    if (metadata != node.body.end())
        place_.node_uid = text_in(*metadata, "uid");
    return place_.node_uid.empty() ? fmt::format("the API server has a node {} without a uid", place_.node)
                                   : "";
}

std::string slice_publisher::step(const inventory& gpus) {
    if (auto error = find_node(); !error.empty())
        return error;
    const auto listed = server_.get(fmt::format("{}?fieldSelector=spec.driver%3D{}%2Cspec.nodeName%3D{}",
                                                slices_path, driver_name, place_.node));
    if (!listed.ok())
        return listed.error;
    std::vector<json> there;
    std::uint64_t generation = 0;
    if (const auto items = listed.body.find("items"); items != listed.body.end() && items->is_array())
        for (const auto& slice : *items)
            if (slice.is_object() && !name_of(slice).empty()) {
                there.push_back(slice);
                generation = std::max(generation, generation_of(slice));
            }
    auto wanted = resource_slices(gpus.gpus(), place_, generation + 1);
    if (same_slices(there, wanted))
        return {};
    if (!same_slices(sent_, wanted) || !same_slices(kept_, there))
        if (auto error = write(there, std::move(wanted)); !error.empty())
            return error;
    return same_slices(kept_, sent_)
               ? ""
               : "the API server keeps less of this node's devices than was told: a feature "
                 "is off there (see kubernetes.md), and pods get what it leaves";
}

std::string slice_publisher::write(const std::vector<json>& there, std::vector<json> wanted) {
    sent_.clear();
    kept_.clear();
    std::vector<json> kept;
    for (auto& slice : wanted) {
        const auto old = std::ranges::find(there, name_of(slice), name_of);
        api_answer done;
        if (old == there.end()) {
            done = server_.post(slices_path, slice);
        } else {
            // Refused if somebody has changed it since: then the next step looks again.
            slice["metadata"]["resourceVersion"] = text_in((*old)["metadata"], "resourceVersion");
            done = server_.put(fmt::format("{}/{}", slices_path, name_of(slice)), slice);
        }
        if (!done.ok()) {
            place_.node_uid.clear(); // perhaps the node is another one by now
            return done.error;
        }
        kept.push_back(std::move(done.body));
    }
    for (const auto& slice : there)
        if (std::ranges::find(wanted, name_of(slice), name_of) == wanted.end())
            if (const auto done = server_.remove(fmt::format("{}/{}", slices_path, name_of(slice)));
                !done.ok() && done.status != 404)
                return done.error;
    sent_ = std::move(wanted);
    kept_ = std::move(kept);
    return {};
}

} // namespace kagemusha::kubernetes
