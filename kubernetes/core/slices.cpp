// SPDX-License-Identifier: GPL-2.0-or-later
//
// See slices.hpp.
#include "kubernetes/core/slices.hpp"

#include "kubernetes/core/standby.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace kagemusha::kubernetes {

using nlohmann::json;

namespace {

constexpr std::uint32_t parts_of_gpu[] = {1, 2, 4,
                                          8}; // those of share/core/terms.hpp that are whole GPUs' parts
constexpr std::size_t devices_of_gpu = 1 + 2 + 4 + 8;
// Bounds of the API (resource.k8s.io/v1): devices of one slice, those that take from counters, sets of counters.
constexpr std::size_t max_devices = 128, max_counting_devices = 64, max_counter_sets = 8;

json attributes_of(const found_gpu& gpu) {
    constexpr std::size_t longest = 64; // of a text
    json out = {{"model", {{"string", gpu.name.substr(0, longest)}}},
                {"memoryMiB", {{"int", static_cast<std::int64_t>(gpu.memory_bytes >> 20)}}},
                {"kind", {{"string", gpu.selector.starts_with("cpu:") ? "processor" : "gpu"}}}};
    if (!gpu.profile.empty()) {
        out["kind"] = {{"string", "mig"}};
        out["profile"] = {{"string", gpu.profile.substr(0, longest)}};
        out["parent"] = {{"string", gpu.parent.substr(0, longest)}};
    }
    return out;
}

json shared_device(const found_gpu& gpu) {
    const json policy = {{"default", "100"}, {"validRange", {{"min", "1"}, {"max", "100"}, {"step", "1"}}}};
    return {{"name", gpu.id},
            {"allowMultipleAllocations", true},
            {"attributes", attributes_of(gpu)},
            {"capacity", {{share_capacity, {{"value", "100"}, {"requestPolicy", policy}}}}}};
}

json partition(const found_gpu& gpu, std::uint32_t parts, std::uint32_t number) {
    const json value = {{"value", std::to_string(units_of_gpu / parts)}};
    auto attributes = attributes_of(gpu);
    attributes["parts"] = {{"int", parts}};
    return {{"name", fmt::format("{}-1-of-{}-{}", gpu.id, parts, number)},
            {"attributes", attributes},
            {"capacity", {{share_capacity, value}}},
            {"consumesCounters", {{{"counterSet", gpu.id}, {"counters", {{share_capacity, value}}}}}}};
}

// Cuts a list into slices of at most so many.
void append(std::vector<json>& specs, const char* key, const std::vector<json>& all, std::size_t most) {
    for (std::size_t i = 0; i < all.size(); i += most) {
        json some = json::array();
        for (std::size_t j = i; j < std::min(i + most, all.size()); ++j)
            some.push_back(all[j]);
        specs.push_back({{key, some}});
    }
}

std::optional<std::uint32_t> number_of(std::string_view text) {
    std::uint32_t out = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), out);
    return failed == std::errc{} && end == text.data() + text.size() ? std::optional(out) : std::nullopt;
}

} // namespace

std::vector<json> resource_slices(const std::vector<known_gpu>& gpus, const slice_place& place,
                                  std::uint64_t generation) {
    std::vector<json> devices, sets;
    for (const auto& known : gpus) {
        if (!known.listed)
            continue;
        if (place.how == slicing::shares) {
            devices.push_back(shared_device(known.gpu));
            continue;
        }
        sets.push_back({{"name", known.gpu.id}, {"counters", {{share_capacity, {{"value", "100"}}}}}});
        for (const auto parts : parts_of_gpu)
            for (std::uint32_t number = 0; number < parts; ++number)
                devices.push_back(partition(known.gpu, parts, number));
    }
    if (place.standby_conditions)
        for (auto& device : devices) {
            device["bindingConditions"] = {standby_ready};
            device["bindingFailureConditions"] = {standby_failed};
        }
    std::vector<json> specs;
    append(specs, "sharedCounters", sets, max_counter_sets);
    // A GPU's partitions stay together.
    append(specs, "devices", devices,
           place.how == slicing::shares ? max_devices
                                        : max_counting_devices / devices_of_gpu * devices_of_gpu);
    std::vector<json> out;
    for (std::size_t i = 0; i < specs.size(); ++i) {
        auto& spec = specs[i];
        spec["driver"] = driver_name;
        spec["nodeName"] = place.node;
        spec["pool"] = {
            {"name", place.node}, {"generation", generation}, {"resourceSliceCount", specs.size()}};
        const json owner = {{"apiVersion", "v1"},
                            {"kind", "Node"},
                            {"name", place.node},
                            {"uid", place.node_uid},
                            {"controller", true}};
        out.push_back({{"apiVersion", "resource.k8s.io/v1"},
                       {"kind", "ResourceSlice"},
                       {"metadata",
                        {{"name", fmt::format("{}-{}-{}", place.node, driver_name, i)},
                         {"ownerReferences", json::array({owner})}}},
                       {"spec", spec}});
    }
    return out;
}

bool same_slices(const std::vector<json>& there, const std::vector<json>& wanted) {
    const auto key_of = [](const json& slice) {
        json key = {nullptr, nullptr};
        if (const auto at = json::json_pointer("/metadata/name"); slice.contains(at))
            key[0] = slice.at(at);
        if (slice.contains("spec"))
            key[1] = slice["spec"];
        if (const auto at = json::json_pointer("/1/pool/generation"); key.contains(at))
            key.at(at.parent_pointer()).erase("generation");
        return key.dump();
    };
    std::vector<std::string> a, b;
    for (const auto& slice : there)
        a.push_back(key_of(slice));
    for (const auto& slice : wanted)
        b.push_back(key_of(slice));
    std::ranges::sort(a);
    std::ranges::sort(b);
    return a == b;
}

std::optional<named_device> device_named(std::string_view name) {
    constexpr std::string_view word = "-1-of-";
    const auto at = name.find(word);
    if (at == std::string_view::npos)
        return name.starts_with("gpu-") ? std::optional(named_device{std::string(name), 0}) : std::nullopt;
    const auto rest = name.substr(at + word.size());
    const auto dash = rest.find('-');
    if (dash == std::string_view::npos)
        return std::nullopt;
    const auto parts = number_of(rest.substr(0, dash)), number = number_of(rest.substr(dash + 1));
    if (!parts || !number || *number >= *parts ||
        std::ranges::find(parts_of_gpu, *parts) == std::end(parts_of_gpu))
        return std::nullopt;
    return named_device{std::string(name.substr(0, at)), units_of_gpu / *parts};
}

} // namespace kagemusha::kubernetes
