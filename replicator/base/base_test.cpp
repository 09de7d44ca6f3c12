// SPDX-License-Identifier: GPL-2.0-or-later
#include <gtest/gtest.h>

#include "base/checked.hpp"
#include "base/look_window.hpp"
#include "base/rate_limiter.hpp"

namespace kagemusha::base {
namespace {

TEST(checked_u64, sums_and_products_that_fit_are_exact) {
    EXPECT_EQ((checked_u64(3) * 5 + 7).value(), 22u);
    EXPECT_EQ((checked_u64(UINT64_MAX - 1) + 1).value(), UINT64_MAX);
}

TEST(checked_u64, overflow_in_any_step_spoils_the_result) {
    EXPECT_FALSE((checked_u64(UINT64_MAX) + 1).ok());
    EXPECT_FALSE((checked_u64(1ull << 32) * (1ull << 32)).ok());
    EXPECT_FALSE((checked_u64(1ull << 32) * (1ull << 32) * 0).ok());
    EXPECT_FALSE((checked_u64(UINT64_MAX) + 1).within(UINT64_MAX));
}

TEST(range_inside, knows_the_edges) {
    EXPECT_TRUE(range_inside(0, 16, 16));
    EXPECT_TRUE(range_inside(16, 0, 16));
    EXPECT_FALSE(range_inside(17, 0, 16));
    EXPECT_FALSE(range_inside(1, 16, 16));
    EXPECT_FALSE(range_inside(UINT64_MAX, 2, 16));
    EXPECT_FALSE(range_inside(2, UINT64_MAX, 16));
}

TEST(rate_limiter, lets_a_burst_through_then_one_per_interval) {
    rate_limiter limiter(2, 1000);
    EXPECT_TRUE(limiter.allow(0));
    EXPECT_TRUE(limiter.allow(0));
    EXPECT_FALSE(limiter.allow(999));
    EXPECT_TRUE(limiter.allow(1000));
    EXPECT_FALSE(limiter.allow(1001));
    EXPECT_EQ(limiter.take_suppressed(), 2u);
    EXPECT_EQ(limiter.take_suppressed(), 0u);
}

TEST(rate_limiter, a_long_silence_gives_no_more_than_the_burst) {
    rate_limiter limiter(2, 1000);
    EXPECT_TRUE(limiter.allow(1'000'000));
    EXPECT_TRUE(limiter.allow(1'000'000));
    EXPECT_FALSE(limiter.allow(1'000'000));
}

TEST(look_window, opens_while_work_comes_soon_and_closes_when_it_does_not) {
    using std::chrono::microseconds;
    look_window window(microseconds(100));
    EXPECT_EQ(window.now(), microseconds(0)) << "nobody looks before something came soon";
    window.waited(microseconds(70));
    EXPECT_EQ(window.now(), look_window::first);
    for (int i = 0; i < 10; ++i)
        window.waited(microseconds(70));
    EXPECT_EQ(window.now(), microseconds(80)) << "so long is enough";
    window.waited(microseconds(90));
    EXPECT_EQ(window.now(), microseconds(100));
    window.waited(microseconds(100));
    EXPECT_EQ(window.now(), microseconds(100));
    window.waited(microseconds(101));
    EXPECT_EQ(window.now(), microseconds(0));
}

TEST(look_window, stays_closed_where_nobody_may_look) {
    look_window window(std::chrono::nanoseconds(0));
    window.waited(std::chrono::nanoseconds(0));
    window.waited(std::chrono::nanoseconds(1));
    EXPECT_EQ(window.now(), std::chrono::nanoseconds(0));
    EXPECT_EQ(longest_look(7), std::chrono::nanoseconds(0));
    EXPECT_GT(longest_look(8), look_window::first);
}

} // namespace
} // namespace kagemusha::base
