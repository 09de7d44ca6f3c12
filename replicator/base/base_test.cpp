// SPDX-License-Identifier: GPL-2.0-or-later
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/checked.hpp"
#include "base/copy_crew.hpp"
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

// Each byte once, whoever copies, also when several share at a time: then all but one are alone.
TEST(copy_crew, every_byte_is_in_one_part) {
    constexpr std::uint64_t sizes[] = {0,
                                       1,
                                       copy_crew::smallest_shared_bytes - 1,
                                       copy_crew::smallest_shared_bytes,
                                       copy_crew::smallest_shared_bytes + 1,
                                       copy_crew::piece_bytes * 21 + 17};
    for (const unsigned helpers : {0u, 1u, 3u}) {
        copy_crew crew(helpers);
        const auto use = [&] {
            for (int round = 0; round < 4; ++round)
                for (const std::uint64_t bytes : sizes) {
                    std::vector<std::uint8_t> taken(bytes);
                    crew.share(bytes, [&](std::uint64_t begin, std::uint64_t end) {
                        for (std::uint64_t i = begin; i < end; ++i)
                            ++taken[i];
                    });
                    ASSERT_EQ(std::count(taken.begin(), taken.end(), 1), static_cast<std::ptrdiff_t>(bytes));
                }
        };
        std::vector<std::thread> users;
        for (int i = 0; i < 3; ++i)
            users.emplace_back(use);
        for (std::thread& one : users)
            one.join();
    }
}

// A part that waits for another one ends only if two threads are at it.
TEST(copy_crew, parts_are_copied_at_a_time) {
    copy_crew crew(1);
    std::atomic<unsigned> inside = 0;
    crew.share(copy_crew::smallest_shared_bytes, [&](std::uint64_t, std::uint64_t) {
        ++inside;
        while (inside < 2)
            std::this_thread::yield();
    });
    EXPECT_EQ(inside, copy_crew::smallest_shared_bytes / copy_crew::piece_bytes);
}

} // namespace
} // namespace kagemusha::base
