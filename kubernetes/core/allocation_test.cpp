// SPDX-License-Identifier: GPL-2.0-or-later
#include "kubernetes/core/core_test_helpers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace kagemusha::kubernetes {
namespace {

std::string refusal_of(const inventory& gpus, const std::vector<std::string>& ids) {
    std::string refusal;
    EXPECT_FALSE(allocate(gpus, ids, refusal));
    return refusal;
}

TEST(allocation, units_are_percent_of_time_and_memory) {
    std::string refusal;
    const auto given = allocate(node_with(2), units(1, 40, 25), refusal);
    ASSERT_TRUE(given) << refusal;
    EXPECT_EQ(given->gpu, gpu_numbered(1));
    EXPECT_EQ(given->percent, 25u);
    EXPECT_EQ(given->memory_mib, 2048u);
    const auto environment = environment_of(*given);
    EXPECT_EQ(environment.at("KAGEMUSHA_GPU"), "pci:0000:01:00.0");
    EXPECT_EQ(environment.at("KAGEMUSHA_GPU_SHARE"), "25");
    EXPECT_EQ(environment.at("KAGEMUSHA_GPU_MEMORY_MIB"), "2048");
    EXPECT_EQ(environment.at("KAGEMUSHA_GPU_ARBITER"), "/run/kagemusha/share/gpu-0000000000000001");
}

TEST(allocation, without_a_known_memory_there_is_no_quota) {
    auto gpu = gpu_numbered(0);
    gpu.memory_bytes = 0;
    EXPECT_FALSE(environment_of({gpu, 10, 0}).contains("KAGEMUSHA_GPU_MEMORY_MIB"));
}

TEST(allocation, all_of_a_gpu_is_a_hundred_units) {
    std::string refusal;
    EXPECT_TRUE(allocate(node_with(1), units(0, 0, 100), refusal));
    EXPECT_NE(refusal_of(node_with(1), {}).find("1 to 100"), std::string::npos);
    EXPECT_NE(refusal_of(node_with(2),
                         [] {
                             auto both = units(0, 0, 100);
                             both.push_back(units(1, 0, 1)[0]);
                             return both;
                         }())
                  .find("101 units"),
              std::string::npos);
}

TEST(allocation, what_spans_two_gpus_is_refused) {
    auto ids = units(0, 0, 10);
    std::ranges::copy(units(1, 0, 10), std::back_inserter(ids));
    EXPECT_NE(refusal_of(node_with(2), ids).find("20 percent are free on no single GPU"), std::string::npos);
}

TEST(allocation, what_is_unknown_twice_or_gone_is_refused) {
    for (const std::string id :
         {"", "gpu", "-01", "gpu-0000000000000000", "gpu-0000000000000000-1", "gpu-0000000000000000-x1",
          "gpu-0000000000000000- 1", "gpu-0000000000000007-01"})
        EXPECT_NE(refusal_of(node_with(1), {id}).find("no GPU of this node"), std::string::npos) << id;
    const auto twice = unit_id(gpu_numbered(0).id, 3);
    EXPECT_NE(refusal_of(node_with(1), {twice, twice}).find("twice"), std::string::npos);
    auto gpus = node_with(2);
    gpus.looked({{gpu_numbered(0)}});
    EXPECT_NE(refusal_of(gpus, units(1, 0, 5)).find("is gone"), std::string::npos);
    gpus.asked(gpu_numbered(0).id, false);
    EXPECT_NE(refusal_of(gpus, units(0, 0, 5)).find("no share arbiter"), std::string::npos);
}

TEST(allocation, a_sentence_has_no_more_of_a_foreign_text_than_a_line_takes) {
    const auto said = refusal_of(node_with(1), {std::string(100'000, '\n')});
    EXPECT_LT(said.size(), 200u);
    EXPECT_EQ(said.find('\n'), std::string::npos);
}

TEST(prefer, takes_all_from_the_fullest_gpu_that_has_so_many) {
    auto free = units(0, 0, 100);
    std::ranges::copy(units(1, 70, 30), std::back_inserter(free));
    std::ranges::copy(units(2, 90, 10), std::back_inserter(free));
    const auto taken = prefer(free, {}, 25);
    ASSERT_EQ(taken.size(), 25u);
    for (const auto& id : taken)
        EXPECT_EQ(gpu_of_unit(id), gpu_numbered(1).id);
    EXPECT_EQ(std::set(taken.begin(), taken.end()).size(), 25u);
}

TEST(prefer, keeps_what_must_be_among_them) {
    auto free = units(0, 0, 100);
    std::ranges::copy(units(1, 70, 30), std::back_inserter(free));
    const auto must = units(0, 98, 2);
    const auto taken = prefer(free, must, 5);
    ASSERT_EQ(taken.size(), 5u);
    for (const auto& id : must)
        EXPECT_NE(std::ranges::find(taken, id), taken.end()) << id;
    EXPECT_EQ(std::set(taken.begin(), taken.end()).size(), 5u);
}

TEST(prefer, says_nothing_where_no_gpu_has_enough) {
    auto free = units(0, 0, 50);
    std::ranges::copy(units(1, 0, 50), std::back_inserter(free));
    EXPECT_TRUE(prefer(free, {}, 51).empty());
    EXPECT_TRUE(prefer(free, {units(0, 0, 1)[0], units(1, 0, 1)[0]}, 2).empty());
    EXPECT_TRUE(prefer(free, units(0, 0, 3), 2).empty());
    EXPECT_TRUE(prefer({}, {}, 1).empty());
}

TEST(allocation, a_mig_instance_is_one_unit_and_whole) {
    const auto small = instance_numbered(0, "1g.10gb"), large = instance_numbered(1, "3g.40gb+me");
    const auto gpus = node_with(1, {small, large});
    EXPECT_EQ(resource_of(gpu_numbered(0)), "kagemusha.io/gpu");
    EXPECT_EQ(resource_of(small), "kagemusha.io/mig-1g.10gb");
    EXPECT_EQ(resource_of(large), "kagemusha.io/mig-3g.40gb.me");
    EXPECT_EQ(units_of(small), std::vector<std::string>{small.id});
    EXPECT_EQ(units_of(gpu_numbered(0)).size(), 100u);
    std::string refusal;
    const auto given = allocate(gpus, {large.id}, refusal);
    ASSERT_TRUE(given) << refusal;
    EXPECT_EQ(given->gpu, large);
    EXPECT_EQ(given->percent, 100u);
    EXPECT_EQ(given->memory_mib, 10u << 10);
    EXPECT_EQ(environment_of(*given).at("KAGEMUSHA_GPU"), large.selector);
    EXPECT_FALSE(allocate(gpus, {small.id, large.id}, refusal));
    EXPECT_NE(refusal.find("2 MIG instances"), std::string::npos);
    EXPECT_FALSE(allocate(gpus, {unit_id(gpu_numbered(0).id, 0), small.id}, refusal));
    EXPECT_FALSE(allocate(gpus, {unit_id(small.id, 0)}, refusal)) << "it has no percent";
    EXPECT_NE(refusal.find("is no GPU of this node"), std::string::npos);
}

TEST(allocation, a_mig_instance_that_was_destroyed_is_refused) {
    const auto small = instance_numbered(0, "1g.10gb");
    auto gpus = node_with(1, {small});
    gpus.looked({std::vector<found_gpu>{gpu_numbered(0)}});
    std::string refusal;
    EXPECT_FALSE(allocate(gpus, {small.id}, refusal));
    EXPECT_NE(refusal.find("is gone"), std::string::npos);
}

} // namespace
} // namespace kagemusha::kubernetes
