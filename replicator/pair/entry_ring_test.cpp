// SPDX-License-Identifier: GPL-2.0-or-later
#include "pair/entry_ring.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <thread>
#include <vector>

namespace kagemusha::pair {
namespace {

using record = std::vector<std::uint64_t>;

bool put(entry_ring& ring, const record& r, std::size_t reserved) {
    std::uint64_t* const at = ring.reserve(reserved);
    if (at) {
        std::copy(r.begin(), r.end(), at);
        ring.publish(r.size());
    }
    return at != nullptr;
}

TEST(entry_ring, gives_what_was_put_and_nothing_else) {
    entry_ring ring(16);
    EXPECT_FALSE(ring.has_records());
    EXPECT_TRUE(ring.front().empty());
    ASSERT_TRUE(put(ring, {1, 2, 3}, 5));
    EXPECT_TRUE(ring.has_records());
    const auto r = ring.front();
    EXPECT_EQ(record(r.begin(), r.end()), record({1, 2, 3}));
    ring.pop();
    EXPECT_FALSE(ring.has_records());
    EXPECT_TRUE(ring.front().empty());
}

TEST(entry_ring, refuses_what_has_no_room) {
    entry_ring ring(16);
    EXPECT_EQ(ring.reserve(8), nullptr) << "more than a half might never fit in one piece";
    EXPECT_TRUE(put(ring, {1, 2, 3, 4, 5, 6, 7}, 7));
    EXPECT_TRUE(put(ring, {1, 2, 3, 4, 5, 6, 7}, 7));
    EXPECT_EQ(ring.reserve(1), nullptr);
    ring.front();
    ring.pop();
    EXPECT_NE(ring.reserve(1), nullptr);
}

// Every length, every place where the memory ends.
TEST(entry_ring, random_records_like_a_queue) {
    std::mt19937_64 random(1);
    for (int run = 0; run < 200; ++run) {
        entry_ring ring(64);
        std::deque<record> model;
        std::uint64_t next = 0, refused = 0;
        for (int step = 0; step < 500; ++step) {
            if (random() % 2 == 0) {
                record r(1 + random() % 31);
                for (std::uint64_t& w : r)
                    w = next++;
                if (put(ring, r, std::min<std::size_t>(31, r.size() + random() % 4)))
                    model.push_back(r);
                else
                    ++refused;
            } else {
                const auto got = ring.front();
                ASSERT_EQ(got.empty(), model.empty());
                if (!model.empty()) {
                    ASSERT_EQ(record(got.begin(), got.end()), model.front());
                    model.pop_front();
                    ring.pop();
                }
            }
            ASSERT_EQ(ring.has_records(), !model.empty());
        }
        EXPECT_NE(refused, 0u);
    }
}

TEST(entry_ring, two_threads) {
    constexpr std::uint64_t count = 300'000;
    entry_ring ring(256);
    std::thread writer([&] {
        std::mt19937_64 random(2);
        for (std::uint64_t i = 0; i < count;) {
            const record r(1 + random() % 20, i);
            if (put(ring, r, 20))
                ++i;
            else
                std::this_thread::yield();
        }
    });
    for (std::uint64_t i = 0; i < count;) {
        const auto r = ring.front();
        if (r.empty()) {
            std::this_thread::yield();
            continue;
        }
        for (const std::uint64_t w : r)
            ASSERT_EQ(w, i);
        ring.pop();
        ++i;
    }
    writer.join();
}

} // namespace
} // namespace kagemusha::pair
