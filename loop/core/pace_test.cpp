// SPDX-License-Identifier: GPL-2.0-or-later
#include "loop/core/pace.hpp"

#include <gtest/gtest.h>

#include "loop/core/framer.hpp"

namespace kagemusha::loop {
namespace {

constexpr std::uint64_t us = 1000;

TEST(pace, a_launch_takes_about_its_time) {
    pace p;
    for (int i = 0; i < 100; ++i)
        p.launched(p.callbacks(), p.callbacks() * 10 * us, p.callbacks() * 10 * us + 100 * us);
    const auto wanted = static_cast<double>(launch_alone_ns) / static_cast<double>(10 * us);
    EXPECT_NEAR(p.callbacks(), wanted, wanted * 0.1);
    EXPECT_FALSE(p.others_wait());
}

TEST(pace, expensive_callbacks_count_at_once) {
    pace p;
    for (int i = 0; i < 100; ++i)
        p.launched(1000, 1000 * us, 1100 * us);
    p.launched(1, 5 * ms, 5 * ms + 100 * us);
    EXPECT_EQ(p.callbacks(), launch_alone_ns / (5 * ms));
}

TEST(pace, a_callback_longer_than_a_launch_may_take_runs_alone) {
    pace p;
    p.launched(1, 900 * ms, 901 * ms);
    EXPECT_EQ(p.callbacks(), 1u);
}

TEST(pace, launches_are_short_while_others_wait) {
    pace p;
    for (int i = 0; i < 100; ++i)
        p.launched(100, 1 * ms, 1 * ms + 300 * us);
    const auto alone = p.callbacks();
    p.launched(100, 1 * ms, 1 * ms + 300 * us + 2 * others_wait_ns); // another VM had its turn before
    EXPECT_TRUE(p.others_wait());
    EXPECT_LE(p.callbacks(), alone * launch_shared_ns / launch_alone_ns + 1);
    for (std::uint32_t i = 0; i < shared_launches; ++i)
        p.launched(10, 100 * us, 400 * us);
    EXPECT_FALSE(p.others_wait());
}

TEST(pace, a_slow_guest_is_not_one_that_others_keep_waiting) {
    pace p;
    p.launched(100, 1 * ms, 1 * ms + 300 * us);
    for (int i = 0; i < 1000; ++i)
        p.launched(100, 1 * ms, 10 * ms); // from now on each takes so long
    EXPECT_FALSE(p.others_wait());
}

TEST(pace, times_that_make_no_sense_are_no_times) {
    pace p;
    p.launched(0, 0, 0);
    p.launched(10, UINT64_MAX, 1 * ms); // more on the device than went by
    p.launched(10, 1 * ms, 0);
    EXPECT_GE(p.callbacks(), 1u);
    EXPECT_LE(p.callbacks(), max_callbacks);
}

TEST(pace, a_fixed_token_stays) {
    pace p(3);
    p.launched(3, 900 * ms, 1000 * ms);
    EXPECT_EQ(p.callbacks(), 3u);
}

std::vector<std::byte> bytes_of(const std::string& text) {
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
}

TEST(framer, lines_come_whole) {
    framer f(true);
    f.put(bytes_of("one\ntw"));
    EXPECT_EQ(f.next(), bytes_of("one"));
    EXPECT_EQ(f.next(), std::nullopt);
    f.put(bytes_of("o\n\n"));
    EXPECT_EQ(f.next(), bytes_of("two"));
    EXPECT_EQ(f.next(), bytes_of(""));
    EXPECT_EQ(f.next(), std::nullopt);
}

TEST(framer, a_line_that_is_too_long_comes_in_pieces) {
    const std::string text(LOOP_DATA_BYTES + 1, 'x');
    framer f(true);
    f.put(bytes_of(text.substr(0, LOOP_DATA_BYTES)));
    EXPECT_EQ(f.next(), std::nullopt); // its end may be the next byte
    f.put(bytes_of("x\n"));
    EXPECT_EQ(f.next(), bytes_of(text.substr(1)));
    EXPECT_EQ(f.next(), bytes_of("x"));
}

TEST(framer, pieces_come_as_they_are) {
    framer f(false);
    f.put(bytes_of("a\nb"));
    EXPECT_EQ(f.next(), bytes_of("a\nb"));
    EXPECT_EQ(f.next(), std::nullopt);
}

} // namespace
} // namespace kagemusha::loop
