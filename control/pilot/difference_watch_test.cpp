// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/pilot/difference_watch.hpp"

#include <gtest/gtest.h>

namespace kagemusha::control {
namespace {

using namespace std::chrono_literals;
constexpr difference_watch::clock::time_point start{1h};

std::size_t told(difference_watch& w, std::chrono::seconds after, std::uint64_t chunks,
                 std::uint64_t objects = 0) {
    return w.read(start + after, chunks, objects).size();
}

TEST(difference_watch, memory_that_agrees_is_no_event) {
    difference_watch w;
    EXPECT_EQ(told(w, 0s, 0), 0u);
    EXPECT_EQ(told(w, 100s, 0), 0u);
}

TEST(difference_watch, the_first_difference_is_told_at_once_and_others_once_a_minute) {
    difference_watch w;
    EXPECT_EQ(told(w, 5s, 2), 1u);
    EXPECT_EQ(told(w, 6s, 3), 0u);
    EXPECT_EQ(told(w, 64s, 9), 0u);
    const auto said = w.read(start + 65s, 9, 0);
    ASSERT_EQ(said.size(), 1u);
    EXPECT_NE(said[0].find("7 chunks"), std::string::npos) << said[0];
    EXPECT_EQ(told(w, 200s, 9), 0u) << "nothing new";
}

TEST(difference_watch, what_is_shipped_is_told_whatever_was_told_of_chunks) {
    difference_watch w;
    EXPECT_EQ(told(w, 0s, 3), 1u);
    const auto said = w.read(start + 1s, 3, 1);
    ASSERT_EQ(said.size(), 1u);
    EXPECT_NE(said[0].find("1 memory objects differed again and again"), std::string::npos) << said[0];
    EXPECT_EQ(told(w, 2s, 4, 2), 0u);
    EXPECT_EQ(told(w, 61s, 4, 2), 2u);
}

TEST(difference_watch, another_replication_counts_from_nothing) {
    difference_watch w;
    EXPECT_EQ(told(w, 0s, 10), 1u);
    EXPECT_EQ(told(w, 1s, 0), 0u);
    const auto said = w.read(start + 70s, 4, 0);
    ASSERT_EQ(said.size(), 1u);
    EXPECT_NE(said[0].find("4 chunks"), std::string::npos) << said[0];
}

} // namespace
} // namespace kagemusha::control
