// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/log/sequence_ring.hpp"

#include <cstdint>

#include <gtest/gtest.h>

namespace kagemusha::mirror {
namespace {

TEST(sequence_ring_test, follows_its_size_and_finds_by_number) {
    sequence_ring<std::uint64_t> r;
    r.restart(100);
    EXPECT_EQ(r.end(), 100u);
    for (std::uint64_t s = 100; s < 5100; ++s)
        r.push_back(s * 3);
    EXPECT_EQ(r.capacity(), 8192u);
    for (std::uint64_t s = 100; s < 5099; ++s) {
        ASSERT_EQ(r[s], s * 3);
        ASSERT_EQ(r.front(), s * 3);
        r.pop_front();
        ASSERT_FALSE(r.contains(s));
    }
    EXPECT_EQ(r.size(), 1u);
    EXPECT_LE(r.capacity(), 16u);
    EXPECT_EQ(r[5099], 15297u);
}

} // namespace
} // namespace kagemusha::mirror
