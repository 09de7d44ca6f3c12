// SPDX-License-Identifier: GPL-2.0-or-later
// The arena against a plain model of which bytes are taken, and from several threads.
#include "pair/arena.hpp"

#include <gtest/gtest.h>

#include <sys/mman.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace kagemusha::pair {
namespace {

constexpr std::uint32_t region = 7;

std::unique_ptr<arena> make(std::uint64_t bytes) {
    std::string error;
    auto a = arena::create("arena-test", bytes, region, error);
    EXPECT_TRUE(a) << error;
    return a;
}

void trim_all(arena& a, std::uint64_t now_ms) {
    while (a.trim_at_ms() <= now_ms)
        a.trim(now_ms);
}

TEST(arena, blocks_lie_where_their_segment_says) {
    auto a = make(1 << 20);
    mirror::agent_memory::block b;
    ASSERT_TRUE(a->allocate(1000, b));
    EXPECT_EQ(b.segment.region, region);
    EXPECT_EQ(b.segment.bytes, 1000u);
    EXPECT_EQ(b.bytes.data(), a->base() + b.segment.offset);
    EXPECT_EQ(b.bytes.size(), 1000u);
    b.keep.reset();
    EXPECT_EQ(a->used(), 0u);
}

TEST(arena, refuses_what_does_not_fit_and_nothing_at_all) {
    auto a = make(4096);
    mirror::agent_memory::block b, c;
    EXPECT_FALSE(a->allocate(0, b));
    EXPECT_FALSE(a->allocate(4097, b));
    EXPECT_FALSE(a->allocate(UINT64_MAX, b));
    ASSERT_TRUE(a->allocate(4096, b));
    EXPECT_FALSE(a->allocate(1, c));
    b.keep.reset();
    EXPECT_TRUE(a->allocate(4096, c));
}

// Random allocations never overlap, and everything is one free range again at the end.
TEST(arena, random_blocks_never_overlap) {
    constexpr std::uint64_t size = 1 << 18;
    auto a = make(size);
    std::mt19937_64 random(1);
    std::vector<mirror::agent_memory::block> live;
    std::vector<bool> taken(size);
    for (int i = 0; i < 5000; ++i) {
        if (!live.empty() && random() % 2) {
            std::swap(live[random() % live.size()], live.back());
            const auto& s = live.back().segment;
            std::fill_n(taken.begin() + static_cast<long>(s.offset), s.bytes, false);
            live.pop_back();
            continue;
        }
        mirror::agent_memory::block b;
        if (!a->allocate(1 + random() % 9000, b))
            continue;
        for (std::uint64_t at = 0; at < b.segment.bytes; ++at) {
            ASSERT_FALSE(taken[b.segment.offset + at]) << "step " << i;
            taken[b.segment.offset + at] = true;
        }
        live.push_back(std::move(b));
    }
    live.clear();
    mirror::agent_memory::block all;
    EXPECT_TRUE(a->allocate(size, all));
}

TEST(arena, memory_goes_back_to_the_host_when_it_was_empty_for_long) {
    auto a = make(std::uint64_t{256} << 20);
    mirror::agent_memory::block b;
    ASSERT_TRUE(a->allocate(std::uint64_t{64} << 20, b));
    std::memset(b.bytes.data(), 1, b.bytes.size());
    EXPECT_EQ(a->touched(), std::uint64_t{64} << 20);
    EXPECT_EQ(a->trim_at_ms(), UINT64_MAX);
    a->trim(1000);
    b.keep.reset();
    EXPECT_EQ(a->trim_at_ms(), 0u); // nobody has looked yet
    a->trim(2000);
    EXPECT_EQ(a->trim_at_ms(), 2000 + arena::keep_ms);
    a->trim(2000 + arena::keep_ms - 1);
    EXPECT_EQ(a->touched(), std::uint64_t{64} << 20);
    const std::uint64_t last = (std::uint64_t{64} << 20) - 1;
    EXPECT_EQ(a->base()[last], std::byte{1}); // the page is still there
    a->trim(2000 + arena::keep_ms);
    EXPECT_EQ(a->base()[last], std::byte{0}); // a hole reads as zeros
    // Piece by piece: giving back gigabytes takes long.
    EXPECT_GT(a->touched(), std::uint64_t{32} << 20);
    EXPECT_EQ(a->base()[a->touched() - 1], std::byte{1});
    EXPECT_EQ(a->trim_at_ms(), 2000 + arena::keep_ms); // at once
    trim_all(*a, 2000 + arena::keep_ms);
    EXPECT_LE(a->touched(), std::uint64_t{16} << 20);
    EXPECT_EQ(a->base()[std::uint64_t{20} << 20], std::byte{0});
    EXPECT_EQ(a->trim_at_ms(), UINT64_MAX);
}

TEST(arena, memory_that_is_used_again_while_it_goes_back_stays) {
    auto a = make(std::uint64_t{256} << 20);
    mirror::agent_memory::block b;
    ASSERT_TRUE(a->allocate(std::uint64_t{64} << 20, b));
    b.keep.reset();
    a->trim(0);
    a->trim(arena::keep_ms);
    ASSERT_TRUE(a->allocate(std::uint64_t{64} << 20, b));
    b.bytes.back() = std::byte{1};
    a->trim(2 * arena::keep_ms);
    EXPECT_EQ(b.bytes.back(), std::byte{1});
    EXPECT_EQ(a->trim_at_ms(), UINT64_MAX);
    b.keep.reset();
    a->trim(2 * arena::keep_ms);
    EXPECT_EQ(a->trim_at_ms(), 3 * arena::keep_ms);
}

TEST(arena, memory_of_this_process_alone_goes_back_too) {
    std::string error;
    const auto a = arena::create_private(std::uint64_t{256} << 20, error);
    ASSERT_TRUE(a) << error;
    EXPECT_EQ(a->fd(), -1);
    mirror::agent_memory::block b;
    ASSERT_TRUE(a->allocate(std::uint64_t{64} << 20, b));
    std::memset(b.bytes.data(), 1, b.bytes.size());
    b.keep.reset();
    a->trim(0);
    trim_all(*a, arena::keep_ms);
    EXPECT_EQ(a->base()[std::uint64_t{20} << 20], std::byte{0});
}

TEST(arena, pages_can_be_made_before_they_are_used) {
    const std::uint64_t page = 4096, bytes = std::uint64_t{64} << 20;
    auto a = make(bytes);
    a->populate(0, 2 * page);
    a->populate(bytes - page, 5 * page); // as much as there is
    std::vector<unsigned char> there(bytes / page);
    ASSERT_EQ(mincore(a->base(), bytes, there.data()), 0);
    EXPECT_EQ(there[0] & there[1] & there.back(), 1);
    EXPECT_EQ(there[2] & 1, 0);
    EXPECT_EQ(a->touched(), bytes); // goes back like what was used
}

TEST(arena, memory_that_is_used_now_and_then_stays) {
    auto a = make(std::uint64_t{256} << 20);
    for (std::uint64_t now = 0; now < 10 * arena::keep_ms; now += arena::keep_ms / 2) {
        mirror::agent_memory::block b;
        ASSERT_TRUE(a->allocate(std::uint64_t{64} << 20, b));
        b.bytes[4096] = std::byte{1};
        b.keep.reset();
        a->trim(now);
        ASSERT_EQ(a->base()[4096], std::byte{1});
    }
}

TEST(arena, blocks_end_on_any_thread_and_may_outlive_the_arena) {
    auto a = make(1 << 20);
    mirror::agent_memory::block survivor;
    ASSERT_TRUE(a->allocate(64, survivor));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&a, t] {
            for (int i = 0; i < 2000; ++i) {
                mirror::agent_memory::block b;
                if (a->allocate(64 + static_cast<std::uint64_t>(i % 7) * 100, b))
                    std::memset(b.bytes.data(), t, b.bytes.size());
            }
        });
    }
    for (auto& t : threads)
        t.join();
    EXPECT_EQ(a->used(), 64u);
    a.reset();
    survivor.bytes[0] = std::byte{1}; // still mapped
    survivor.keep.reset();
}

} // namespace
} // namespace kagemusha::pair
