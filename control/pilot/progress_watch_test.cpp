// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/pilot/progress_watch.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kagemusha::control {
namespace {

using kind = progress_event::kind;

constexpr progress_bounds bounds{
    .answer_ms = 5000, .main_loop_ms = 8000, .transfer_ms = 30000, .checkpoint_ms = 4000};

// A supervisor that looks four times a second at a QEMU that does what it is told to do.
struct world {
    progress_watch watch{bounds};
    std::uint64_t now = 1'000'000;
    bool process = true, main_loop = true, moves = true;
    std::uint64_t number = 0;
    std::vector<progress_event> said;

    world() { watch.started(now); }

    void turn(std::uint64_t ms = 250) {
        now += ms;
        if (process)
            watch.answered(question::out_of_band);
        if (process && main_loop)
            watch.answered(question::in_band);
        if (process && main_loop && moves)
            watch.progress(++number);
        look();
        watch.asked(question::out_of_band);
        watch.asked(question::in_band);
    }
    void look() {
        progress_event event;
        while (watch.look(now, event))
            said.push_back(event);
    }
    void pass(std::uint64_t ms) {
        for (const auto until = now + ms; now < until;)
            turn();
    }
    std::vector<std::string> all(kind what) const {
        std::vector<std::string> found;
        for (const auto& event : said)
            if (event.what == what)
                found.push_back(event.why);
        return found;
    }
};

TEST(progress_watch, nothing_is_said_of_a_qemu_that_gets_on) {
    world w;
    w.pass(60000);
    w.watch.enter(watched_phase::transfer);
    w.pass(60000);
    w.watch.enter(watched_phase::protected_);
    w.pass(60000);
    EXPECT_TRUE(w.said.empty()) << w.said[0].why;
}

TEST(progress_watch, checkpoints_that_do_not_arrive_cost_the_standby_once) {
    world w;
    w.watch.enter(watched_phase::protected_);
    w.pass(10000);
    w.moves = false;
    w.pass(3500);
    EXPECT_TRUE(w.all(kind::replication_lost).empty());
    ASSERT_EQ(w.all(kind::warn).size(), 1u) << "a warning comes before";
    w.pass(20000);
    ASSERT_EQ(w.all(kind::replication_lost).size(), 1u);
    EXPECT_NE(w.all(kind::replication_lost)[0].find("no checkpoint has reached the standby for 4000 ms"),
              std::string::npos);
    EXPECT_TRUE(w.all(kind::stuck).empty());
}

TEST(progress_watch, a_first_copy_that_stops_is_given_up_after_its_own_bound) {
    world w;
    w.watch.enter(watched_phase::transfer);
    w.moves = false;
    w.pass(29000);
    EXPECT_TRUE(w.all(kind::replication_lost).empty());
    w.pass(2000);
    EXPECT_EQ(w.all(kind::replication_lost).size(), 1u);
    // Given up, and the next one has all of its time.
    w.watch.enter(watched_phase::none);
    w.watch.enter(watched_phase::transfer);
    w.pass(29000);
    EXPECT_EQ(w.all(kind::replication_lost).size(), 1u);
    w.pass(2000);
    EXPECT_EQ(w.all(kind::replication_lost).size(), 2u);
}

// A guest's program may hold it up for as long as it likes, and the VM's output is not held meanwhile.
TEST(progress_watch, a_copy_of_the_gpu_that_waits_is_only_warned_of) {
    world w;
    w.watch.enter(watched_phase::gpu_copy);
    w.moves = false;
    w.pass(90000);
    EXPECT_TRUE(w.all(kind::replication_lost).empty());
    ASSERT_EQ(w.all(kind::warn).size(), 1u);
    w.moves = true;
    w.pass(500);
    EXPECT_EQ(w.all(kind::warn).back(), "");
    w.watch.enter(watched_phase::transfer);
    w.moves = false;
    w.pass(31000);
    EXPECT_EQ(w.all(kind::replication_lost).size(), 1u);
}

TEST(progress_watch, a_process_that_does_not_answer_is_stuck) {
    world w;
    w.pass(1000);
    w.process = false;
    w.pass(4500);
    EXPECT_TRUE(w.all(kind::stuck).empty());
    w.pass(2000);
    const auto stuck = w.all(kind::stuck);
    ASSERT_GT(stuck.size(), 1u) << "it is said until it has an effect";
    EXPECT_EQ(stuck[0], "its monitor gave no answer for 5000 ms");
    // It answers again: the warning is taken back.
    w.process = true;
    w.pass(1000);
    EXPECT_EQ(w.all(kind::warn).back(), "");
}

TEST(progress_watch, a_main_loop_that_stands_still_without_a_standby_is_stuck) {
    world w;
    w.main_loop = false;
    w.pass(7500);
    EXPECT_TRUE(w.all(kind::stuck).empty());
    w.pass(2000);
    ASSERT_FALSE(w.all(kind::stuck).empty());
    EXPECT_EQ(w.all(kind::stuck)[0], "its main loop has stood still for 8000 ms");
}

// Its copy is good, and it is the one that has to go on.
TEST(progress_watch, the_standby_is_not_given_up_for_a_main_loop_that_stands_still) {
    world w;
    w.watch.enter(watched_phase::protected_);
    w.pass(2000);
    w.main_loop = false;
    w.pass(20000);
    EXPECT_TRUE(w.all(kind::replication_lost).empty()) << w.all(kind::replication_lost)[0];
    EXPECT_EQ(w.all(kind::free_stream).size(), 1u);
    ASSERT_FALSE(w.all(kind::stuck).empty());
    // The stream was cut before, and some time was given.
    std::vector<kind> order;
    for (const auto& event : w.said)
        if (event.what != kind::warn)
            order.push_back(event.what);
    EXPECT_EQ(order.front(), kind::free_stream);
}

// It was asked a moment after the last checkpoint, so it is the younger one of both waits.
TEST(progress_watch, the_standby_is_not_given_up_with_short_and_equal_bounds_either) {
    world w;
    w.watch =
        progress_watch({.answer_ms = 5000, .main_loop_ms = 1000, .transfer_ms = 1000, .checkpoint_ms = 1000});
    w.watch.started(w.now);
    w.watch.enter(watched_phase::protected_);
    w.pass(2000);
    w.main_loop = false;
    w.pass(20000);
    EXPECT_TRUE(w.all(kind::replication_lost).empty()) << w.all(kind::replication_lost)[0];
    EXPECT_FALSE(w.all(kind::stuck).empty());
}

TEST(progress_watch, a_main_loop_that_only_waited_for_the_standby_costs_the_standby) {
    world w;
    w.watch.enter(watched_phase::protected_);
    w.pass(2000);
    w.main_loop = false;
    while (w.all(kind::free_stream).empty())
        w.turn();
    // QEMU says so itself, before the main loop answers: it might be the main loop all the same.
    EXPECT_FALSE(w.watch.may_report_loss("the checkpoints failed"));
    w.main_loop = true;
    w.pass(1000);
    EXPECT_EQ(w.all(kind::replication_lost), std::vector<std::string>{"the checkpoints failed"});
    w.pass(20000);
    EXPECT_TRUE(w.all(kind::stuck).empty());
}

TEST(progress_watch, a_loss_that_qemu_reports_is_not_reported_twice) {
    world w;
    w.watch.enter(watched_phase::protected_);
    EXPECT_TRUE(w.watch.may_report_loss("the checkpoints failed"));
    EXPECT_FALSE(w.watch.may_report_loss("again"));
    w.moves = false;
    w.pass(30000);
    EXPECT_TRUE(w.all(kind::replication_lost).empty());
}

// SIGSTOP, a hypervisor that pauses the host, a file that blocks: QEMU may have answered long ago, or may
// have been as frozen as we were.
TEST(progress_watch, time_in_which_the_supervisor_did_not_run_does_not_count) {
    world w;
    w.watch.enter(watched_phase::protected_);
    w.pass(2000);
    w.process = w.main_loop = false;
    for (int i = 0; i < 3; ++i)
        w.turn(3'600'000);
    w.process = w.main_loop = true;
    w.pass(5000);
    EXPECT_TRUE(w.all(kind::stuck).empty());
    EXPECT_TRUE(w.all(kind::replication_lost).empty());
    // But a supervisor that is always late sees it in the end.
    w.process = false;
    for (int i = 0; i < 10; ++i)
        w.turn(5000);
    EXPECT_FALSE(w.all(kind::stuck).empty());
}

TEST(progress_watch, questions_are_as_frequent_as_the_bounds_need) {
    EXPECT_EQ(asking_period_ms({}), 1000u);
    EXPECT_EQ(asking_period_ms({0, 0, 0, 0}), 1000u);
    EXPECT_EQ(asking_period_ms({4000, 20000, 60000, 10300}), 800u);
    EXPECT_EQ(asking_period_ms({5000, 20000, 60000, 8000}), 800u);
    EXPECT_EQ(asking_period_ms({500, 20000, 60000, 10300}), 500u);
}

TEST(progress_watch, no_bound_no_verdict) {
    world w;
    w.watch = progress_watch({0, 0, 0, 0});
    w.watch.started(w.now);
    w.watch.enter(watched_phase::protected_);
    w.process = w.main_loop = w.moves = false;
    w.pass(600'000);
    EXPECT_TRUE(w.said.empty()) << w.said[0].why;
}

TEST(progress_watch, another_qemu_begins_anew) {
    world w;
    w.watch.enter(watched_phase::protected_);
    w.process = false;
    w.pass(6000);
    ASSERT_FALSE(w.all(kind::stuck).empty());
    w.said.clear();
    w.watch.started(w.now);
    w.process = true;
    w.moves = false;
    w.pass(60000);
    EXPECT_EQ(w.all(kind::warn), std::vector<std::string>{""}) << "only the old one's warning is taken back";
    EXPECT_EQ(w.all(kind::stuck).size() + w.all(kind::replication_lost).size(), 0u);
    EXPECT_EQ(w.watch.progress_age_ms(), 0u);
}

TEST(progress_watch, the_age_of_the_last_checkpoint) {
    world w;
    w.watch.enter(watched_phase::protected_);
    w.pass(2000);
    EXPECT_EQ(w.watch.progress_age_ms(), 250u) << "one period of this test";
    w.moves = false;
    w.pass(3000);
    EXPECT_EQ(w.watch.progress_age_ms(), 3250u);
}

} // namespace
} // namespace kagemusha::control
