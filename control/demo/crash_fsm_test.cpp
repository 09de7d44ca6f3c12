// SPDX-License-Identifier: GPL-2.0-or-later
//
// The course of the demo: what follows when all goes well, and that everything else ends it with a sentence.
#include "control/demo/crash_fsm.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

namespace kagemusha::control {
namespace {

using namespace demo_action;
using kind = guest_event::kind;

constexpr auto primary = demo_host::primary, standby = demo_host::standby;

std::string render(const any& action) {
    struct {
        std::string operator()(const start_standby&) const { return "start standby"; }
        std::string operator()(const report_guest& a) const {
            return fmt::format("tell {}: {}", to_text(a.at), a.line);
        }
        std::string operator()(const read_gpu& a) const {
            return fmt::format("read {} {}", to_text(a.at), static_cast<int>(a.what));
        }
        std::string operator()(const kill_primary&) const { return "kill"; }
        std::string operator()(const show&) const { return ""; }
        std::string operator()(const say&) const { return ""; }
        std::string operator()(const end& a) const { return "end: " + a.why; }
    } visitor;
    return std::visit(visitor, action);
}

class course : public ::testing::Test {
protected:
    // Everything but what is only said.
    std::vector<std::string> actions() {
        std::vector<std::string> out;
        any action;
        while (fsm.next(action))
            if (auto text = render(action); !text.empty())
                out.push_back(std::move(text));
        return out;
    }
    void guest(demo_host from, kind what, unsigned run = 0, const std::string& text = {}, int status = 0) {
        fsm.on_guest(from, {what, run, status, 0, 0, text}, ++now);
    }
    void progress(demo_host from, double fraction, double per_second = 4e6) {
        fsm.on_guest(from, {kind::progress, 0, 0, fraction, per_second, "x"}, ++now);
    }
    void status(demo_host of, const std::string& state, std::uint64_t checkpoints) {
        supervisor_reading r;
        r.state = state;
        r.checkpoints = checkpoints;
        fsm.on_status(of, r, ++now);
    }
    void taken_over() {
        supervisor_reading r;
        r.state = "running";
        r.committed_ns = 90;
        r.decided_ns = 102;
        r.running_ns = 103;
        r.first_command_ns = 104;
        fsm.on_status(standby, r, ++now);
    }
    void results(demo_host from, unsigned run) {
        guest(from, kind::ended, run);
        guest(from, kind::result, run, word);
        guest(from, kind::results_end, run);
        guest(from, kind::ready);
    }
    void until_reference() {
        fsm.on_console(primary);
        guest(primary, kind::ready);
        guest(primary, kind::begun, 1);
        progress(primary, 0.5);
        results(primary, 1);
    }
    void until_computing() {
        until_reference();
        fsm.on_console(standby);
        status(primary, "protecting", 5);
        guest(primary, kind::begun, 2);
    }
    void until_killed() {
        until_computing();
        progress(primary, 0.1);
        progress(primary, 0.45);
        fsm.on_killed(100);
        fsm.on_log(primary, "qemu-ended", "signal 9", 101);
    }
    void until_survived() {
        until_killed();
        fsm.on_log(standby, "running", "here", 103);
    }

    const std::string word = "214f2b54f3271af0b1971a84fb3a2376:vcjcor";
    std::uint64_t now = 0;
    crash_fsm fsm{crash_config{}};
};

TEST_F(course, all_goes_well) {
    fsm.on_console(primary);
    EXPECT_EQ(actions(), std::vector<std::string>{"tell primary: "});
    guest(primary, kind::ready);
    EXPECT_EQ(actions(),
              (std::vector<std::string>{"read primary 0", "tell primary: run 1 words-6-3 ?l?l?l?l?l?1 abc"}));
    guest(primary, kind::ready); // heard twice
    guest(primary, kind::begun, 1);
    progress(primary, 0.99);
    EXPECT_TRUE(actions().empty()); // nobody is killed without a standby
    results(primary, 1);
    EXPECT_EQ(actions(), (std::vector<std::string>{"read primary 1", "start standby"}));
    status(primary, "connecting", 0);
    status(primary, "protecting", 2);
    EXPECT_TRUE(actions().empty()); // not yet
    status(primary, "protecting", 3);
    EXPECT_TRUE(actions().empty()); // the standby's guest would not be heard
    fsm.on_console(standby);
    EXPECT_EQ(actions(),
              (std::vector<std::string>{"read primary 2", "tell primary: run 2 words-6-3 ?l?l?l?l?l?1 abc"}));
    guest(primary, kind::begun, 2);
    progress(primary, 0.39);
    EXPECT_TRUE(actions().empty());
    progress(primary, 0.45);
    EXPECT_EQ(actions(), (std::vector<std::string>{"read primary 3", "kill"}));
    fsm.on_killed(100);
    progress(primary, 0.5); // printed before it died
    fsm.on_log(primary, "qemu-ended", "signal 9", 101);
    fsm.on_exit(primary, 0);
    EXPECT_TRUE(actions().empty());
    fsm.on_log(standby, "running", "here", 103);
    EXPECT_EQ(actions(), std::vector<std::string>{"read standby 4"});
    progress(standby, 0.44);
    results(standby, 2);
    EXPECT_TRUE(actions().empty()); // the times of the takeover are not there yet
    taken_over();
    EXPECT_EQ(actions(), (std::vector<std::string>{"read standby 5", "tell standby: end"}));
    fsm.on_log(standby, "qemu-ended", "status 0", 200);
    fsm.on_exit(standby, 0);
    EXPECT_EQ(actions(), std::vector<std::string>{"end: "});
    const auto& story = fsm.story();
    EXPECT_EQ(story.reference, std::set{word});
    EXPECT_EQ(story.result, std::set{word});
    EXPECT_EQ(story.killed_ns, 100u);
    EXPECT_EQ(story.detected_ns, 101u);
    EXPECT_EQ(story.decided_ns, 102u);
    EXPECT_EQ(story.running_ns, 103u);
    EXPECT_EQ(story.first_command_ns, 104u);
    EXPECT_GT(story.ended_ns, 0u);
    EXPECT_EQ(story.progress.size(), 4u); // of the second run
}

TEST_F(course, a_fast_gpu_gets_longer_words) {
    guest(primary, kind::ready);
    guest(primary, kind::begun, 1);
    progress(primary, 1,
             5e9); // all 26^7 in 1.6 s; of 26^8 with two endings 3.2 s, with six 9.6 s, with 18 28.9 s
    actions();
    results(primary, 1);
    EXPECT_EQ(actions(),
              (std::vector<std::string>{
                  "read primary 0", "tell primary: run 2 words-8-18 ?l?l?l?l?l?l?l?1 abcdefghijklmnopqr"}));
    guest(primary, kind::begun, 2);
    progress(primary, 0.2, 5e9);
    results(primary, 2);
    EXPECT_EQ(actions(), (std::vector<std::string>{"read primary 1", "start standby"}));
    EXPECT_EQ(fsm.words(), (word_set{8, 18}));
}

TEST_F(course, a_training_has_steps_and_losses) {
    crash_fsm training{crash_config{}, demo_program::training};
    const auto next = [&] {
        std::vector<std::string> out;
        any action;
        while (training.next(action))
            if (auto text = render(action); !text.empty())
                out.push_back(std::move(text));
        return out;
    };
    const auto said = [&](kind what, unsigned run, const std::string& text = {}) {
        training.on_guest(primary, {what, run, 0, 0, 0, text}, ++now);
    };
    said(kind::ready, 0);
    EXPECT_EQ(next(), (std::vector<std::string>{"read primary 0", "tell primary: run 1 300"}));
    training.on_guest(primary, {kind::progress, 0, 0, 1, 50, "x", 0.001}, ++now); // 300 steps are 6 s
    said(kind::ended, 1);
    said(kind::results_end, 1);
    EXPECT_EQ(next(), (std::vector<std::string>{"read primary 0", "tell primary: run 2 900"}));
    said(kind::result, 2, "00000009:3e000000");
    said(kind::results_end, 2);
    EXPECT_EQ(next(), (std::vector<std::string>{"read primary 1", "start standby"}));
    EXPECT_EQ(training.story().asked, "900 steps");
    EXPECT_EQ(training.story().reference, std::set<std::string>{"00000009:3e000000"});
}

// The speed of the first run is a guess; what a set that was chosen by it takes is not.
TEST_F(course, a_set_that_lasts_long_enough_is_kept_without_the_margin) {
    guest(primary, kind::ready);
    progress(primary, 1, 4e6); // 8.9 s for the first set: more than 8, less than 8 and a quarter more
    results(primary, 1);
    EXPECT_EQ(actions(),
              (std::vector<std::string>{"read primary 0", "tell primary: run 1 words-6-3 ?l?l?l?l?l?1 abc",
                                        "read primary 1", "start standby"}));
}

TEST_F(course, words_have_an_end_too) {
    guest(primary, kind::ready);
    progress(primary, 1, 1e18);
    results(primary, 1);
    actions();
    EXPECT_EQ(fsm.words(), (word_set{9, 26}));
    progress(primary, 1, 1e18);
    results(primary, 2);
    EXPECT_EQ(actions(), (std::vector<std::string>{"read primary 1", "start standby"}));
}

TEST_F(course, what_a_dead_primary_says_about_results_does_not_count) {
    until_killed();
    results(primary, 2);
    EXPECT_TRUE(fsm.story().result.empty());
}

TEST_F(course, results_of_another_run_do_not_count) {
    until_survived();
    taken_over();
    actions();
    results(standby, 1);
    EXPECT_TRUE(actions().empty());
    EXPECT_TRUE(fsm.story().result.empty());
}

TEST_F(course, a_program_that_fails_ends_it) {
    until_survived();
    actions();
    guest(standby, kind::ended, 2, {}, 255);
    EXPECT_EQ(actions(), std::vector<std::string>{"end: hashcat ended with status 255 on the standby"});
    guest(standby, kind::results_end, 2);
    fsm.on_exit(standby, 0);
    EXPECT_TRUE(actions().empty()); // nothing comes after the last one
}

TEST_F(course, a_program_that_is_done_too_soon_ends_it) {
    until_computing();
    actions();
    results(primary, 2);
    EXPECT_EQ(actions(), std::vector<std::string>{
                             "end: hashcat was done before the primary could be killed in the middle of it"});
}

TEST_F(course, a_qemu_that_nobody_killed_ends_it) {
    until_computing();
    actions();
    fsm.on_log(standby, "qemu-ended", "signal 11", 5);
    EXPECT_EQ(actions(), std::vector<std::string>{"end: the standby's QEMU ended: signal 11"});
}

TEST_F(course, a_standby_that_is_lost_ends_it) {
    until_computing();
    actions();
    status(primary, "alone", 5);
    EXPECT_EQ(actions(), std::vector<std::string>{"end: the VM lost its standby: it is alone"});
}

TEST_F(course, a_supervisor_that_ends_early_ends_it) {
    fsm.on_exit(primary, 125);
    EXPECT_EQ(actions(), std::vector<std::string>{"end: the primary's supervisor ended with status 125"});
}

TEST_F(course, a_standby_that_gives_up_after_the_kill_ends_it) {
    until_killed();
    fsm.on_exit(primary, 0);
    actions();
    fsm.on_exit(standby, 1);
    EXPECT_EQ(actions(), std::vector<std::string>{"end: the standby's supervisor ended with status 1"});
}

} // namespace
} // namespace kagemusha::control
