// SPDX-License-Identifier: GPL-2.0-or-later
// primary_shadow around its files: state transfer in every phase, files that come and go meanwhile, outcomes,
// digests, and that the mirror can be stopped anywhere. guest_memory_test.cpp has what concerns guest memory.
#include "mirror/capture/primary_shadow.hpp"

#include <poll.h>

#include <gtest/gtest.h>

#include <algorithm>

#include "mirror/capture/primary_shadow_test.hpp"

namespace kagemusha::mirror {
namespace {

using namespace testing;

bool tick_comes(instant_pair& p) {
    pollfd fd{p.primary.device->poll_fd(), POLLIN, 0};
    return poll(&fd, 1, 20000) == 1;
}

// ---- state transfer

TEST(primary_shadow, a_standby_that_is_there_first_is_synced_at_once) {
    instant_pair p(false); // no agent is needed
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

TEST(primary_shadow, objects_without_memory_need_no_agent) {
    instant_pair p(false);
    set_up(p, 1, false);
    p.mirror->start_sync();
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on);
    EXPECT_EQ(log_of(p), (lines{"reset", "open 1", "submit 1", "submit 1"}));
    EXPECT_EQ(p.log.synced_at, std::vector<log_sequence>{4});
}

TEST(primary_shadow, memory_that_nobody_can_read_fails_with_a_sentence) {
    instant_pair p(false);
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

TEST(primary_shadow, content_crosses_in_the_last_round) {
    instant_pair p;
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

TEST(primary_shadow, a_transfer_ends_without_the_guests_help) {
    instant_pair p;
    p.agents_may_finish = false;
    set_up(p, 1);
    p.mirror->start_sync();
    p.made[1]->allowed = true;
    ASSERT_TRUE(tick_comes(p));
    p.primary.dispatch();
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on);
}

std::uint64_t lost_workers(const instant_pair& p) {
    kagemusha_device_stats stats{};
    p.primary.device->stats(stats);
    return stats.workers_lost;
}

// A program may keep a user event unset for as long as it likes, but not the VM without a standby.
TEST(primary_shadow, who_does_not_set_its_user_event_is_lost_after_a_time) {
    instant_pair p;
    p.agents_may_finish = false;
    set_up(p, 1);
    set_up(p, 2);
    p.run(1, [](auto& b) { b.create_user_event(user_event, context); });
    p.mirror->start_sync();
    p.made[1]->allowed = true;
    const auto tick_after = [&](std::uint64_t ms) {
        p.primary.now_ms += ms;
        p.mirror->on_tick(p.primary.now_ms);
    };
    tick_after(0);
    tick_after(default_transfer_wait_ms); // the other file is not there either
    EXPECT_EQ(lost_workers(p), 0u);
    p.made[2]->allowed = true;
    tick_after(0);
    tick_after(default_transfer_wait_ms - 1);
    EXPECT_EQ(p.mirror->mode(), mirror_mode::syncing);
    EXPECT_EQ(lost_workers(p), 0u);
    tick_after(1);
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on);
    EXPECT_EQ(lost_workers(p), 1u);
    ASSERT_FALSE(p.primary.lines.empty());
    EXPECT_NE(p.primary.lines.back().find("file 1: a user event of the guest that is not set"),
              std::string::npos)
        << p.primary.lines.back();
    p.run(2, fill(std::byte{9}));
    p.replay.run();
    EXPECT_EQ(content(p.standby, 2), std::vector<std::byte>(64, std::byte{9}));
}

TEST(primary_shadow, a_user_event_that_is_set_in_time_costs_nobody_anything) {
    instant_pair p;
    set_up(p, 1);
    p.run(1, [](auto& b) { b.create_user_event(user_event, context); });
    p.mirror->start_sync();
    p.mirror->on_tick(p.primary.now_ms);
    p.primary.now_ms += default_transfer_wait_ms - 1;
    p.run(1, [](auto& b) { b.set_user_event(user_event, 0); });
    p.primary.now_ms += 1;
    p.mirror->on_tick(p.primary.now_ms);
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on);
    EXPECT_EQ(lost_workers(p), 0u);
}

TEST(primary_shadow, files_finish_one_by_one_and_are_synced_together) {
    instant_pair p;
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

TEST(primary_shadow, a_file_that_is_opened_meanwhile_is_mirrored_from_its_first_request) {
    instant_pair p;
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

TEST(primary_shadow, a_lost_file_ends_its_transfer_and_is_told_of_in_the_next) {
    instant_pair p;
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
    EXPECT_EQ(p.mirror->registry_bytes(), 0u);
}

TEST(primary_shadow, a_reset_ends_every_transfer) {
    instant_pair p;
    p.agents_may_finish = false;
    set_up(p, 1);
    set_up(p, 2);
    p.mirror->start_sync();
    p.primary.device->reset();
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on);
    EXPECT_EQ(log_of(p).back(), "reset");
    EXPECT_EQ(p.mirror->registry_bytes(), 0u);
    set_up(p, 1);
    p.replay.run();
    EXPECT_EQ(p.replay.executed, p.log.items.size());
    EXPECT_EQ(content(p.standby, 1), content(p.primary, 1));
}

TEST(primary_shadow, memory_whose_creation_is_under_way_holds_the_end_of_a_transfer_back) {
    instant_pair p;
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

TEST(primary_shadow, a_creation_under_way_that_fails_is_no_object_of_the_standby) {
    instant_pair p;
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
TEST(primary_shadow, can_be_stopped_and_started_anywhere) {
    for (int stop_at = 0; stop_at < 16; ++stop_at) {
        for (const bool again : {false, true}) {
            SCOPED_TRACE(stop_at);
            instant_pair p;
            p.agents_may_finish = false;
            int step = 0;
            const auto next = [&] {
                if (step++ == stop_at) {
                    p.mirror->stop();
                    EXPECT_EQ(p.mirror->mode(), mirror_mode::off);
                    p.mirror->stop();
                    p.log.items.clear();
                    p.replay.executed = 0;
                    if (again)
                        p.mirror->start_sync();
                }
            };
            const auto start = [&] {
                if (p.mirror->mode() == mirror_mode::off)
                    p.mirror->start_sync();
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
            for (auto& [file, agent] : p.made)
                agent->allowed = true;
            p.run(1, fill(std::byte{3}));
            p.run(2, fill(std::byte{4}));
            next();
            p.close(2);
            next();
            p.run(1, [](auto& b) { b.destroy(VGPU_OBJECT_MEMORY, 50); });
            next();
            p.agents_may_finish = true;
            start();
            for (auto& [file, agent] : p.made)
                if (file == 1)
                    agent->allowed = true;
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

TEST(primary_shadow, calls_of_files_that_end_are_canceled) {
    enum class end { close, lost, reset };
    for (const end how : {end::close, end::lost, end::reset}) {
        instant_pair p;
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

TEST(primary_shadow, nobody_hears_of_outcomes_when_the_standby_is_gone) {
    instant_pair p;
    p.mirror->start_sync();
    set_up(p, 1);
    p.primary.submit(1, stream_builder{}.create_buffer(50, context, 64));
    p.mirror->stop();
    p.primary.dispatch();
    EXPECT_EQ(log_of(p).back(), "submit 1 = ?");
    EXPECT_FALSE(p.log.items.back().canceled);
}

// ---- budget, agents, digests

TEST(primary_shadow, a_guest_with_too_many_objects_is_not_mirrored_and_says_so) {
    instant_pair p(true, {0, 10'000, 5});
    p.mirror->start_sync();
    set_up(p, 1);
    for (guest_id id = 1000; id < 1100; ++id)
        p.run(1, [&](auto& b) { b.create_buffer(id, context, 64); });
    EXPECT_EQ(p.mirror->mode(), mirror_mode::off);
    ASSERT_EQ(p.log.failures.size(), 1u);
    EXPECT_NE(p.log.failures[0].find("max_registry_bytes"), std::string::npos);
    p.mirror->start_sync();
    EXPECT_EQ(p.mirror->mode(), mirror_mode::off);
    EXPECT_EQ(p.log.failures.size(), 2u);
    p.close(1);
    p.mirror->start_sync();
    EXPECT_EQ(p.mirror->mode(), mirror_mode::on);
}

TEST(primary_shadow, an_agent_that_fails_ends_the_mirror_once) {
    instant_pair p;
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

TEST(primary_shadow, digests_are_taken_in_their_interval_and_on_request) {
    instant_pair p(true, {20, max_registry_bytes, 5});
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

TEST(primary_shadow, a_new_context_is_prepared_for_digests) {
    instant_pair p(true, {1000, max_registry_bytes, 5});
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

    instant_pair without;
    without.mirror->start_sync();
    set_up(without, 1);
    EXPECT_FALSE(without.made.count(1)) << "nobody wants digests";
}

TEST(primary_shadow, results_of_comparisons_find_their_agent) {
    instant_pair p;
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

TEST(primary_shadow, an_agent_hears_of_each_request_and_of_its_own) {
    instant_pair p;
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

TEST(primary_shadow, ticks_come_while_an_agent_is_busy) {
    instant_pair p; // digests are off
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
