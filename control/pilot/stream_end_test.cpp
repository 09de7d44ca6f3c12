// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/pilot/stream_end.hpp"

#include <gtest/gtest.h>

namespace kagemusha::control {
namespace {

TEST(StreamEnd, checkpoints_end_by_a_failover) {
    EXPECT_EQ(end_of_stream("colo"), stream_step::fail_over);
}

// `migrate_cancel` has been said: it ends by itself, or begins its checkpoints all the same.
TEST(StreamEnd, what_is_under_way_is_looked_at_again) {
    for (const auto* status : {"setup", "active", "device", "pre-switchover", "wait-unplug", "cancelling"})
        EXPECT_EQ(end_of_stream(status), stream_step::wait) << status;
}

TEST(StreamEnd, what_has_ended_is_left_alone) {
    for (const auto* status : {"", "none", "completed", "failed", "cancelled"})
        EXPECT_EQ(end_of_stream(status), stream_step::none) << status;
}

} // namespace
} // namespace kagemusha::control
