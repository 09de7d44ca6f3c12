// SPDX-License-Identifier: GPL-2.0-or-later
//
// Runs as the tracer writes them down, read by the device's own decoder.
#include "tracer/core/runs.h"

#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "codec/decode.hpp"
#include "codec/encode.hpp"

namespace {

using namespace kagemusha::codec;

struct place {
    std::uint64_t offset;
    u32 bytes;
    friend bool operator==(const place&, const place&) = default;
};
using places = std::vector<place>;

constexpr u32 no_limit = VGPU_MAX_RUNS;

struct encoder {
    std::vector<u8> bytes;
    kvt_runs runs;
    std::uint64_t end = 0;
    u32 data_bytes = 0;

    explicit encoder(u32 capacity = VGPU_MAX_RUN_BYTES, u32 max_count = no_limit) : bytes(capacity) {
        kvt_runs_begin(&runs, bytes.data(), capacity, max_count);
    }
    bool add(const place& p) {
        if (!kvt_runs_add(&runs, p.offset - end, p.bytes))
            return false;
        end = p.offset + p.bytes;
        data_bytes += p.bytes;
        return true;
    }
};

// What the device makes of it.
places decoded(encoder& e) {
    const u32 used = kvt_runs_end(&e.runs);
    EXPECT_LE(used, e.bytes.size());
    stream_builder b;
    b.write_runs(1, 2, std::vector<std::byte>(e.data_bytes), std::as_bytes(std::span(e.bytes)).first(used));
    stream_decoder decoder(b.stream(), {});
    op o;
    places found;
    if (decoder.next(o) != decode_status::op) {
        ADD_FAILURE() << decoder.error().message;
        return found;
    }
    std::get<op_write_runs>(o).runs.for_each(
        [&](const buffer_run& r) { found.push_back({r.offset, r.bytes}); });
    return found;
}

u32 bytes_of(const places& list) {
    encoder e;
    for (const place& p : list)
        EXPECT_TRUE(e.add(p));
    EXPECT_EQ(decoded(e), list);
    return e.runs.used;
}

TEST(runs, one_run) {
    EXPECT_EQ(bytes_of({{0, 1}}), 2u);
    EXPECT_EQ(bytes_of({{31, 127}}), 2u);
    EXPECT_EQ(bytes_of({{32, 128}}), 4u);
}

TEST(runs, regular_runs_cost_nothing) {
    places list;
    for (u32 i = 0; i < 500; ++i)
        list.push_back({17 + i * 4096, 1});
    EXPECT_LE(bytes_of(list), 9u);
}

TEST(runs, equal_lengths_are_not_repeated) {
    EXPECT_EQ(bytes_of({{0, 8}, {1000, 8}, {5000, 8}}), 2u + 2 + 2);
}

TEST(runs, what_touches_is_one_run) {
    encoder e;
    EXPECT_TRUE(e.add({10, 4}));
    EXPECT_TRUE(e.add({14, 4}));
    EXPECT_TRUE(e.add({18, 1}));
    EXPECT_EQ(decoded(e), (places{{10, 9}}));
}

TEST(runs, a_command_that_is_full_takes_no_more_and_stays_valid) {
    std::mt19937 random(3);
    encoder by_count(VGPU_MAX_RUN_BYTES, 3), by_bytes(100);
    places in_bytes;
    EXPECT_TRUE(by_count.add({0, 1}) && by_count.add({5, 1}) && by_count.add({9, 1}));
    EXPECT_FALSE(by_count.add({20, 1}));
    EXPECT_EQ(decoded(by_count), (places{{0, 1}, {5, 1}, {9, 1}}));
    for (std::uint64_t at = 0;;) {
        const place p{at + 1 + random() % 500'000'000, 1 + static_cast<u32>(random() % 100)};
        if (!by_bytes.add(p))
            break;
        in_bytes.push_back(p);
        at = by_bytes.end;
    }
    EXPECT_GT(in_bytes.size(), 10u);
    EXPECT_EQ(decoded(by_bytes), in_bytes);
}

TEST(runs, any_distance_can_be_written_down_but_the_last_quarter) {
    const places far{{(1ull << 32) + 5, 1}, {1ull << 61, 100}};
    EXPECT_EQ(bytes_of(far), 5u + 1 + 9 + 1);
    encoder e;
    EXPECT_TRUE(e.add({(1ull << 62) - 1, 1}));
    EXPECT_FALSE(e.add({~std::uint64_t{0} - 9, 1})) << "a command of its own";
    EXPECT_EQ(decoded(e), (places{{(1ull << 62) - 1, 1}}));
}

TEST(runs, the_longest_run_needs_no_more_than_was_said) {
    encoder e(2 * KVT_RUN_MAX_BYTES);
    const places list{{1ull << 60, 1u << 13}, {1ull << 61, 1}};
    EXPECT_TRUE(e.add(list[0]) && e.add(list[1]));
    EXPECT_EQ(decoded(e), list);
}

TEST(runs, random_ones_come_back_as_they_were) {
    std::mt19937 random(7);
    for (int round = 0; round < 5000; ++round) {
        encoder e;
        places list;
        const u32 lengths = 1 + random() % 3, gaps = 1 + random() % 4;
        for (u32 i = random() % 300; i > 0; --i) {
            const std::uint64_t gap =
                random() % 50 == 0 ? random() % (1u << 30) : 1 + random() % gaps * (random() % 9 ? 7 : 4096);
            const place p{e.end + gap, 1 + static_cast<u32>(random()) % lengths};
            if (e.data_bytes + p.bytes > VGPU_MAX_INLINE_PAYLOAD_BYTES || !e.add(p))
                break;
            list.push_back(p);
        }
        if (!list.empty())
            ASSERT_EQ(decoded(e), list) << "round " << round;
    }
}

} // namespace
