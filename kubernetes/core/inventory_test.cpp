// SPDX-License-Identifier: GPL-2.0-or-later
#include "kubernetes/core/core_test_helpers.hpp"

#include <gtest/gtest.h>

namespace kagemusha::kubernetes {
namespace {

TEST(inventory, a_gpu_can_be_allocated_when_it_is_listed_and_its_arbiter_answers) {
    inventory gpus;
    gpus.looked({{gpu_numbered(1)}});
    ASSERT_EQ(gpus.gpus().size(), 1u);
    EXPECT_FALSE(gpus.gpus()[0].healthy());
    EXPECT_NE(gpus.gpus()[0].trouble().find("no share arbiter"), std::string::npos);
    gpus.asked(gpu_numbered(1).id, true);
    EXPECT_TRUE(gpus.gpus()[0].healthy());
    EXPECT_EQ(gpus.gpus()[0].trouble(), "");
}

TEST(inventory, a_gpu_that_is_gone_stays_and_comes_back) {
    auto gpus = node_with(2);
    gpus.looked({{gpu_numbered(0)}});
    ASSERT_EQ(gpus.gpus().size(), 2u);
    EXPECT_TRUE(gpus.gpus()[0].healthy());
    EXPECT_FALSE(gpus.gpus()[1].healthy());
    EXPECT_NE(gpus.gpus()[1].trouble().find("Card 1) is gone"), std::string::npos);
    gpus.looked({{gpu_numbered(1), gpu_numbered(0)}});
    EXPECT_TRUE(gpus.gpus()[1].healthy());
}

TEST(inventory, drivers_may_fail_to_answer_once) {
    auto gpus = node_with(1);
    const auto before = gpus.version();
    gpus.looked(std::nullopt);
    EXPECT_TRUE(gpus.gpus()[0].healthy());
    gpus.looked({{gpu_numbered(0)}});
    gpus.looked(std::nullopt);
    EXPECT_TRUE(gpus.gpus()[0].healthy()) << "not twice in a row";
    EXPECT_EQ(gpus.version(), before);
    gpus.looked(std::nullopt);
    EXPECT_FALSE(gpus.gpus()[0].healthy());
}

TEST(inventory, the_version_grows_with_changes_and_only_then) {
    auto gpus = node_with(2);
    const auto version = gpus.version();
    gpus.looked({{gpu_numbered(0), gpu_numbered(1)}});
    gpus.asked(gpu_numbered(0).id, true);
    gpus.asked("gpu-nobody", false);
    EXPECT_EQ(gpus.version(), version);
    gpus.asked(gpu_numbered(0).id, false);
    EXPECT_GT(gpus.version(), version);
}

TEST(inventory, a_node_has_a_bounded_number_of_gpus) {
    std::vector<found_gpu> many;
    for (std::size_t i = 0; i < max_gpus + 3; ++i) {
        many.push_back(gpu_numbered(0));
        many.back().id = "gpu-" + std::to_string(i);
    }
    inventory gpus;
    gpus.looked(many);
    EXPECT_EQ(gpus.gpus().size(), max_gpus);
    EXPECT_EQ(gpus.left_out(), 3u);
}

TEST(inventory, instances_that_are_made_anew_find_the_room_of_those_that_are_gone) {
    inventory gpus;
    for (std::size_t cut = 0; cut < max_gpus; ++cut) { // a GPU's seven instances, again and again
        std::vector<found_gpu> instances(7, gpu_numbered(0));
        for (std::size_t i = 0; i < instances.size(); ++i)
            instances[i].id = "mig-" + std::to_string(cut * instances.size() + i);
        gpus.looked(instances);
        ASSERT_EQ(gpus.left_out(), 0u);
        for (const auto& one : instances) {
            ASSERT_NE(gpus.find(one.id), nullptr);
            ASSERT_TRUE(gpus.find(one.id)->listed);
        }
    }
    EXPECT_EQ(gpus.gpus().size(), max_gpus);
}

} // namespace
} // namespace kagemusha::kubernetes
