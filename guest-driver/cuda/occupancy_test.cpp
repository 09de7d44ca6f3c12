// SPDX-License-Identifier: GPL-2.0-or-later
// Numbers of NVIDIA's occupancy calculator.
#include "occupancy.hpp"

#include <gtest/gtest.h>

namespace kagemusha::cuda {
namespace {

constexpr multiprocessor a100{80, 2048, 32, 65536, 164 << 10, 1024};

TEST(Occupancy, ThreadsAndTheListOfBlocksLimit) {
    EXPECT_EQ(blocks_that_fit(a100, {1024, 0, 0}), 2u);
    EXPECT_EQ(blocks_that_fit(a100, {256, 0, 0}), 8u);
    EXPECT_EQ(blocks_that_fit(a100, {32, 0, 0}), 32u);
    EXPECT_EQ(blocks_that_fit(a100, {33, 0, 0}), 32u);
    EXPECT_EQ(blocks_that_fit(a100, {769, 0, 0}), 2u);
    EXPECT_EQ(blocks_that_fit(a100, {0, 0, 0}), 0u);
}

TEST(Occupancy, RegistersAreHandedOutByWarps) {
    EXPECT_EQ(blocks_that_fit(a100, {256, 32, 0}), 8u);
    EXPECT_EQ(blocks_that_fit(a100, {256, 33, 0}), 6u); // 40 each: 12 warps of a scheduler
    EXPECT_EQ(blocks_that_fit(a100, {256, 64, 0}), 4u);
    EXPECT_EQ(blocks_that_fit(a100, {256, 255, 0}), 1u);
    EXPECT_EQ(blocks_that_fit(a100, {1024, 65, 0}), 0u);
}

TEST(Occupancy, SharedMemoryLimitsWithTheSystemsPart) {
    EXPECT_EQ(blocks_that_fit(a100, {64, 0, 40 << 10}), 4u);
    EXPECT_EQ(blocks_that_fit(a100, {64, 0, 41 << 10}), 3u);
    EXPECT_EQ(blocks_that_fit(a100, {64, 0, 163 << 10}), 1u);
    EXPECT_EQ(blocks_that_fit(a100, {64, 0, 164 << 10}), 0u);
}

TEST(Occupancy, WhatIsAvailableForEachFits) {
    for (std::uint64_t blocks = 1; blocks <= 32; ++blocks) {
        const std::uint64_t bytes = shared_bytes_for(a100, blocks);
        EXPECT_GE(blocks_that_fit(a100, {32, 0, bytes}), blocks);
        EXPECT_LT(blocks_that_fit({80, 2048, 64, 65536, 164 << 10, 1024}, {32, 0, bytes + 128}), blocks);
    }
    EXPECT_EQ(shared_bytes_for(a100, 0), 0u);
    EXPECT_EQ(shared_bytes_for(a100, 1000), 0u);
}

} // namespace
} // namespace kagemusha::cuda
