// SPDX-License-Identifier: GPL-2.0-or-later
//
// Runs of changed bytes, against a comparison byte by byte.
#include "tracer/core/diff.h"

#include <gtest/gtest.h>
#include <random>
#include <vector>

namespace {

constexpr u32 page = 4096;

struct content {
    std::vector<u8> now = std::vector<u8>(page), before = std::vector<u8>(page);

    // What somebody else has found out.
    u64 blocks() const {
        u64 found = 0;
        for (u32 i = 0; i < now.size(); ++i)
            found |= static_cast<u64>(now[i] != before[i]) << i / KVT_BLOCK_BYTES;
        return found;
    }

    std::vector<std::pair<u32, u32>> runs(kvt_run whole = {0, 0}, bool has_before = true,
                                          u64 blocks = KVT_ALL_BLOCKS) const {
        const kvt_diff diff{now.data(), has_before ? before.data() : nullptr, static_cast<u32>(now.size()),
                            whole, blocks};
        std::vector<std::pair<u32, u32>> found;
        kvt_run run{};
        u32 at = 0;
        while (kvt_diff_next(&diff, at, &run)) {
            found.emplace_back(run.from, run.to);
            at = run.to;
        }
        return found;
    }
};

// What the header promises, slowly.
std::vector<std::pair<u32, u32>> model(const content& c, kvt_run whole) {
    std::vector<std::pair<u32, u32>> found;
    for (u32 i = 0; i < c.now.size(); ++i) {
        if (c.now[i] == c.before[i] && !(i >= whole.from && i < whole.to))
            continue;
        if (!found.empty() && i - found.back().second < KVT_MERGE_GAP)
            found.back().second = i + 1;
        else
            found.emplace_back(i, i + 1);
    }
    return found;
}

using runs = std::vector<std::pair<u32, u32>>;

TEST(diff, nothing_changed_gives_nothing) {
    EXPECT_EQ(content().runs(), runs{});
    EXPECT_EQ(content().runs({0, 0}, false), runs{});
}

TEST(diff, single_bytes_at_every_position) {
    for (u32 i = 0; i < page; ++i) {
        content c;
        c.now[i] = 1;
        ASSERT_EQ(c.runs(), (runs{{i, i + 1}}));
    }
}

TEST(diff, gaps_up_to_the_cost_of_a_run_are_sent) {
    content c;
    c.now[100] = c.now[100 + KVT_MERGE_GAP] = 1;
    EXPECT_EQ(c.runs(), (runs{{100, 101 + KVT_MERGE_GAP}}));
    c.now[100 + KVT_MERGE_GAP] = 0;
    c.now[101 + KVT_MERGE_GAP] = 1;
    EXPECT_EQ(c.runs(), (runs{{100, 101}, {101 + KVT_MERGE_GAP, 102 + KVT_MERGE_GAP}}));
}

TEST(diff, what_is_whole_counts_as_changed) {
    content c;
    EXPECT_EQ(c.runs({10, 20}), (runs{{10, 20}}));
    EXPECT_EQ(c.runs({0, page}), (runs{{0, page}}));
    EXPECT_EQ(c.runs({0, page}, false), (runs{{0, page}}));
    EXPECT_EQ(c.runs({4000, page}, false), (runs{{4000, page}}));
    c.now[20 + KVT_MERGE_GAP - 1] = 1;
    EXPECT_EQ(c.runs({10, 20}), (runs{{10, 20 + KVT_MERGE_GAP}}));
    c.now[20 + KVT_MERGE_GAP + 10] = 1;
    EXPECT_EQ(c.runs({10, 20}).size(), 2u);
}

TEST(diff, blocks_that_are_known_to_be_equal_are_not_looked_at) {
    content c;
    c.now[63] = c.now[64] = c.now[128] = c.now[4095] = 1;
    EXPECT_EQ(c.runs({0, 0}, true, c.blocks()), (runs{{63, 65}, {128, 129}, {4095, 4096}}));
    EXPECT_EQ(c.runs({0, 0}, true, 1), (runs{{63, 65}}));
    EXPECT_EQ(c.runs({0, 0}, true, 1ull << 63), (runs{{4095, 4096}}));
    EXPECT_EQ(c.runs({0, 0}, true, 0), runs{});
    EXPECT_EQ(c.runs({100, 200}, true, 0), (runs{{100, 200}}));
}

TEST(diff, random_contents_agree_with_the_model) {
    std::mt19937 random(5);
    for (int round = 0; round < 20000; ++round) {
        content c;
        const u32 bytes = random() % 4 ? page : 1 + random() % page;
        c.now.resize(bytes);
        c.before.resize(bytes);
        for (u32 i = 0; i < bytes; ++i)
            c.now[i] = c.before[i] = static_cast<u8>(random() % 3);
        for (u32 spans = random() % 12; spans > 0; --spans) {
            const u32 from = random() % bytes;
            const u32 to = std::min<u32>(bytes, from + 1 + random() % (random() % 2 ? 8 : 300));
            for (u32 i = from; i < to; ++i)
                c.now[i] = static_cast<u8>(random() % 3); // some bytes stay as they were
        }
        kvt_run whole{0, 0};
        if (random() % 3 == 0) {
            whole.from = random() % bytes;
            whole.to = whole.from + random() % (bytes - whole.from + 1);
        }
        ASSERT_EQ(c.runs(whole), model(c, whole)) << "round " << round;
        if (bytes == page)
            ASSERT_EQ(c.runs(whole, true, c.blocks()), model(c, whole)) << "round " << round;
    }
}

} // namespace
