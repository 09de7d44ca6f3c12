// SPDX-License-Identifier: GPL-2.0-or-later
// primary_shadow and guest memory that its log refers to: who waits for whom when the guest, or a command of
// it, reads into what a command before it writes from.
#include <poll.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "codec/cl_numbers.hpp"
#include "mirror/capture/late_writes.hpp"
#include "mirror/capture/primary_shadow_test.hpp"

namespace kagemusha::mirror {
namespace {

using namespace testing;

// ---- guest memory in use

struct uploads : instant_pair {
    uploads() {
        mirror->start_sync();
        set_up(*this, 1);
        run(1, [](auto& b) { b.create_buffer(60, context, large); });
        log.sending = true;
    }
    std::uint64_t upload(std::uint64_t event_id, std::uint64_t bytes = large) {
        stream_builder b;
        b.write_buffer({queue, event_id, {}}, 60, 0, b.payload(false, 0, 0, bytes));
        const std::uint64_t token = primary.submit(1, b);
        primary.dispatch();
        return token;
    }
    bool answered(std::uint64_t token) { return primary.answer_of(token) != nullptr; }
    void release(log_sequence n) {
        log.send(n);
        mirror->on_content_released(n);
    }
};

TEST(guest_memory, answer_and_completion_wait_until_the_log_has_the_content) {
    uploads p;
    const auto token = p.upload(event);
    EXPECT_FALSE(p.answered(token));
    EXPECT_TRUE(p.primary.records.empty());
    p.release(p.log.items.size());
    EXPECT_TRUE(p.answered(token));
    EXPECT_EQ(p.primary.records.size(), 1u);
}

TEST(guest_memory, nobody_waits_where_the_log_can_copy) {
    uploads p;
    p.log.sending = false;
    const auto token = p.upload(event);
    EXPECT_TRUE(p.answered(token));
    EXPECT_EQ(p.primary.records.size(), 1u);
    EXPECT_EQ(p.log.asked_to_release, std::vector<log_sequence>{p.log.items.size()}) << "once";
}

TEST(guest_memory, little_content_is_copied_at_once) {
    uploads p;
    p.primary.memory[5] = std::byte{9};
    const auto token = p.upload(event, copy_content_bytes);
    EXPECT_TRUE(p.answered(token));
    EXPECT_TRUE(p.log.asked_to_release.empty());
    p.primary.memory[5] = std::byte{1};
    p.replay.run();
    EXPECT_EQ(p.standby.content(1, context, 60, large)[5], std::byte{9});
}

TEST(guest_memory, every_entry_of_what_may_be_complete_is_waited_for) {
    uploads p;
    const auto first = p.upload(0);
    const log_sequence first_entry = p.log.items.size();
    const auto second = p.upload(event);
    const log_sequence second_entry = p.log.items.size();
    p.run(1, [](auto& b) { b.marker({queue, event + 1, {}}); });
    EXPECT_TRUE(p.primary.records.empty());
    p.release(second_entry);
    EXPECT_TRUE(p.answered(second));
    EXPECT_TRUE(p.primary.records.empty()) << "the queue is in order, so it tells of the first as well";
    p.release(first_entry);
    EXPECT_TRUE(p.answered(first));
    EXPECT_EQ(p.primary.records.size(), 2u);
}

TEST(guest_memory, an_event_that_is_older_than_the_content_does_not_wait_for_it) {
    uploads p;
    p.run(1, [](auto& b) { b.create_user_event(user_event, context); });
    p.run(1, [](auto& b) { b.create_queue(61, context); });
    p.run(1, [](auto& b) { b.marker({61, event, {user_event}}); });
    const auto token = p.upload(0);
    p.run(1, [](auto& b) { b.set_user_event(user_event, 0); });
    EXPECT_FALSE(p.answered(token));
    EXPECT_EQ(p.primary.records.size(), 1u);
}

TEST(guest_memory, a_request_with_several_contents_is_answered_once) {
    uploads p;
    stream_builder b;
    b.write_buffer({queue, 0, {}}, 60, 0, b.payload(false, 0, 0, large));
    const auto program = b.payload(false, 0, 0, 64);
    b.create_program(70, context, VGPU_PROGRAM_SOURCE, program);
    const std::uint64_t token = p.primary.submit(1, b);
    p.primary.dispatch();
    EXPECT_FALSE(p.answered(token));
    EXPECT_EQ(log_of(p).back(), "submit 1 = 0") << "the log has the outcome at once";
    p.release(p.log.items.size() - 1);
    EXPECT_TRUE(p.answered(token));
}

TEST(guest_memory, what_is_in_use_stays_so_when_the_mirror_stops) {
    uploads p;
    const auto token = p.upload(event);
    p.mirror->stop();
    EXPECT_FALSE(p.answered(token));
    p.release(p.log.items.size());
    EXPECT_TRUE(p.answered(token));
    EXPECT_EQ(p.primary.records.size(), 1u);
}

TEST(guest_memory, a_file_that_ends_waits_for_nothing) {
    uploads p;
    const auto token = p.upload(event);
    const log_sequence entry = p.log.items.size();
    p.close(1);
    EXPECT_TRUE(p.answered(token));
    p.release(entry); // late
    EXPECT_TRUE(p.answered(token));
}

// ---- reads into memory that is written from

struct overwritten : uploads {
    overwritten() {
        primary.memory[0] = std::byte{1};
        run(1, [](auto& b) { b.create_buffer(61, context, large); });
        run(1, [](auto& b) { b.fill_buffer({queue, 0, {}}, 61, 0, large, std::array{std::byte{2}}); });
    }
    std::uint64_t send(std::uint64_t read_at, std::uint64_t write_event = 0) {
        stream_builder b;
        b.write_buffer({queue, write_event, {}}, 60, 0, b.payload(false, 0, 0, large));
        b.read_buffer({queue, 0, {}}, 61, 0, b.payload(true, 0, read_at, 64));
        const auto token = primary.submit(1, b);
        primary.dispatch();
        return token;
    }
    int memory() const { return static_cast<int>(primary.memory[0]); }
    int standby_has() {
        replay.run();
        return static_cast<int>(standby.content(1, context, 60, large)[0]);
    }
};

TEST(guest_memory, a_read_waits_until_the_log_has_what_it_writes_over) {
    overwritten p;
    const auto write = p.upload(event);
    const log_sequence entry = p.log.items.size();
    stream_builder b;
    b.read_buffer({queue, event + 1, {}}, 61, 0, b.payload(true, 0, 0, 64));
    const auto read = p.primary.submit(1, b);
    const auto behind = p.primary.submit(1, stream_builder{}.marker({queue, event + 2, {}}));
    p.primary.dispatch();
    EXPECT_EQ(p.memory(), 1);
    EXPECT_FALSE(p.answered(read) || p.answered(behind));
    p.release(entry);
    p.primary.dispatch();
    EXPECT_EQ(p.memory(), 2);
    EXPECT_TRUE(p.answered(write) && p.answered(read) && p.answered(behind));
    EXPECT_EQ(p.primary.records.size(), 3u);
    EXPECT_EQ(p.standby_has(), 1);
}

TEST(guest_memory, a_read_in_the_request_of_the_write_that_it_writes_over) {
    overwritten p;
    const auto token = p.send(0);
    EXPECT_EQ(p.memory(), 1);
    EXPECT_FALSE(p.answered(token));
    p.release(p.log.items.size());
    p.primary.dispatch();
    EXPECT_EQ(p.memory(), 2);
    EXPECT_TRUE(p.answered(token));
    EXPECT_EQ(p.standby_has(), 1);
}

TEST(guest_memory, a_read_waits_for_nothing_that_the_log_can_copy_and_for_nothing_elsewhere) {
    overwritten p;
    p.log.sending = false;
    EXPECT_TRUE(p.answered(p.send(0)));
    EXPECT_EQ(p.memory(), 2);
    EXPECT_EQ(p.standby_has(), 1);
    p.log.sending = true;
    p.send(large); // the first byte behind it
    EXPECT_EQ(static_cast<int>(p.primary.memory[large]), 2) << "the read is done, the answer waits";
}

TEST(guest_memory, a_read_that_waits_goes_on_when_the_mirror_stops) {
    overwritten p;
    const auto token = p.send(0);
    const log_sequence entry = p.log.items.size();
    p.mirror->stop();
    EXPECT_EQ(p.memory(), 1) << "the log may still be sending";
    p.release(entry);
    p.primary.dispatch();
    EXPECT_EQ(p.memory(), 2);
    EXPECT_TRUE(p.answered(token));
}

// ---- writes from memory that is read into

struct late : uploads {
    late() { log.sending = false; }
    static constexpr std::uint64_t at = 8192;                             // in guest memory
    std::uint64_t send(stream_builder b) { return primary.submit(1, b); } // executed; its answer waits
    std::uint64_t read(guest_id event_id = 0, std::uint64_t bytes = 64) {
        stream_builder b;
        b.read_buffer({queue, event_id, {}}, 60, 0, b.payload(true, 0, at, bytes));
        return send(b);
    }
    std::uint64_t write(guest_id event_id = 0, std::uint64_t from = at, std::uint64_t bytes = 64) {
        stream_builder b;
        b.write_buffer({queue, event_id, {}}, buffer, 0, b.payload(false, 0, from, bytes));
        return send(b);
    }
    void memory_is(int value) { std::fill_n(primary.memory.begin() + at, large, std::byte(value)); }
    // What the standby's GPU gets; 0: it waits.
    int standby_has() {
        replay.run();
        if (replay.executed != log.items.size())
            return 0;
        return static_cast<int>(content(standby, 1)[0]);
    }
};

TEST(guest_memory, what_a_read_has_not_given_yet_is_not_sent) {
    late p;
    p.read();
    p.memory_is(1); // as it is before the read's bytes come
    p.write();
    EXPECT_EQ(p.standby_has(), 0) << "waits for them";
    p.memory_is(2);
    p.primary.dispatch();
    p.memory_is(3); // the guest uses its memory again
    EXPECT_EQ(p.standby_has(), 2);
}

TEST(guest_memory, what_is_read_elsewhere_or_answered_makes_nobody_wait) {
    late p;
    p.read();
    p.memory_is(1);
    p.write(0, p.at + 64);
    EXPECT_EQ(p.standby_has(), 1) << "the bytes behind the read's";
    std::fill_n(p.primary.memory.begin() + p.at - 64, 64, std::byte{9});
    p.write(0, p.at - 64);
    EXPECT_EQ(p.standby_has(), 9) << "… and before them";
    p.primary.dispatch();
    p.memory_is(4);
    p.write();
    EXPECT_EQ(p.standby_has(), 4) << "the read has ended";
}

TEST(late_writes, a_write_waits_for_each_read_that_it_overlaps_or_for_its_own_end) {
    const std::vector<std::byte> bytes(96);
    const std::span all(bytes);
    for (const std::uint64_t last : {2u, 4u}) {
        late_writes w;
        w.reads_into(1, {all.first(32)});
        w.reads_into(2, {all.subspan(16, 48)});
        w.reads_into(3, {all.subspan(64)});
        w.add({4, 0, 9, 0, {all.subspan(24, 40)}, {}, 0, {}});
        std::vector<log_sequence> given;
        const auto give = [&](const late_writes::write& x) { given.push_back(x.entry); };
        w.on_done(3, give);
        w.on_done(1, give);
        EXPECT_TRUE(given.empty());
        w.on_done(last, give);
        EXPECT_EQ(given, std::vector<log_sequence>{9});
        w.on_done(6 - last, give);
        EXPECT_EQ(given.size(), 1u) << "once";
        EXPECT_TRUE(w.empty());
    }
}

TEST(late_writes, overlaps_are_found_in_scattered_memory) {
    std::mt19937 random(11);
    std::vector<std::byte> memory(256);
    for (int round = 0; round < 2000; ++round) {
        late_writes w;
        std::vector<bool> is_read(memory.size());
        const auto pieces = [&](unsigned most, auto&& f) {
            guest_memory out;
            for (unsigned n = random() % most; n != 0; --n) {
                const std::size_t at = random() % memory.size(),
                                  bytes = 1 + random() % std::min<std::size_t>(8, memory.size() - at);
                out.push_back(std::span(memory).subspan(at, bytes));
                for (std::size_t i = at; i < at + bytes; ++i)
                    f(i);
            }
            return out;
        };
        bool expected = false;
        w.reads_into(1, pieces(12, [&](std::size_t i) { is_read[i] = true; }));
        w.reads_into(2, pieces(12, [&](std::size_t i) { is_read[i] = true; }));
        const auto from = pieces(6, [&](std::size_t i) { expected |= is_read[i]; });
        EXPECT_EQ(w.is_read_into(from), expected) << "round " << round;
    }
}

TEST(late_writes, events_that_tell_a_writes_end) {
    const std::vector<std::byte> memory(64);
    for (const bool in_order : {true, false}) {
        SCOPED_TRACE(in_order);
        late_writes w;
        w.reads_into(1, {std::span(memory)});
        w.add({2, 0, 5, 0, {std::span(memory)}, {}, 0, {}});
        stream_builder b, behind;
        b.marker({queue, event, {}});
        b.write_buffer({queue, event + 1, {}}, buffer, 0, b.payload(false, 0, 0, 64));
        b.marker({queue, event + 2, {}}).marker({queue + 1, event + 3, {}});
        behind.marker({queue, event + 4, {}});
        const auto any = [&](std::uint64_t) { return in_order; };
        w.note_events(2, b.stream(), b.payloads(), any);
        w.note_events(3, behind.stream(), behind.payloads(), any);
        for (const auto& [told, ends] : {std::pair<guest_id, bool>{event, false},
                                         {event + 1, true},
                                         {event + 2, in_order},
                                         {event + 3, false},
                                         {event + 4, in_order}}) {
            late_writes copy = w;
            log_sequence given = 0;
            copy.on_completion(told, [&](const late_writes::write& x) { given = x.entry; });
            EXPECT_EQ(given, ends ? 5u : 0u) << told;
            EXPECT_EQ(copy.empty(), ends) << told;
        }
    }
}

TEST(guest_memory, a_read_and_a_write_in_one_request) {
    late p;
    stream_builder b;
    const auto to = b.payload(true, 0, p.at, 64), from = b.payload(false, 0, p.at, 64),
               other = b.payload(false, 0, 65536, large);
    b.read_buffer({queue, 0, {}}, 60, 0, to).write_buffer({queue, 0, {}}, buffer, 0, from);
    b.write_buffer({queue, 0, {}}, 60, 0, other);
    p.send(b);
    p.memory_is(2);
    EXPECT_EQ(p.standby_has(), 0);
    p.primary.dispatch();
    EXPECT_EQ(p.standby_has(), 2);
    // the other way round there is nothing to wait for
    stream_builder c;
    const auto first = c.payload(false, 0, p.at, 64), then = c.payload(true, 0, p.at, 64);
    c.write_buffer({queue, 0, {}}, buffer, 0, first).read_buffer({queue, 0, {}}, 60, 0, then);
    p.memory_is(5);
    p.send(c);
    EXPECT_EQ(p.standby_has(), 5);
}

TEST(guest_memory, nobody_waits_for_a_read_that_may_wait_for_the_guest) {
    late p;
    p.run(1, [](auto& b) { b.create_user_event(user_event, context); });
    p.read();
    p.memory_is(1);
    p.write();
    EXPECT_EQ(p.standby_has(), 1) << "a digest repairs what is old";
}

TEST(guest_memory, a_write_that_waits_ends_with_its_file_and_with_the_mirror) {
    {
        late p;
        p.read();
        p.write();
        p.close(1);
        EXPECT_TRUE(p.log.at(p.log.items.size() - 1).canceled);
        p.replay.run();
        EXPECT_EQ(p.replay.executed, p.log.items.size());
    }
    late p;
    p.read();
    p.write();
    p.mirror->stop();
    p.primary.dispatch();
    EXPECT_FALSE(p.log.items.back().all_came());
}

} // namespace
} // namespace kagemusha::mirror
