// SPDX-License-Identifier: GPL-2.0-or-later
#include "frames/path_tracer.hpp"

#include <gtest/gtest.h>

namespace kagemusha::frames {
namespace {

TEST(pacer, frames_in_time_are_not_missed) {
    pacer p(1000, 100);
    for (std::uint64_t f = 0; f < 10; ++f) {
        EXPECT_EQ(p.due_ns(), 1000 + 100 * f);
        p.shown(p.due_ns() + 100); // when the next one is due
    }
    EXPECT_EQ(p.frames(), 10u);
    EXPECT_EQ(p.missed(), 0u);
}

TEST(pacer, a_late_frame_is_missed_and_those_that_it_kept_from_being_rendered) {
    pacer p(0, 100);
    p.shown(101); // frame 0, late; frame 1 is due and begins at once
    EXPECT_EQ(p.frame(), 1u);
    EXPECT_EQ(p.missed(), 1u);
    p.shown(450); // frame 1; 2 and 3 were never begun
    EXPECT_EQ(p.frame(), 4u);
    EXPECT_EQ(p.missed(), 4u);
    p.shown(500); // frame 4, begun late and shown in time
    EXPECT_EQ(p.missed(), 4u);
    EXPECT_EQ(p.frames(), 5u);
    EXPECT_EQ(p.rendered(), 3u);
}

} // namespace
} // namespace kagemusha::frames
