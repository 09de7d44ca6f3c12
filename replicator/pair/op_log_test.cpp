// SPDX-License-Identifier: GPL-2.0-or-later
// The op log alone: what goes to the wire, whose memory it refers to, what it counts.
#include "pair/op_log.hpp"

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "mirror/log/limits.hpp"
#include "mirror/log/packed_stream.hpp"

namespace kagemusha::pair {
namespace {

using mirror::log_entry;

struct harness {
    unsigned wakes = 0, rooms = 0, copies_wanted = 0;
    std::vector<log_sequence> released;
    op_log log;

    // Somebody calls copy_ahead(): the test.
    static harness with_copier() { return harness({std::uint64_t{1} << 30, 1 << 20}, true); }

    explicit harness(op_log::bounds b = {std::uint64_t{1} << 30, 1 << 20}, bool copier = false)
        : log(b, {[this] { ++wakes; }, [this](log_sequence n) { released.push_back(n); }, [this] { ++rooms; },
                  copier ? [this] { ++copies_wanted; } : std::function<void()>()}) {}

    std::vector<log_event> events() {
        std::vector<log_event> e;
        log.take_events(e);
        return e;
    }
};

log_entry small_entry(std::uint64_t word) {
    log_entry e;
    e.meta.file = 1;
    e.meta.op_count = 1;
    e.stream = {word, word + 1};
    e.meta.stream_bytes = 16;
    return e;
}

// A stream of commands, each of `words` words that count on from `first`, packed as a device gives it.
struct packed_entry {
    mirror::entry_meta meta;
    std::vector<std::uint64_t> stream;
    mirror::stream_packer packer;

    packed_entry(std::uint64_t first, std::size_t commands, std::size_t words) {
        for (std::size_t i = 0; i < commands; ++i) {
            const vgpu_cmd header{VGPU_CMD_BARRIER, 0, static_cast<std::uint32_t>(words * 8)};
            stream.emplace_back();
            std::memcpy(&stream.back(), &header, sizeof(header));
            for (std::size_t w = 1; w < words; ++w)
                stream.push_back(first++);
        }
        packer.begin();
        const std::size_t literal = words <= core::word_mask::words ? words : stream.size();
        packer.add_literal(std::span(stream).first(literal));
        if (literal < stream.size()) {
            core::launch_run others;
            others.at = others.back = others.words = static_cast<std::uint32_t>(words);
            others.count = static_cast<std::uint32_t>(commands - 1);
            for (std::size_t w = 1; w < words; ++w)
                others.differs.set(w);
            packer.add_run(others, others.back, std::span(stream).subspan(words));
        }
        meta.file = 1;
        meta.op_count = static_cast<std::uint32_t>(commands);
        meta.stream_bytes = stream.size() * 8;
    }
    log_sequence append(op_log& log) { return log.append_packed(meta, packer.packed()); }
};

std::vector<std::uint64_t> words_of(const std::vector<std::byte>& bytes) {
    std::vector<std::uint64_t> out(bytes.size() / 8);
    std::memcpy(out.data(), bytes.data(), out.size() * 8);
    return out;
}

// One payload of guest memory, scattered over `pieces` pages.
log_entry guest_entry(std::vector<std::byte>& memory, std::size_t pieces) {
    log_entry e = small_entry(100);
    e.payloads.push_back({memory.size(), false});
    e.content.emplace_back();
    const std::size_t step = memory.size() / pieces;
    for (std::size_t i = 0; i < pieces; ++i) {
        e.content[0].pieces.emplace_back(memory.data() + i * step,
                                         i + 1 == pieces ? memory.size() - i * step : step);
    }
    e.content_in_guest = true;
    e.meta.content_bytes = mirror::rounded_up(memory.size());
    return e;
}

std::vector<std::byte> pattern(std::size_t bytes) {
    std::vector<std::byte> m(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
        m[i] = static_cast<std::byte>(i * 7 + i / 256);
    return m;
}

std::vector<std::byte> joined(const outgoing& o) {
    std::vector<std::byte> all;
    for (const auto& p : o.payload)
        all.insert(all.end(), p.begin(), p.end());
    return all;
}

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
    auto memory = pattern(10'000'000);
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
        EXPECT_LE(c.bytes, mirror::content_piece_bytes);
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
    auto memory = pattern(10'000'000); // three pieces
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
    auto memory = pattern(5'000'000);
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
