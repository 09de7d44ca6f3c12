// SPDX-License-Identifier: GPL-2.0-or-later
#include "address_space.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace kagemusha::cuda {
namespace {

constexpr std::uint64_t base = 0x1000;

TEST(AddressSpace, TheSameCallsGiveTheSameAddresses) {
    address_space one(512), other(512);
    for (address_space* space : {&one, &other})
        space->add(base, 1 << 20);
    for (const std::uint64_t bytes : {1, 512, 513, 4096}) {
        const auto first = one.allocate(bytes);
        ASSERT_TRUE(first);
        EXPECT_EQ(first, other.allocate(bytes));
        EXPECT_EQ((*first - base) % 512, 0U);
    }
}

TEST(AddressSpace, AnAllocationIsFoundByEachOfItsBytesAndNoOther) {
    address_space space(512);
    space.add(base, 4096);
    ASSERT_EQ(space.allocate(100), base);
    EXPECT_FALSE(space.find(base - 1));
    EXPECT_EQ(space.find(base)->bytes, 100U);
    EXPECT_EQ(space.find(base + 99)->address, base);
    EXPECT_FALSE(space.find(base + 100));
}

TEST(AddressSpace, NeighboursAreJoinedWhenTheyAreFree) {
    address_space space(512);
    space.add(base, 2048);
    for (int i = 0; i < 4; ++i)
        ASSERT_TRUE(space.allocate(512));
    EXPECT_FALSE(space.allocate(1));
    EXPECT_TRUE(space.release(base + 512));
    EXPECT_TRUE(space.release(base + 1024));
    EXPECT_FALSE(space.release(base + 1024));
    EXPECT_EQ(space.allocate(1024), base + 512);
}

TEST(AddressSpace, OnlyWhatIsFreeCanBeTakenAway) {
    address_space space(512);
    space.add(base, 2048);
    ASSERT_EQ(space.allocate(512), base);
    EXPECT_FALSE(space.remove(base, 2048));
    EXPECT_TRUE(space.remove(base + 1024, 512));
    EXPECT_EQ(space.allocate(512), base + 512);
    EXPECT_EQ(space.allocate(512), base + 1536);
    EXPECT_FALSE(space.allocate(512));
}

TEST(AddressSpace, LengthsThatOverflowAreRefused) {
    address_space space(512);
    space.add(base, 2048);
    EXPECT_FALSE(space.allocate(0));
    EXPECT_FALSE(space.allocate(~std::uint64_t{0}));
    EXPECT_FALSE(space.allocate(~std::uint64_t{0} - 511));
}

TEST(AddressSpace, GivesTheHighestAddressesToWhoWantsTheLast) {
    address_space space(512);
    space.add(base, 4096);
    EXPECT_EQ(space.allocate_last(1), base + 3584);
    EXPECT_EQ(space.allocate_last(600), base + 2560);
    EXPECT_EQ(space.allocate(1), base);
    EXPECT_FALSE(space.allocate_last(2049));
    EXPECT_EQ(space.allocate_last(2048), base + 512); // all that was left
    EXPECT_FALSE(space.allocate_last(1));
    EXPECT_TRUE(space.release(base + 2560));
    EXPECT_EQ(space.allocate_last(512), base + 3072);
    EXPECT_FALSE(space.allocate_last(0));
    EXPECT_FALSE(space.allocate_last(~std::uint64_t{0}));
}

TEST(AddressSpace, RandomAllocationsNeverOverlapAndAllCanBeTakenBack) {
    constexpr std::uint64_t room = 1 << 20;
    address_space space(512);
    space.add(base, room);
    std::mt19937 random(7);
    std::map<std::uint64_t, std::uint64_t> held;
    for (int step = 0; step < 20000; ++step) {
        if (random() % 2 == 0) {
            const std::uint64_t bytes = 1 + random() % 20000;
            if (const auto at = random() % 2 == 0 ? space.allocate(bytes) : space.allocate_last(bytes)) {
                const auto next = held.lower_bound(*at);
                ASSERT_TRUE(next == held.end() || *at + bytes <= next->first);
                ASSERT_TRUE(next == held.begin() || std::prev(next)->first + std::prev(next)->second <= *at);
                ASSERT_LE(*at + bytes, base + room);
                held[*at] = bytes;
            }
        } else if (!held.empty()) {
            const auto one = std::next(held.begin(), static_cast<long>(random() % held.size()));
            ASSERT_TRUE(space.release(one->first));
            held.erase(one);
        }
    }
    for (const auto& [address, bytes] : held)
        ASSERT_TRUE(space.release(address));
    EXPECT_EQ(space.allocate(room), base);
}

} // namespace
} // namespace kagemusha::cuda
