// SPDX-License-Identifier: GPL-2.0-or-later
// A disk's copy for a secondary: what share of the disk it takes, and whose image lacks only what was kept
// (qemu-device/checkpoint-disk-stream.h).
#include <gtest/gtest.h>

#include "qemu-device/checkpoint-disk-stream.h"

namespace {

constexpr std::int64_t read_us = 1000;

// A copy that reads for read_us each time, beside requests that take `busy_us` of every 100 ms: its share.
double share_of_copy(std::int64_t busy_us) {
    CheckpointDiskPace pace{};
    std::int64_t now = 0, read = 0, next_request = 0, request_ends = -1;
    for (now = 0; now < 10'000'000;) {
        const std::int64_t ends = now + read_us;
        read += read_us;
        std::int64_t rest_until = ends;
        bool looked = false;
        for (; now < ends || now < rest_until; now += 100) {
            if (busy_us != 0 && now >= next_request) {
                checkpoint_disk_pace_begin(&pace, now);
                request_ends = now + busy_us;
                next_request += 100'000;
            }
            if (request_ends >= 0 && now >= request_ends) {
                checkpoint_disk_pace_end(&pace, now);
                request_ends = -1;
            }
            if (!looked && now + 100 >= ends) {
                looked = true;
                rest_until = ends + checkpoint_disk_pace_rest(&pace, read_us, ends);
            }
        }
    }
    return static_cast<double>(read) / static_cast<double>(now);
}

TEST(checkpoint_disk_pace, beside_a_guest_that_rests_the_copy_does_not) {
    EXPECT_EQ(share_of_copy(0), 1.0);
}

TEST(checkpoint_disk_pace, a_guest_that_never_rests_keeps_four_fifths) {
    CheckpointDiskPace pace{};
    checkpoint_disk_pace_begin(&pace, 0);
    for (std::int64_t now = read_us; now < 100 * read_us; now += 5 * read_us)
        EXPECT_NEAR(static_cast<double>(checkpoint_disk_pace_rest(&pace, read_us, now)), 4 * read_us,
                    4 * read_us / 1024 + 1);
}

TEST(checkpoint_disk_pace, in_between_it_is_in_between) {
    const double half = share_of_copy(50'000);
    EXPECT_GT(half, 0.3);
    EXPECT_LT(half, 0.9);
    EXPECT_GT(share_of_copy(10'000), half);
    EXPECT_LT(share_of_copy(90'000), half);
}

TEST(checkpoint_disk_pace, requests_that_overlap_count_once) {
    CheckpointDiskPace pace{};
    checkpoint_disk_pace_begin(&pace, 0);
    checkpoint_disk_pace_begin(&pace, 100);
    checkpoint_disk_pace_end(&pace, 200);
    checkpoint_disk_pace_end(&pace, 500);
    EXPECT_EQ(checkpoint_disk_pace_rest(&pace, 100, 1000), 200) << "busy for half of the time";
    EXPECT_EQ(checkpoint_disk_pace_rest(&pace, 100, 2000), 0) << "and not since";
}

TEST(checkpoint_disk_pace, a_rest_is_bounded) {
    CheckpointDiskPace pace{};
    checkpoint_disk_pace_begin(&pace, 0);
    EXPECT_EQ(checkpoint_disk_pace_rest(&pace, 60'000'000, 60'000'000), CHECKPOINT_DISK_MAX_REST_US);
    EXPECT_EQ(checkpoint_disk_pace_rest(&pace, 0, 60'000'001), 0);
    EXPECT_EQ(checkpoint_disk_pace_rest(&pace, 5, 60'000'001), 0) << "no time has passed";
}

TEST(checkpoint_disk_base, only_the_very_same) {
    EXPECT_TRUE(checkpoint_disk_base_fits("one", 4096, "one", 4096));
    EXPECT_FALSE(checkpoint_disk_base_fits("one", 4096, "two", 4096));
    EXPECT_FALSE(checkpoint_disk_base_fits("one", 4096, "one", 8192)) << "the disk has another size now";
    EXPECT_FALSE(checkpoint_disk_base_fits(nullptr, 4096, "one", 4096));
    EXPECT_FALSE(checkpoint_disk_base_fits("one", 4096, nullptr, 4096));
    EXPECT_FALSE(checkpoint_disk_base_fits("", 4096, "", 4096));
}

} // namespace
