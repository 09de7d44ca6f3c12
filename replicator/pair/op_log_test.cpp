// SPDX-License-Identifier: GPL-2.0-or-later
// The op log alone: what goes to the wire, whom it wakes, what it counts. Content: op_log_content_test.cpp.
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

TEST(op_log, numbers_entries_and_gives_their_streams_in_order) {
    harness h;
    for (std::uint64_t i = 0; i < 3; ++i)
        EXPECT_EQ(h.log.append(small_entry(i * 10)), i + 1);
    EXPECT_EQ(h.wakes, 1u); // one for the burst
    const auto events = h.events();
    ASSERT_EQ(events.size(), 3u);
    EXPECT_EQ(events[2].meta.sequence, 3u);
    log_sequence first = 1;
    outgoing o;
    ASSERT_TRUE(h.log.take_entries(first, 3, o));
    EXPECT_EQ(first, 4u);
    EXPECT_EQ(std::get<mirror::entries>(o.what).list.size(), 3u);
    const auto bytes = joined(o);
    const std::uint64_t expected[] = {0, 1, 10, 11, 20, 21};
    ASSERT_EQ(bytes.size(), sizeof(expected));
    EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof(expected)), 0);
    EXPECT_EQ(o.payload.size(), 1u); // gathered
    h.log.append(small_entry(0));
    EXPECT_EQ(h.wakes, 2u);
}

TEST(op_log, packed_streams_stand_in_order_with_all_else) {
    harness h;
    auto memory = pattern(100);
    packed_entry a(1, 5, 10), b(100, 1, 3), c(7, 40, 20);
    std::vector<std::uint64_t> expected;
    EXPECT_EQ(a.append(h.log), 1u);
    EXPECT_EQ(h.log.append(small_entry(77)), 2u);
    EXPECT_EQ(b.append(h.log), 3u);
    h.log.outcome(2, 0);
    EXPECT_EQ(c.append(h.log), 4u);
    EXPECT_EQ(h.log.appended(), 4u);
    EXPECT_EQ(h.log.entries(), 4u);
    EXPECT_EQ(h.log.bytes(), a.meta.stream_bytes + 16 + b.meta.stream_bytes + c.meta.stream_bytes);
    const auto events = h.events();
    ASSERT_EQ(events.size(), 5u);
    const log_sequence order[] = {1, 2, 3, 2, 4};
    for (std::size_t i = 0; i < 5; ++i)
        EXPECT_EQ(events[i].sequence, order[i]);
    EXPECT_EQ(events[3].what, log_event::kind::outcome);
    EXPECT_EQ(events[4].meta.op_count, 40u);
    EXPECT_EQ(events[4].meta.stream_bytes, c.meta.stream_bytes);
    for (const auto* words :
         {&a.stream, static_cast<std::vector<std::uint64_t>*>(nullptr), &b.stream, &c.stream}) {
        const auto two = small_entry(77).stream;
        const auto& from = words ? *words : two;
        expected.insert(expected.end(), from.begin(), from.end());
    }
    log_sequence first = 1;
    outgoing o;
    ASSERT_TRUE(h.log.take_entries(first, 4, o));
    EXPECT_EQ(first, 5u);
    EXPECT_EQ(words_of(joined(o)), expected);
}

// More than there is room for on the ring, and a stream that never has room there.
TEST(op_log, packed_streams_that_have_no_room_on_the_ring) {
    harness h;
    std::uint64_t count = 0;
    for (; count < 5000; ++count)
        EXPECT_EQ(packed_entry(count, 1, 20).append(h.log), count + 1);
    packed_entry large(count, 100, 327); // nearly VGPU_MAX_STREAM_BYTES, and no word is there twice
    EXPECT_EQ(large.append(h.log), count + 1);
    EXPECT_EQ(packed_entry(count + 1, 1, 20).append(h.log), count + 2);
    EXPECT_EQ(h.events().size(), 5002u);
    outgoing o;
    for (log_sequence first = 1; first <= count;) {
        ASSERT_TRUE(h.log.take_entries(first, count, o));
        std::uint64_t next = first - std::get<mirror::entries>(o.what).list.size() - 1;
        const auto words = words_of(joined(o));
        for (std::size_t at = 0; at < words.size(); at += 20)
            ASSERT_EQ(words[at + 1], next++);
    }
    log_sequence first = count + 1;
    ASSERT_TRUE(h.log.take_entries(first, first, o));
    EXPECT_EQ(words_of(joined(o)), large.stream);
}

TEST(op_log, what_is_on_the_ring_is_dropped_with_the_rest) {
    harness h;
    packed_entry e(1, 3, 8);
    e.append(h.log);
    h.log.drop(UINT64_MAX);
    EXPECT_EQ(h.log.entries(), 0u);
    EXPECT_EQ(h.log.bytes(), 0u);
    log_sequence first = 1;
    outgoing o;
    EXPECT_FALSE(h.log.take_entries(first, 1, o));
    EXPECT_EQ(e.append(h.log), 2u);
}

// A thread that spins is not woken; one that polls only for what another thread waits for.
TEST(op_log, wakes_whoever_does_not_look) {
    using attention = op_log::attention;
    harness h;
    auto memory = pattern(100'000);
    std::vector<log_event> events;
    const auto small = [&] {
        packed_entry(1, 1, 4).append(h.log);
        h.log.tell();
        return std::exchange(h.wakes, 0);
    };
    const auto with_content = [&] {
        h.log.append(guest_entry(memory, 2));
        return std::exchange(h.wakes, 0);
    };
    EXPECT_EQ(small(), 1u);
    EXPECT_EQ(small(), 0u) << "was told already";
    EXPECT_TRUE(h.log.has_events());
    h.log.take_events(events, attention::spins);
    EXPECT_FALSE(h.log.has_events());
    EXPECT_EQ(small(), 0u);
    EXPECT_EQ(with_content(), 0u);
    EXPECT_TRUE(h.log.has_events());
    h.log.take_events(events, attention::polls);
    EXPECT_EQ(events.size(), 2u);
    EXPECT_EQ(small(), 0u);
    EXPECT_EQ(with_content(), 1u);
    EXPECT_EQ(with_content(), 0u);
    h.log.take_events(events, attention::blocks);
    EXPECT_EQ(small(), 1u);
    h.log.take_events(events, attention::polls);
    h.log.synced(1);
    EXPECT_EQ(h.wakes, 1u);
}

TEST(op_log, dropping_gives_everything_back) {
    harness h;
    auto memory = pattern(100'000);
    for (int i = 0; i < 10; ++i) {
        h.log.append(small_entry(0));
        h.log.append(guest_entry(memory, 2));
    }
    EXPECT_EQ(h.log.entries(), 20u);
    EXPECT_EQ(h.log.bytes(), 10 * (16 + 16 + 100'000u));
    h.log.drop(5);
    EXPECT_EQ(h.log.entries(), 15u);
    EXPECT_TRUE(h.log.release_content(4)); // dropped: nobody touches it
    h.log.drop(UINT64_MAX);
    EXPECT_EQ(h.log.entries(), 0u);
    EXPECT_EQ(h.log.bytes(), 0u);
    EXPECT_EQ(h.log.append(small_entry(0)), 21u); // numbers go on
    log_sequence first = 1;
    outgoing o;
    ASSERT_TRUE(h.log.take_entries(first, 21, o)); // what was dropped is left out
    EXPECT_EQ(std::get<mirror::entries>(o.what).list.at(0).meta.sequence, 21u);
}

TEST(op_log, is_congested_until_a_quarter_is_free) {
    harness h({160, 1000});
    for (int i = 0; i < 9; ++i) {
        h.log.append(small_entry(0));
        EXPECT_FALSE(h.log.congested());
    }
    h.log.append(small_entry(0));
    EXPECT_TRUE(h.log.congested());
    h.log.drop(2);
    EXPECT_EQ(h.rooms, 0u);
    h.log.drop(3);
    EXPECT_EQ(h.rooms, 1u);
    h.log.drop(4);
    EXPECT_EQ(h.rooms, 1u);
}

// Device and replication thread at once; what arrives is exactly what was appended, in order.
TEST(op_log, two_threads) {
    constexpr std::uint64_t count = 200'000;
    std::atomic<bool> woken = false;
    op_log log({std::uint64_t{1} << 40, std::uint64_t{1} << 40},
               {[&] { woken = true; }, [](log_sequence) {}, [] {}});
    std::thread device([&] {
        for (std::uint64_t i = 0; i < count; ++i)
            log.append(small_entry(i));
    });
    std::uint64_t next = 0;
    std::vector<log_event> events;
    while (next < count) {
        if (!woken.exchange(false)) {
            std::this_thread::yield();
            continue;
        }
        log.take_events(events);
        if (events.empty())
            continue; // what this was woken for came with what it took before
        log_sequence first = events.front().sequence;
        const log_sequence last = events.back().sequence;
        outgoing o;
        while (first <= last && log.take_entries(first, last, o)) {
            const auto bytes = joined(o);
            for (std::size_t at = 0; at < bytes.size(); at += 16, ++next) {
                std::uint64_t word;
                std::memcpy(&word, bytes.data() + at, 8);
                ASSERT_EQ(word, next);
            }
            log.drop(first - 1);
        }
    }
    device.join();
    EXPECT_EQ(log.entries(), 0u);
}

// The same over the ring. Who takes sleeps until he is woken: a wake that is lost ends this test by its time.
TEST(op_log, two_threads_and_packed_streams) {
    constexpr std::uint64_t count = 100'000;
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t wakes = 0;
    op_log log({std::uint64_t{1} << 40, std::uint64_t{1} << 40}, {[&] {
                                                                      const std::lock_guard lock(mutex);
                                                                      ++wakes;
                                                                      changed.notify_all();
                                                                  },
                                                                  [](log_sequence) {}, [] {}});
    std::thread device([&] {
        std::mt19937_64 random(1);
        for (std::uint64_t i = 0; i < count;) {
            for (std::uint64_t n = std::min(count - i, random() % 20 + 1); n != 0; --n, ++i)
                if (random() % 100 == 0)
                    log.append(small_entry(i));
                else
                    packed_entry(i, 1, 2).append(log);
            log.tell();
        }
    });
    std::uint64_t next = 0, seen = 0;
    std::vector<log_event> events;
    while (next < count) {
        {
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return wakes != seen; });
            seen = wakes;
        }
        log.take_events(events);
        if (events.empty())
            continue;
        log_sequence first = events.front().sequence;
        const log_sequence last = events.back().sequence;
        outgoing o;
        while (first <= last && log.take_entries(first, last, o)) {
            const auto words = words_of(joined(o));
            for (std::size_t at = 0; at < words.size(); at += 2, ++next) {
                const bool plain = words[at] == next; // small_entry()
                if (!plain)
                    ASSERT_EQ(words[at + 1], next);
            }
            log.drop(first - 1);
        }
    }
    device.join();
    EXPECT_EQ(log.entries(), 0u);
    EXPECT_EQ(log.bytes(), 0u);
}

} // namespace
} // namespace kagemusha::pair
