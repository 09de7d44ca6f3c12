// SPDX-License-Identifier: GPL-2.0-or-later
#include "kubernetes/core/core_test_helpers.hpp"
#include "kubernetes/core/quantity.hpp"
#include "kubernetes/core/slices.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace kagemusha::kubernetes {
namespace {

using nlohmann::json;

const slice_place shares{"node1", "3b0c9a51-0000-4000-8000-000000000001", slicing::shares, false};
const slice_place partitions{"node1", "3b0c9a51-0000-4000-8000-000000000001", slicing::partitions, false};

TEST(quantity, whole_numbers_with_suffixes) {
    EXPECT_EQ(parse_quantity("25"), 25u);
    EXPECT_EQ(parse_quantity("2Gi"), 2ull << 30);
    EXPECT_EQ(parse_quantity("3k"), 3000u);
    EXPECT_EQ(parse_quantity("15Ei"), 15ull << 60);
    for (const char* text :
         {"", "x", "-1", "1.5", "25 ", "2gi", "2K", "2Kii", "100m", "16Ei", "1e3", "18446744073709551616"})
        EXPECT_FALSE(parse_quantity(text)) << text;
}

TEST(slices, shares_are_capacity_that_many_claims_take_from) {
    const auto slices = resource_slices(node_with(2).gpus(), shares, 7);
    ASSERT_EQ(slices.size(), 1u);
    const auto& spec = slices[0]["spec"];
    EXPECT_EQ(spec["pool"], (json{{"name", "node1"}, {"generation", 7}, {"resourceSliceCount", 1}}));
    ASSERT_EQ(spec["devices"].size(), 2u);
    const auto& device = spec["devices"][1];
    EXPECT_EQ(device["allowMultipleAllocations"], true);
    EXPECT_EQ(device["capacity"]["share"]["value"], "100");
    EXPECT_EQ(device["attributes"]["model"]["string"], "Card 1");
    EXPECT_EQ(slices[0]["metadata"]["ownerReferences"][0]["kind"], "Node");
}

TEST(slices, binding_conditions_are_there_if_wanted) {
    for (auto place : {shares, partitions}) {
        for (const auto& slice : resource_slices(node_with(1).gpus(), place, 1))
            EXPECT_EQ(slice.dump().find("inding"), std::string::npos);
        place.standby_conditions = true;
        const auto slices = resource_slices(node_with(1).gpus(), place, 1);
        for (const auto& device : slices.back()["spec"]["devices"]) {
            EXPECT_EQ(device["bindingConditions"], json::array({"kagemusha.io/StandbyReady"}));
            EXPECT_EQ(device["bindingFailureConditions"], json::array({"kagemusha.io/StandbyFailed"}));
        }
    }
}

TEST(slices, a_mig_instance_is_a_device_that_names_its_profile_and_its_gpu) {
    const auto instance = instance_numbered(3, "1g.10gb");
    const auto slices = resource_slices(node_with(1, {instance}).gpus(), shares, 1);
    const auto& devices = slices[0]["spec"]["devices"];
    ASSERT_EQ(devices.size(), 2u);
    EXPECT_FALSE(devices[0]["attributes"].contains("profile"));
    const auto& device = devices[1];
    EXPECT_EQ(device["name"], instance.id);
    EXPECT_EQ(device["attributes"]["kind"]["string"], "mig");
    EXPECT_EQ(device["attributes"]["profile"]["string"], "1g.10gb");
    EXPECT_EQ(device["attributes"]["parent"]["string"], "pci:0000:17:00.0");
    EXPECT_EQ(device["attributes"]["memoryMiB"]["int"], 10 << 10);
    EXPECT_EQ(device["capacity"]["share"]["value"], "100") << "of the instance";
    EXPECT_EQ(resource_slices(node_with(0, {instance}).gpus(), partitions, 1)[1]["spec"]["devices"].size(),
              15u);
}

TEST(slices, partitions_take_from_their_gpus_counters_which_are_in_slices_of_their_own) {
    const auto slices = resource_slices(node_with(2).gpus(), partitions, 1);
    ASSERT_EQ(slices.size(), 2u);
    EXPECT_EQ(slices[0]["spec"]["sharedCounters"].size(), 2u);
    EXPECT_FALSE(slices[0]["spec"].contains("devices"));
    std::map<std::string, int> taken;
    for (const auto& device : slices[1]["spec"]["devices"]) {
        const auto named = device_named(device["name"].get<std::string>());
        ASSERT_TRUE(named);
        const auto& consumed = device["consumesCounters"][0];
        EXPECT_EQ(consumed["counterSet"], named->gpu);
        EXPECT_EQ(consumed["counters"]["share"]["value"], std::to_string(named->percent));
        taken[named->gpu] += static_cast<int>(named->percent);
    }
    for (const auto& [gpu, percent] : taken)
        EXPECT_EQ(percent, 100 + 2 * 50 + 4 * 25 + 8 * 12) << gpu;
}

TEST(slices, the_bounds_of_the_api_are_kept) {
    std::vector<known_gpu> many;
    for (std::size_t i = 0; i < max_gpus; ++i) {
        many.push_back({gpu_numbered(0), true, true});
        many.back().gpu.id = "gpu-" + std::to_string(i);
    }
    const auto slices = resource_slices(many, partitions, 1);
    std::set<std::string> names, devices;
    for (const auto& slice : slices) {
        EXPECT_EQ(slice["spec"]["pool"]["resourceSliceCount"], slices.size());
        EXPECT_LE(slice["spec"].value("devices", json::array()).size(), 64u);
        EXPECT_LE(slice["spec"].value("sharedCounters", json::array()).size(), 8u);
        names.insert(slice["metadata"]["name"].get<std::string>());
        for (const auto& device : slice["spec"].value("devices", json::array()))
            devices.insert(device["name"].get<std::string>());
    }
    EXPECT_EQ(names.size(), slices.size());
    EXPECT_EQ(devices.size(), max_gpus * 15);
}

TEST(slices, what_the_server_added_is_no_difference) {
    auto gpus = node_with(2);
    const auto wanted = resource_slices(gpus.gpus(), shares, 2);
    auto there = resource_slices(gpus.gpus(), shares, 1);
    there[0]["metadata"]["resourceVersion"] = "5";
    EXPECT_TRUE(same_slices(there, wanted));
    there[0]["spec"]["devices"][0]["capacity"]["share"]["value"] = "99";
    EXPECT_FALSE(same_slices(there, wanted));
    EXPECT_FALSE(same_slices({}, wanted));
    EXPECT_FALSE(same_slices({json(nullptr), json{{"metadata", 3}, {"spec", "x"}}}, wanted));
}

TEST(slices, a_gpu_that_is_gone_is_left_out_and_one_without_an_arbiter_is_not) {
    auto gpus = node_with(2);
    gpus.asked(gpu_numbered(0).id, false);
    gpus.looked({{gpu_numbered(0)}});
    const auto slices = resource_slices(gpus.gpus(), shares, 1);
    ASSERT_EQ(slices[0]["spec"]["devices"].size(), 1u);
    EXPECT_EQ(slices[0]["spec"]["devices"][0]["name"], gpu_numbered(0).id);
    gpus.looked({std::vector<found_gpu>{}});
    EXPECT_TRUE(resource_slices(gpus.gpus(), shares, 1).empty());
}

TEST(slices, names_of_devices_mean_one_thing) {
    EXPECT_EQ(device_named("gpu-0123456789abcdef")->percent, 0u);
    EXPECT_EQ(device_named("gpu-0123456789abcdef-1-of-4-3")->percent, 25u);
    EXPECT_EQ(device_named("gpu-0123456789abcdef-1-of-4-3")->gpu, "gpu-0123456789abcdef");
    for (const char* name :
         {"", "disk", "gpu-0-1-of-3-0", "gpu-0-1-of-4-4", "gpu-0-1-of-4", "gpu-0-1-of-x-0", "gpu-0-1-of-4-"})
        EXPECT_FALSE(device_named(name)) << name;
}

} // namespace
} // namespace kagemusha::kubernetes
