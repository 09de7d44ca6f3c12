// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/pilot/checkpoint_count.hpp"

#include <gtest/gtest.h>

namespace kagemusha::control {
namespace {

TEST(checkpoint_count, the_first_stream_counts_from_none) {
    checkpoint_count count;
    count.begin(0);
    EXPECT_EQ(count.read(0), 0u);
    EXPECT_EQ(count.read(1), 1u);
    EXPECT_EQ(count.read(2), 2u);
}

// It would be protected by a standby that has not even loaded the VM's first state.
TEST(checkpoint_count, what_a_former_stream_has_left_is_none_of_this_one) {
    checkpoint_count count;
    count.begin(0);
    EXPECT_EQ(count.read(17), 17u);
    count.begin(17);
    EXPECT_EQ(count.read(17), 0u);
    EXPECT_EQ(count.read(17), 0u);
    EXPECT_EQ(count.read(0), 0u) << "set back";
    EXPECT_EQ(count.read(1), 1u);
    EXPECT_EQ(count.read(17), 17u) << "its own by now";
}

TEST(checkpoint_count, it_was_not_looked_at_while_it_was_small) {
    checkpoint_count count;
    count.begin(2);
    EXPECT_EQ(count.read(2), 0u);
    EXPECT_EQ(count.read(3), 3u);
}

} // namespace
} // namespace kagemusha::control
