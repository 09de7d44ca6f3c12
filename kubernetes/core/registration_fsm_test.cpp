// SPDX-License-Identifier: GPL-2.0-or-later
#include "kubernetes/core/registration_fsm.hpp"

#include <gtest/gtest.h>

namespace kagemusha::kubernetes {
namespace {

using action = registration_fsm::action;
constexpr file_identity kubelet{1, 10, 5}, later_kubelet{1, 10, 6}, own{1, 20, 7};

registration_fsm enlisted_one() {
    registration_fsm fsm;
    fsm.served(own, 0);
    fsm.enlisted(kubelet, 0);
    return fsm;
}

TEST(registration, serves_before_it_tells) {
    registration_fsm fsm;
    EXPECT_EQ(fsm.step(kubelet, std::nullopt, 0), action::serve);
    fsm.served(own, 0);
    EXPECT_EQ(fsm.step(std::nullopt, own, 0), action::none) << "no kubelet yet";
    EXPECT_EQ(fsm.step(kubelet, own, 0), action::enlist);
    fsm.enlisted(kubelet, 0);
    EXPECT_EQ(fsm.step(kubelet, own, 0), action::none);
    EXPECT_TRUE(fsm.is_enlisted());
}

TEST(registration, a_kubelet_that_removes_the_sockets_is_told_again) {
    auto fsm = enlisted_one();
    EXPECT_EQ(fsm.step(std::nullopt, std::nullopt, 0), action::serve);
    EXPECT_FALSE(fsm.is_enlisted());
    fsm.served(own, 0);
    EXPECT_EQ(fsm.step(later_kubelet, own, 0), action::enlist);
}

TEST(registration, a_new_socket_of_the_kubelet_is_told_even_with_the_old_inode) {
    auto fsm = enlisted_one();
    EXPECT_EQ(fsm.step(later_kubelet, own, 0), action::enlist);
}

TEST(registration, another_ones_socket_at_our_place_is_not_ours) {
    auto fsm = enlisted_one();
    EXPECT_EQ(fsm.step(kubelet, file_identity{1, 21, 9}, 0), action::serve);
}

TEST(registration, failures_are_repeated_after_growing_pauses) {
    registration_fsm fsm;
    fsm.served(std::nullopt, 0);
    EXPECT_EQ(fsm.step(kubelet, std::nullopt, 499), action::none);
    EXPECT_EQ(fsm.step(kubelet, std::nullopt, 500), action::serve);
    fsm.served(own, 500);
    EXPECT_EQ(fsm.step(kubelet, own, 500), action::enlist);
    fsm.enlisted(std::nullopt, 500);
    EXPECT_EQ(fsm.step(kubelet, own, 1499), action::none);
    EXPECT_EQ(fsm.step(kubelet, own, 1500), action::enlist);
    std::uint64_t now = 1500;
    for (int i = 0; i < 10; ++i) {
        fsm.enlisted(std::nullopt, now);
        now += 30'000;
        EXPECT_EQ(fsm.step(kubelet, own, now), action::enlist);
    }
    fsm.enlisted(kubelet, now);
    EXPECT_EQ(fsm.step(later_kubelet, own, now), action::enlist) << "a success ends the pauses";
}

} // namespace
} // namespace kagemusha::kubernetes
