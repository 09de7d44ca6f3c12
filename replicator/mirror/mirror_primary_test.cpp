// SPDX-License-Identifier: GPL-2.0-or-later
// mirror_primary around its files: state transfer in every phase, files that come and go meanwhile, outcomes,
// guest memory in use, digests, and that the mirror can be stopped anywhere.
#include "mirror/mirror_primary.hpp"

#include <poll.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "codec/cl_numbers.hpp"
#include "mirror/late_writes.hpp"
#include "mirror/test_pair.hpp"

namespace kagemusha::mirror {
namespace {

using namespace codec;
using testing::pair;
using lines = std::vector<std::string>;

enum : std::uint64_t { context = 1, queue, buffer, user_event, event = 100 };
constexpr std::uint64_t large = copy_content_bytes * 2; // stays in guest memory

// The log as "kind file" with the flags that count here.
lines log_of(const pair& p, std::size_t from = 0) {
    static constexpr const char* kinds[] = {"?", "open", "close", "submit", "lose", "reset"};
    lines out;
    for (std::size_t i = from; i < p.log.items.size(); ++i) {
        const auto& item = p.log.items[i];
        std::string line = kinds[static_cast<int>(item.entry.meta.kind)];
        line += item.entry.meta.file != 0 ? " " + std::to_string(item.entry.meta.file) : "";
        line += (item.entry.meta.flags & entry_agent) != 0 ? " agent" : "";
        if ((item.entry.meta.flags & entry_awaits_outcome) != 0) {
            line += item.canceled  ? " canceled"
                    : item.outcome ? " = " + std::to_string(*item.outcome)
                                   : " = ?";
        }
        out.push_back(line);
    }
    return out;
}

void set_up(pair& p, std::uint32_t file, bool with_memory = true) {
    p.open(file);
    p.run(file, [](auto& b) { b.create_context(context); });
    p.run(file, [](auto& b) { b.create_queue(queue, context); });
    if (with_memory) {
        p.run(file, [](auto& b) { b.create_buffer_inline(buffer, context, std::vector<std::byte>(64)); });
    }
}

stream_builder fill(std::byte value) {
    stream_builder b;
    b.fill_buffer({queue, 0, {}}, buffer, 0, 64, std::vector<std::byte>{value});
    return b;
}

std::vector<std::byte> content(testing::host& h, std::uint32_t file) {
    return h.content(file, context, buffer, 64);
}

bool tick_comes(pair& p) {
    pollfd fd{p.primary.device->poll_fd(), POLLIN, 0};
    return poll(&fd, 1, 20000) == 1;
}

// ---- state transfer

TEST(mirror_primary, a_standby_that_is_there_first_is_synced_at_once) {
    pair p(false); // no agent is needed
    p.mirror->start_sync();
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on);
    EXPECT_EQ(p.log.synced_at, std::vector<log_sequence>{1});
    set_up(p, 1);
    p.run(1, [](auto& b) { b.create_image_2d(50, context, 4, 4); }); // there are none here
    p.run(1, fill(std::byte{7}));
    p.close(1);
    EXPECT_EQ(log_of(p), (lines{"reset", "open 1", "submit 1 = 0", "submit 1 = 0", "submit 1 = 0",
                                "submit 1 = -59", "submit 1", "close 1"}));
    p.replay.run();
    EXPECT_EQ(p.replay.executed, p.log.items.size());
}

TEST(mirror_primary, objects_without_memory_need_no_agent) {
    pair p(false);
    set_up(p, 1, false);
    p.mirror->start_sync();
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on);
    EXPECT_EQ(log_of(p), (lines{"reset", "open 1", "submit 1", "submit 1"}));
    EXPECT_EQ(p.log.synced_at, std::vector<log_sequence>{4});
}

TEST(mirror_primary, memory_that_nobody_can_read_fails_with_a_sentence) {
    pair p(false);
    set_up(p, 1);
    p.mirror->start_sync();
    EXPECT_EQ(p.mirror->mode(), mirror_mode::off);
    ASSERT_EQ(p.log.failures.size(), 1u);
    EXPECT_NE(p.log.failures[0].find("attach the standby before"), std::string::npos);
    EXPECT_TRUE(p.log.synced_at.empty());
    // Later, without that memory, it works.
    p.run(1, [](auto& b) { b.destroy(VGPU_OBJECT_MEMORY, buffer); });
    p.mirror->start_sync();
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on);
}

TEST(mirror_primary, content_crosses_in_the_last_round) {
    pair p;
    p.agents_may_finish = false;
    set_up(p, 1);
    p.run(1, fill(std::byte{7}));
    p.mirror->start_sync();
    EXPECT_EQ(p.mirror->mode(), mirror_mode::syncing);
    EXPECT_EQ(p.mirror->waiting(), "the test says no");
    p.run(1, fill(std::byte{8}));
    EXPECT_EQ(p.mirror->mode(), mirror_mode::syncing);
    p.made[1]->allowed = true;
    p.run(1, fill(std::byte{9})); // still in the transfer, its content comes with the last round
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on);
    ASSERT_EQ(p.log.synced_at.size(), 1u);
    p.replay.run_to(p.log.synced_at[0]);
    EXPECT_EQ(content(p.standby, 1), std::vector<std::byte>(64, std::byte{9}));
    p.run(1, fill(std::byte{10}));
    p.replay.run();
    EXPECT_EQ(content(p.standby, 1), std::vector<std::byte>(64, std::byte{10}));
}

TEST(mirror_primary, a_transfer_ends_without_the_guests_help) {
    pair p;
    p.agents_may_finish = false;
    set_up(p, 1);
    p.mirror->start_sync();
    p.made[1]->allowed = true;
    ASSERT_TRUE(tick_comes(p));
    p.primary.dispatch();
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on);
}

TEST(mirror_primary, files_finish_one_by_one_and_are_synced_together) {
    pair p;
    p.agents_may_finish = false;
    set_up(p, 2);
    set_up(p, 1);
    set_up(p, 3, false);
    p.open(4); // no worker yet
    p.mirror->start_sync();
    EXPECT_EQ(log_of(p), (lines{"reset", "open 1", "submit 1", "submit 1", "submit 1", "open 2", "submit 2",
                                "submit 2", "submit 2", "open 3", "submit 3", "submit 3", "open 4"}));
    p.made[2]->allowed = true;
    p.run(2, fill(std::byte{2}));
    const std::size_t before = p.log.items.size();
    p.run(2, fill(std::byte{3}));
    p.run(1, fill(std::byte{1}));
    EXPECT_EQ(log_of(p, before), lines{"submit 2"}) << "file 2 is mirrored, file 1 is being synced";
    EXPECT_TRUE(p.log.synced_at.empty());
    p.run(4, [](auto& b) { b.create_context(context); });
    p.made[1]->allowed = true;
    p.run(1, fill(std::byte{4}));
    EXPECT_EQ(p.log.synced_at, std::vector<log_sequence>{p.log.items.size()});
    p.replay.run();
    EXPECT_EQ(content(p.standby, 1), content(p.primary, 1));
    EXPECT_EQ(content(p.standby, 2), content(p.primary, 2));
}

TEST(mirror_primary, a_file_that_is_opened_meanwhile_is_mirrored_from_its_first_request) {
    pair p;
    p.agents_may_finish = false;
    set_up(p, 1);
    p.mirror->start_sync();
    set_up(p, 2);
    p.run(2, fill(std::byte{5}));
    EXPECT_FALSE(p.made.contains(2));
    EXPECT_EQ(p.mirror->mode(), mirror_mode::syncing);
    p.close(1);
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on) << "nothing is left to be transferred";
    p.replay.run();
    EXPECT_EQ(content(p.standby, 2), std::vector<std::byte>(64, std::byte{5}));
    EXPECT_EQ(p.standby.device->objects(1), nullptr);
}

TEST(mirror_primary, a_lost_file_ends_its_transfer_and_is_told_of_in_the_next) {
    pair p;
    p.agents_may_finish = false;
    set_up(p, 1);
    p.mirror->start_sync();
    const auto lost = p.made[1]->lost;
    p.primary.ports[1]->lose();
    p.primary.dispatch();
    EXPECT_EQ(*lost, 1);
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on);
    EXPECT_EQ(log_of(p).back(), "lose 1");
    p.mirror->stop();
    const std::size_t before = p.log.items.size();
    p.mirror->start_sync();
    EXPECT_EQ(log_of(p, before), (lines{"reset", "open 1", "lose 1"}));
    p.close(1);
    EXPECT_EQ(log_of(p).back(), "close 1");
    EXPECT_EQ(p.mirror->catalog_bytes(), 0u);
}

TEST(mirror_primary, a_reset_ends_every_transfer) {
    pair p;
    p.agents_may_finish = false;
    set_up(p, 1);
    set_up(p, 2);
    p.mirror->start_sync();
    p.primary.device->reset();
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on);
    EXPECT_EQ(log_of(p).back(), "reset");
    EXPECT_EQ(p.mirror->catalog_bytes(), 0u);
    set_up(p, 1);
    p.replay.run();
    EXPECT_EQ(p.replay.executed, p.log.items.size());
    EXPECT_EQ(content(p.standby, 1), content(p.primary, 1));
}

TEST(mirror_primary, memory_whose_creation_is_under_way_holds_the_end_of_a_transfer_back) {
    pair p;
    set_up(p, 1);
    p.primary.submit(
        1, stream_builder{}.create_buffer_inline(50, context, std::vector<std::byte>(64, std::byte{3})));
    p.mirror->start_sync();
    EXPECT_EQ(p.mirror->mode(), mirror_mode::syncing);
    EXPECT_EQ(log_of(p).back(), "submit 1 = ?");
    p.primary.dispatch();
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on);
    EXPECT_EQ(p.log.items[5].outcome, 0);
    p.replay.run();
    EXPECT_EQ(p.standby.content(1, context, 50, 64), std::vector<std::byte>(64, std::byte{3}));
}

TEST(mirror_primary, a_creation_under_way_that_fails_is_no_object_of_the_standby) {
    pair p;
    set_up(p, 1);
    p.primary.submit(1, stream_builder{}.create_image_2d(50, context, 4, 4));
    p.mirror->start_sync();
    p.primary.dispatch();
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on);
    p.replay.run();
    EXPECT_EQ(p.replay.executed, p.log.items.size());
    EXPECT_EQ(p.standby.device->objects(1)->find(50, VGPU_OBJECT_MEMORY), nullptr);
}

// The same session again and again, stopped and begun anew at each of its steps.
TEST(mirror_primary, can_be_stopped_and_started_anywhere) {
    for (int stop_at = 0; stop_at < 16; ++stop_at) {
        for (const bool again : {false, true}) {
            SCOPED_TRACE(stop_at);
            pair p;
            p.agents_may_finish = false;
            int step = 0;
            const auto next = [&] {
                if (step++ == stop_at) {
                    p.mirror->stop();
                    EXPECT_EQ(p.mirror->mode(), mirror_mode::off);
                    p.mirror->stop();
                    p.log.items.clear();
                    p.replay.executed = 0;
                    if (again) {
                        p.mirror->start_sync();
                    }
                }
            };
            const auto start = [&] {
                if (p.mirror->mode() == mirror_mode::off) {
                    p.mirror->start_sync();
                }
            };
            next();
            start();
            set_up(p, 1);
            next();
            p.run(1, fill(std::byte{1}));
            next();
            p.mirror->stop();
            start();
            next();
            p.primary.submit(1, stream_builder{}.create_buffer(50, context, 64));
            next();
            p.primary.dispatch();
            next();
            p.run(1, [](auto& b) { b.create_user_event(user_event, context); });
            next();
            const auto waiting = p.primary.submit(1, [] {
                stream_builder b;
                b.write_buffer({queue, event, {user_event}}, buffer, 0, b.payload(false, 0, 0, 64));
                return b;
            }());
            p.primary.dispatch();
            next();
            set_up(p, 2);
            next();
            p.run(2, fill(std::byte{2}));
            next();
            p.run(1, [](auto& b) { b.set_user_event(user_event, 0); });
            EXPECT_NE(p.primary.answer_of(waiting), nullptr);
            next();
            for (auto& [file, agent] : p.made) {
                agent->allowed = true;
            }
            p.run(1, fill(std::byte{3}));
            p.run(2, fill(std::byte{4}));
            next();
            p.close(2);
            next();
            p.run(1, [](auto& b) { b.destroy(VGPU_OBJECT_MEMORY, 50); });
            next();
            p.agents_may_finish = true;
            start();
            for (auto& [file, agent] : p.made) {
                if (file == 1) {
                    agent->allowed = true;
                }
            }
            p.run(1, fill(std::byte{5}));
            EXPECT_EQ(p.mirror->mode(), mirror_mode::on);
            p.run(1,
                  [](auto& b) { b.fill_buffer({queue, 0, {}}, buffer, 32, 32, std::vector<std::byte>(1)); });
            p.replay.run();
            EXPECT_EQ(p.replay.executed, p.log.items.size());
            EXPECT_EQ(content(p.standby, 1), content(p.primary, 1));
            EXPECT_EQ(p.standby.device->objects(1)->size(), p.primary.device->objects(1)->size());
            EXPECT_TRUE(p.log.failures.empty());
        }
    }
}

// ---- outcomes

TEST(mirror_primary, calls_of_files_that_end_are_canceled) {
    enum class end { close, lost, reset };
    for (const end how : {end::close, end::lost, end::reset}) {
        pair p;
        p.mirror->start_sync();
        set_up(p, 1);
        p.primary.submit(1, stream_builder{}.create_buffer(50, context, 64));
        EXPECT_EQ(log_of(p).back(), "submit 1 = ?");
        const std::size_t before = p.log.items.size();
        if (how == end::close) {
            p.close(1);
        } else if (how == end::reset) {
            p.primary.device->reset();
        } else {
            p.primary.ports[1]->lose();
            p.primary.ports[1]->tokens.clear();
            p.primary.device->dispatch(p.primary.now_ms);
        }
        const lines expected = how == end::close ? lines{"submit 1 canceled", "close 1"}
                               : how == end::reset
                                   ? lines{"submit 1 canceled", "reset"}
                                   : lines{"submit 1 = 0", "lose 1"}; // the answer was there first
        EXPECT_EQ(log_of(p, before - 1), expected);
        p.replay.run();
        EXPECT_EQ(p.replay.executed, p.log.items.size());
    }
}

TEST(mirror_primary, nobody_hears_of_outcomes_when_the_standby_is_gone) {
    pair p;
    p.mirror->start_sync();
    set_up(p, 1);
    p.primary.submit(1, stream_builder{}.create_buffer(50, context, 64));
    p.mirror->stop();
    p.primary.dispatch();
    EXPECT_EQ(log_of(p).back(), "submit 1 = ?");
    EXPECT_FALSE(p.log.items.back().canceled);
}

// ---- guest memory in use

struct uploads : pair {
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

TEST(mirror_primary, answer_and_completion_wait_until_the_log_has_the_content) {
    uploads p;
    const auto token = p.upload(event);
    EXPECT_FALSE(p.answered(token));
    EXPECT_TRUE(p.primary.records.empty());
    p.release(p.log.items.size());
    EXPECT_TRUE(p.answered(token));
    EXPECT_EQ(p.primary.records.size(), 1u);
}

TEST(mirror_primary, nobody_waits_where_the_log_can_copy) {
    uploads p;
    p.log.sending = false;
    const auto token = p.upload(event);
    EXPECT_TRUE(p.answered(token));
    EXPECT_EQ(p.primary.records.size(), 1u);
    EXPECT_EQ(p.log.asked_to_release, std::vector<log_sequence>{p.log.items.size()}) << "once";
}

TEST(mirror_primary, little_content_is_copied_at_once) {
    uploads p;
    p.primary.memory[5] = std::byte{9};
    const auto token = p.upload(event, copy_content_bytes);
    EXPECT_TRUE(p.answered(token));
    EXPECT_TRUE(p.log.asked_to_release.empty());
    p.primary.memory[5] = std::byte{1};
    p.replay.run();
    EXPECT_EQ(p.standby.content(1, context, 60, large)[5], std::byte{9});
}

TEST(mirror_primary, every_entry_of_what_may_be_complete_is_waited_for) {
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

TEST(mirror_primary, an_event_that_is_older_than_the_content_does_not_wait_for_it) {
    uploads p;
    p.run(1, [](auto& b) { b.create_user_event(user_event, context); });
    p.run(1, [](auto& b) { b.create_queue(61, context); });
    p.run(1, [](auto& b) { b.marker({61, event, {user_event}}); });
    const auto token = p.upload(0);
    p.run(1, [](auto& b) { b.set_user_event(user_event, 0); });
    EXPECT_FALSE(p.answered(token));
    EXPECT_EQ(p.primary.records.size(), 1u);
}

TEST(mirror_primary, a_request_with_several_contents_is_answered_once) {
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

TEST(mirror_primary, what_is_in_use_stays_so_when_the_mirror_stops) {
    uploads p;
    const auto token = p.upload(event);
    p.mirror->stop();
    EXPECT_FALSE(p.answered(token));
    p.release(p.log.items.size());
    EXPECT_TRUE(p.answered(token));
    EXPECT_EQ(p.primary.records.size(), 1u);
}

TEST(mirror_primary, a_file_that_ends_waits_for_nothing) {
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

TEST(mirror_primary, a_read_waits_until_the_log_has_what_it_writes_over) {
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

TEST(mirror_primary, a_read_in_the_request_of_the_write_that_it_writes_over) {
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

TEST(mirror_primary, a_read_waits_for_nothing_that_the_log_can_copy_and_for_nothing_elsewhere) {
    overwritten p;
    p.log.sending = false;
    EXPECT_TRUE(p.answered(p.send(0)));
    EXPECT_EQ(p.memory(), 2);
    EXPECT_EQ(p.standby_has(), 1);
    p.log.sending = true;
    p.send(large); // the first byte behind it
    EXPECT_EQ(static_cast<int>(p.primary.memory[large]), 2) << "the read is done, the answer waits";
}

TEST(mirror_primary, a_read_that_waits_goes_on_when_the_mirror_stops) {
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
        if (replay.executed != log.items.size()) {
            return 0;
        }
        return static_cast<int>(content(standby, 1)[0]);
    }
};

TEST(mirror_primary, what_a_read_has_not_given_yet_is_not_sent) {
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

TEST(mirror_primary, what_is_read_elsewhere_or_answered_makes_nobody_wait) {
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
                for (std::size_t i = at; i < at + bytes; ++i) {
                    f(i);
                }
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

TEST(mirror_primary, a_read_and_a_write_in_one_request) {
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

TEST(mirror_primary, nobody_waits_for_a_read_that_may_wait_for_the_guest) {
    late p;
    p.run(1, [](auto& b) { b.create_user_event(user_event, context); });
    p.read();
    p.memory_is(1);
    p.write();
    EXPECT_EQ(p.standby_has(), 1) << "a digest repairs what is old";
}

TEST(mirror_primary, a_write_that_waits_ends_with_its_file_and_with_the_mirror) {
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

// ---- budget, agents, digests

TEST(mirror_primary, a_guest_with_too_many_objects_is_not_mirrored_and_says_so) {
    pair p(true, {0, 10'000, 5});
    p.mirror->start_sync();
    set_up(p, 1);
    for (guest_id id = 1000; id < 1100; ++id) {
        p.run(1, [&](auto& b) { b.create_buffer(id, context, 64); });
    }
    EXPECT_EQ(p.mirror->mode(), mirror_mode::off);
    ASSERT_EQ(p.log.failures.size(), 1u);
    EXPECT_NE(p.log.failures[0].find("max_catalog_bytes"), std::string::npos);
    p.mirror->start_sync();
    EXPECT_EQ(p.mirror->mode(), mirror_mode::off);
    EXPECT_EQ(p.log.failures.size(), 2u);
    p.close(1);
    p.mirror->start_sync();
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on);
}

TEST(mirror_primary, an_agent_that_fails_ends_the_mirror_once) {
    pair p;
    set_up(p, 1);
    set_up(p, 2);
    p.mirror->start_sync();
    ASSERT_EQ(p.mirror->mode(), mirror_mode::on);
    p.made[1]->fail("no more");
    p.made[1]->fail("and again");
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on) << "not inside of the agent";
    p.run(2, fill(std::byte{1}));
    EXPECT_EQ(p.mirror->mode(), mirror_mode::off);
    EXPECT_EQ(p.log.failures, lines{"no more"});
    EXPECT_EQ(p.made[2]->calls.back(), "stop");
}

TEST(mirror_primary, digests_are_taken_in_their_interval_and_on_request) {
    pair p(true, {20, max_catalog_bytes, 5});
    set_up(p, 1);
    p.mirror->start_sync();
    auto& agent = *p.made[1];
    agent.calls.clear();
    p.primary.now_ms += 20;
    ASSERT_TRUE(tick_comes(p));
    p.primary.device->dispatch(p.primary.now_ms);
    EXPECT_EQ(agent.calls, (lines{"digest", "tick"}));
    agent.calls.clear();
    agent.can_digest = false;
    p.mirror->request_digest(true);
    EXPECT_EQ(agent.calls, lines{"digest of everything"});
    agent.can_digest = true;
    ASSERT_TRUE(tick_comes(p));
    p.primary.device->dispatch(p.primary.now_ms);
    EXPECT_EQ(agent.calls, (lines{"digest of everything", "digest of everything", "tick"})) << "until it can";
    EXPECT_EQ(p.mirror->counters().digests, 2u);
    p.close(1);
    EXPECT_EQ(p.mirror->counters().digests, 2u) << "also of closed files";
}

TEST(mirror_primary, a_new_context_is_prepared_for_digests) {
    pair p(true, {1000, max_catalog_bytes, 5});
    p.mirror->start_sync();
    set_up(p, 1);
    ASSERT_TRUE(p.made.count(1));
    auto& agent = *p.made[1];
    EXPECT_EQ(std::count(agent.calls.begin(), agent.calls.end(), "prepare"), 1);
    agent.calls.clear();
    p.run(1, [](auto& b) { b.create_buffer(500, context, 64); });
    EXPECT_EQ(std::count(agent.calls.begin(), agent.calls.end(), "prepare"), 0) << "not for each call";
    p.run(1, [](auto& b) { b.create_context(501); });
    EXPECT_EQ(std::count(agent.calls.begin(), agent.calls.end(), "prepare"), 1);

    pair without;
    without.mirror->start_sync();
    set_up(without, 1);
    EXPECT_FALSE(without.made.count(1)) << "nobody wants digests";
}

TEST(mirror_primary, results_of_comparisons_find_their_agent) {
    pair p;
    set_up(p, 1);
    set_up(p, 2);
    p.mirror->start_sync();
    log_entry e;
    e.meta.flags = entry_agent | entry_compare;
    e.stream.resize(1);
    const log_sequence n = p.made[2]->log().append(std::move(e));
    EXPECT_EQ(p.log.at(n).entry.meta.file, 2u);
    const std::uint64_t different[] = {4, 5};
    p.mirror->on_digest_result(n, different);
    EXPECT_EQ(p.made[2]->calls.back(), "result of " + std::to_string(n) + ": 2");
    const auto calls = p.made[2]->calls;
    p.mirror->on_digest_result(n, different);
    p.mirror->on_digest_result(999'999, different);
    EXPECT_EQ(p.made[2]->calls, calls) << "once, and none that does not exist";
}

TEST(mirror_primary, an_agent_hears_of_each_request_and_of_its_own) {
    pair p;
    set_up(p, 1);
    p.mirror->start_sync();
    auto& agent = *p.made[1];
    agent.calls.clear();
    p.run(1, fill(std::byte{1}));
    EXPECT_EQ(agent.calls, (lines{"before", "after"}));
    stream_builder b;
    b.create_queue(agent_id_bit | 9, context);
    EXPECT_TRUE(p.primary.device->inject(1, {77, b.stream(), {}, {}}));
    b.clear();
    b.marker({agent_id_bit | 9, agent_id_bit | 10, {}});
    EXPECT_TRUE(p.primary.device->inject(1, {78, b.stream(), {}, {}}));
    agent.calls.clear();
    p.primary.dispatch();
    EXPECT_EQ(agent.calls, (lines{"done 77", "record", "done 78"}));
}

TEST(mirror_primary, ticks_come_while_an_agent_is_busy) {
    pair p; // digests are off
    set_up(p, 1);
    p.mirror->start_sync();
    pollfd fd{p.primary.device->poll_fd(), POLLIN, 0};
    p.primary.dispatch();
    EXPECT_EQ(poll(&fd, 1, 30), 0);
    p.made[1]->busy = true;
    p.run(1, fill(std::byte{1}));
    ASSERT_TRUE(tick_comes(p));
    p.primary.dispatch();
    EXPECT_EQ(p.made[1]->calls.back(), "tick");
    p.made[1]->busy = false;
    ASSERT_TRUE(tick_comes(p));
    p.primary.dispatch();
    EXPECT_EQ(poll(&fd, 1, 30), 0);
}

} // namespace
} // namespace kagemusha::mirror
