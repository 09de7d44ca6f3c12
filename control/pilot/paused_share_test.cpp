// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/pilot/paused_share.hpp"

#include <gtest/gtest.h>

namespace kagemusha::control {
namespace {

using namespace std::chrono_literals;
const auto start = paused_share::clock::time_point(1h);

TEST(paused_share, is_that_of_the_last_window) {
    paused_share share;
    share.read(start, 500ms); // what was before it looked does not count
    EXPECT_EQ(share.percent(), 0);
    share.read(start + 1s, 540ms);
    EXPECT_EQ(share.percent(), 0);
    share.read(start + 2s, 600ms);
    EXPECT_DOUBLE_EQ(share.percent(), 5);
    share.read(start + 3s, 600ms);
    EXPECT_DOUBLE_EQ(share.percent(), 5);
    share.read(start + 6s, 640ms);
    EXPECT_DOUBLE_EQ(share.percent(), 1);
}

TEST(paused_share, begins_anew_with_another_sum) {
    paused_share share;
    share.read(start, 0us);
    share.read(start + 2s, 1s);
    EXPECT_DOUBLE_EQ(share.percent(), 50);
    share.read(start + 3s, 10ms);
    EXPECT_EQ(share.percent(), 0);
    share.read(start + 5s, 30ms);
    EXPECT_DOUBLE_EQ(share.percent(), 1);
}

} // namespace
} // namespace kagemusha::control
