// SPDX-License-Identifier: GPL-2.0-or-later
// The op log's content: whose memory it refers to, when it is copied, and in which pieces it is sent.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "pair/op_log_test_helpers.hpp"

namespace kagemusha::pair {
namespace {

using namespace testing;
using harness = op_log_harness;

TEST(op_log, small_guest_content_is_copied_at_once) {
    harness h;
    auto memory = pattern(1001);
    const auto expected = memory;
    const auto n = h.log.append(guest_entry(memory, 3));
    EXPECT_TRUE(h.log.release_content(n));
    std::fill(memory.begin(), memory.end(), std::byte{0});
    log_sequence first = n;
    outgoing o;
    ASSERT_TRUE(h.log.take_entries(first, n, o));
    const auto bytes = joined(o);
    ASSERT_EQ(bytes.size(), 16u + 1008);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), bytes.begin() + 16));
    EXPECT_EQ(bytes.back(), std::byte{0}); // padding
}

TEST(op_log, guest_content_is_sent_from_where_it_is) {
    harness h;
    auto memory = pattern(100'000);
    const auto n = h.log.append(guest_entry(memory, 4));
    log_sequence first = n;
    outgoing o;
    ASSERT_TRUE(h.log.take_entries(first, n, o));
    ASSERT_EQ(o.payload.size(), 5u);
    EXPECT_EQ(o.payload[1].data(), memory.data());
    EXPECT_FALSE(h.log.release_content(n)); // being sent
    EXPECT_TRUE(h.released.empty());
    o = {};
    EXPECT_EQ(h.released, std::vector<log_sequence>{n});
    EXPECT_TRUE(h.log.release_content(n)); // was sent
}

TEST(op_log, guest_content_that_was_not_sent_is_copied_on_release) {
    harness h;
    auto memory = pattern(100'000);
    const auto expected = memory;
    const auto n = h.log.append(guest_entry(memory, 4));
    EXPECT_TRUE(h.log.release_content(n));
    std::fill(memory.begin(), memory.end(), std::byte{0});
    log_sequence first = n;
    outgoing o;
    ASSERT_TRUE(h.log.take_entries(first, n, o));
    const auto bytes = joined(o);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), bytes.begin() + 16));
    EXPECT_TRUE(h.log.release_content(n));
    o = {};
    EXPECT_TRUE(h.released.empty());
}

// A large payload goes behind its entry in pieces; each is released on its own.
TEST(op_log, large_content_becomes_pieces) {
    harness h;
    auto memory = pattern(5'000'000);
    const auto expected = memory;
    const auto n = h.log.append(guest_entry(memory, 1000));
    auto events = h.events();
    ASSERT_EQ(events.size(), 4u);
    EXPECT_NE(events[0].meta.flags & mirror::entry_late_content, 0u);
    EXPECT_EQ(events[0].meta.content_bytes, mirror::rounded_up(memory.size()));
    log_sequence first = n;
    outgoing o;
    ASSERT_TRUE(h.log.take_entries(first, n, o));
    EXPECT_EQ(joined(o).size(), 16u);
    std::vector<std::byte> got;
    outgoing pieces[3];
    mirror::content c{n, 0, 0, 0, 0};
    for (int i = 0; i < 3; ++i) {
        c.bytes = events[static_cast<std::size_t>(i) + 1].bytes;
        EXPECT_LE(c.bytes, mirror::sent_piece_bytes);
        if (i == 2) { // one piece is with the link, one was sent, the last waits
            pieces[0] = {};
            EXPECT_FALSE(h.log.release_content(n));
            pieces[1] = {};
            EXPECT_EQ(h.released, std::vector<log_sequence>{n});
            std::fill(memory.begin(), memory.end(), std::byte{0});
        }
        ASSERT_TRUE(h.log.take_content(c, pieces[i]));
        const auto bytes = joined(pieces[i]);
        got.insert(got.end(), bytes.begin(), bytes.end());
        c.offset += c.bytes;
    }
    EXPECT_EQ(got, expected);
    EXPECT_TRUE(h.log.release_content(n));
}

// Of what is large: the copier begins at the end, the link at the front, and the release waits for both.
TEST(op_log, large_content_is_copied_ahead_from_its_end) {
    harness h = harness::with_copier();
    auto memory = pattern(5'000'000); // three pieces
    const auto expected = memory;
    const auto n = h.log.append(guest_entry(memory, 1000));
    EXPECT_EQ(h.copies_wanted, 1u);
    const auto events = h.events();
    ASSERT_EQ(events.size(), 4u);
    EXPECT_TRUE(h.log.copy_ahead()); // the last one
    std::vector<std::byte> got;
    outgoing o[3];
    mirror::content c{n, 0, 0, events[1].bytes, 0};
    ASSERT_TRUE(h.log.take_content(c, o[0]));
    EXPECT_EQ(o[0].payload[0].data(), memory.data()); // sent from where it is
    EXPECT_FALSE(h.log.release_content(n));           // one with the link, one left
    o[0].payload.clear();
    o[0].keep.reset();
    EXPECT_TRUE(h.released.empty());
    EXPECT_TRUE(h.log.copy_ahead());
    EXPECT_EQ(h.released, std::vector<log_sequence>{n});
    EXPECT_FALSE(h.log.copy_ahead());
    std::fill(memory.begin(), memory.end(), std::byte{0});
    for (int i = 1; i < 3; ++i) {
        c.offset += c.bytes;
        c.bytes = events[static_cast<std::size_t>(i) + 1].bytes;
        ASSERT_TRUE(h.log.take_content(c, o[i]));
        const auto bytes = joined(o[i]);
        got.insert(got.end(), bytes.begin(), bytes.end());
    }
    EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.end() - static_cast<std::ptrdiff_t>(got.size())));
    EXPECT_EQ(h.log.bytes(), 16u); // the stream
}

TEST(op_log, the_link_may_take_everything_before_it_is_copied) {
    harness h = harness::with_copier();
    auto memory = pattern(4'000'000);
    const auto n = h.log.append(guest_entry(memory, 1));
    const auto events = h.events();
    ASSERT_EQ(events.size(), 3u);
    EXPECT_FALSE(h.log.release_content(n));
    outgoing o[2];
    ASSERT_TRUE(h.log.take_content({n, 0, 0, events[1].bytes, 0}, o[0]));
    ASSERT_TRUE(h.log.take_content({n, 0, events[1].bytes, events[2].bytes, 0}, o[1]));
    EXPECT_FALSE(h.log.copy_ahead());
    o[1] = {};
    EXPECT_TRUE(h.released.empty());
    o[0] = {};
    EXPECT_EQ(h.released, std::vector<log_sequence>{n});
}

TEST(op_log, whoever_waits_for_a_copy_is_told_when_everything_is_dropped) {
    for (const bool all : {true, false}) {
        harness h = harness::with_copier();
        auto memory = pattern(5'000'000);
        const auto n = h.log.append(guest_entry(memory, 1));
        EXPECT_FALSE(h.log.release_content(n));
        all ? h.log.drop(UINT64_MAX) : h.log.drop_content(n);
        EXPECT_EQ(h.released, std::vector<log_sequence>{n});
        EXPECT_FALSE(h.log.copy_ahead());
        EXPECT_TRUE(h.log.release_content(n));
    }
}

// Little is left: no other thread is worth it.
TEST(op_log, a_release_copies_the_little_that_is_left_itself) {
    harness h = harness::with_copier();
    auto memory = pattern(300'000);
    const auto expected = memory;
    const auto n = h.log.append(guest_entry(memory, 3));
    EXPECT_TRUE(h.log.release_content(n));
    std::fill(memory.begin(), memory.end(), std::byte{0});
    outgoing o;
    ASSERT_TRUE(h.log.take_content({n, 0, 0, 300'000, 0}, o));
    EXPECT_EQ(joined(o), expected);
}

// Device, copier and link at once. The device writes over its memory as soon as the log has let go of it.
TEST(op_log, three_threads_and_much_content) {
    constexpr std::uint64_t count = 200, bytes = 600'000;
    std::mutex mutex;
    std::condition_variable changed;
    log_sequence last_released = 0;
    std::uint64_t wakes = 0, copies = 0;
    bool over = false;
    const auto change = [&](auto&& f) {
        const std::lock_guard lock(mutex);
        f();
        changed.notify_all();
    };
    op_log log({std::uint64_t{1} << 40, std::uint64_t{1} << 40},
               {[&] { change([&] { ++wakes; }); },
                [&](log_sequence n) { change([&] { last_released = n; }); }, [] {},
                [&] { change([&] { ++copies; }); }});
    std::thread device([&] {
        std::vector<std::byte> memory(bytes);
        for (std::uint64_t i = 1; i <= count; ++i) {
            std::fill(memory.begin(), memory.end(), static_cast<std::byte>(i));
            const log_sequence n = log.append(guest_entry(memory, 7));
            if (!log.release_content(n)) {
                std::unique_lock lock(mutex);
                changed.wait(lock, [&] { return last_released == n; });
            }
        }
    });
    std::thread copier([&] {
        for (std::uint64_t seen = 0;;) {
            while (log.copy_ahead()) {
            }
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return copies != seen || over; });
            if (over)
                return;
            seen = copies;
        }
    });
    std::uint64_t seen = 0, received = 0;
    std::vector<log_event> events;
    while (received < count * bytes) {
        {
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return wakes != seen; });
            seen = wakes;
        }
        log.take_events(events);
        for (const log_event& e : events) {
            outgoing o;
            if (e.what != log_event::kind::late_content ||
                !log.take_content({e.sequence, e.payload, 0, e.bytes, 0}, o)) {
                continue;
            }
            for (const std::byte b : joined(o)) {
                if (b != static_cast<std::byte>(e.sequence)) {
                    ADD_FAILURE() << "entry " << e.sequence << " was written over before it was sent";
                    break;
                }
            }
            received += e.bytes;
        }
    }
    device.join();
    change([&] { over = true; });
    copier.join();
    EXPECT_EQ(received, count * bytes);
}

TEST(op_log, late_content_of_the_agent) {
    harness h;
    log_entry e = small_entry(1);
    e.meta.flags = mirror::entry_late_content | mirror::entry_agent;
    e.payloads = {{8, false}, {16, false}};
    e.meta.content_bytes = 24;
    const auto n = h.log.append(std::move(e));
    const auto memory = std::make_shared<std::vector<std::byte>>(pattern(16));
    h.log.late_content(n, 1, {{std::span(*memory)}, memory});
    EXPECT_EQ(memory.use_count(), 2); // the piece alone holds it
    const auto events = h.events();
    ASSERT_EQ(events.size(), 2u);
    EXPECT_EQ(events[1].payload, 1u);
    outgoing o;
    ASSERT_TRUE(h.log.take_content({n, 1, 0, 16, 0}, o));
    EXPECT_EQ(o.payload.at(0).data(), memory->data());
    o = {};
    EXPECT_EQ(memory.use_count(), 1);
}

// An acknowledged entry goes; what follows it late is still sent, or dropped by its own name.
TEST(op_log, late_content_stays_beyond_its_entry) {
    harness h;
    log_entry e = small_entry(1);
    e.meta.flags = mirror::entry_late_content;
    e.payloads = {{16, false}};
    e.meta.content_bytes = 16;
    const auto n = h.log.append(e), gone = h.log.append(e);
    h.log.drop(gone);
    EXPECT_EQ(h.log.bytes(), 0u);
    const auto memory = std::make_shared<std::vector<std::byte>>(pattern(16));
    h.log.late_content(n, 0, {{std::span(*memory).first(8)}, memory});
    h.log.drop_content(gone);
    h.log.late_content(gone, 0, {{std::span(*memory)}, memory});
    EXPECT_EQ(h.log.bytes(), 8u);
    outgoing o;
    EXPECT_FALSE(h.log.take_content({gone, 0, 0, 16, 0}, o));
    ASSERT_TRUE(h.log.take_content({n, 0, 0, 8, 0}, o));
    h.log.late_content(n, 0, {{std::span(*memory).last(8)}, memory});
    ASSERT_TRUE(h.log.take_content({n, 0, 8, 8, 0}, o));
    EXPECT_EQ(joined(o)[0], (*memory)[8]);
    EXPECT_EQ(h.log.bytes(), 0u);
}

TEST(op_log, an_entry_dropped_while_it_is_sent_still_releases) {
    harness h;
    auto memory = pattern(100'000);
    const auto n = h.log.append(guest_entry(memory, 2));
    log_sequence first = n;
    outgoing o;
    ASSERT_TRUE(h.log.take_entries(first, n, o));
    h.log.drop(UINT64_MAX);
    EXPECT_FALSE(h.log.release_content(n));
    o = {};
    EXPECT_EQ(h.released, std::vector<log_sequence>{n});
}

} // namespace
} // namespace kagemusha::pair
