// SPDX-License-Identifier: GPL-2.0-or-later
#include "pair/standby_hold.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "pair/arena.hpp"

namespace kagemusha::pair {
namespace {

constexpr std::uint64_t hold_bytes = 4096;

mirror::entries::entry entry_of(log_sequence sequence, std::uint32_t file, std::uint64_t stream_bytes) {
    mirror::entries::entry e;
    e.meta.sequence = sequence;
    e.meta.file = file;
    e.meta.op_count = 1;
    e.meta.stream_bytes = stream_bytes;
    return e;
}

class hold : public testing::Test {
protected:
    hold() {
        std::string error;
        memory = arena::create("test", 1 << 20, standby_region, error);
        EXPECT_TRUE(memory) << error;
        held.emplace(*memory, standby_region, hold_bytes);
    }
    // Whether the bytes behind the message have a place. Then they come, and its entries are the log's.
    bool comes(const mirror::entries& m) {
        std::uint64_t bytes = 0;
        for (const auto& e : m.list)
            bytes += e.meta.stream_bytes;
        const auto where = held->on_payload(m, bytes);
        if (where.pieces.empty())
            return false;
        for (std::byte next{0}; const auto& piece : where.pieces)
            for (std::byte& b : piece)
                next = std::byte(std::to_integer<int>(b = next) + 1);
        EXPECT_EQ(held->on_message(m), "");
        held->keep(m.list.front().meta.sequence - 1, m.list.back().meta.sequence);
        return true;
    }

    static constexpr std::uint32_t standby_region = 1;
    std::unique_ptr<arena> memory;
    std::optional<standby_hold> held;
};

TEST_F(hold, each_entry_has_its_own_stream) {
    ASSERT_TRUE(comes({{entry_of(1, 1, 16), entry_of(2, 2, 8)}}));
    const auto first = held->take(1), second = held->take(2);
    ASSERT_EQ(first->stream().size(), 16u);
    ASSERT_EQ(second->stream().size(), 8u);
    EXPECT_EQ(first->stream().back(), std::byte{15});
    EXPECT_EQ(second->stream().front(), std::byte{16});
}

// The state machine has no room for an entry of what another one left that waits, here or with a worker; the hold
// has neither, and no less.
TEST_F(hold, an_entry_that_stays_keeps_nothing_but_itself) {
    ASSERT_TRUE(comes({{entry_of(1, 1, hold_bytes - 8), entry_of(2, 2, 8)}}));
    EXPECT_FALSE(comes({{entry_of(3, 1, 8)}}));
    held->take(1); // it was executed
    EXPECT_EQ(held->stream_bytes(), 8u);
    const auto waits = held->take(2);
    EXPECT_TRUE(comes({{entry_of(3, 1, hold_bytes - 8)}}));
    EXPECT_FALSE(comes({{entry_of(4, 1, 8)}}));
    held->skip(3);
    EXPECT_EQ(held->stream_bytes(), 8u);
}

TEST_F(hold, entries_without_a_stream_take_nothing) {
    const mirror::entries closes{{entry_of(1, 1, 0)}};
    EXPECT_EQ(held->on_message(closes), "");
    held->keep(0, 1);
    EXPECT_TRUE(held->take(1)->stream().empty());
    EXPECT_EQ(held->stream_bytes(), 0u);
}

} // namespace
} // namespace kagemusha::pair
