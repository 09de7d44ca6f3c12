// SPDX-License-Identifier: GPL-2.0-or-later
//
// The state machine of a standby's supervisor: what is handed over to it, and what it may claim without a record.
#include "control/ha/ha_test_helpers.hpp"

namespace kagemusha::ha {
namespace {

using namespace test;

struct standby_handover : standby_test {};

// ---- switchovers

TEST_F(standby_handover, what_is_handed_over_is_claimed_when_it_runs) {
    pair();
    word(supervision_kind::handed_over, 2);
    auto actions = take();
    EXPECT_TRUE(any<act_take_over>(actions));
    EXPECT_FALSE(any<act_standby_ask>(actions)) << "the source still has it";
    fsm->on_qemu_running(now);
    EXPECT_TRUE(the<act_standby_ask>(take()).request.proven_dead);
    fsm->on_arbiter({verdict::granted, asked, 3, now + 300, {}}, now);
    actions = take();
    EXPECT_TRUE(says<act_standby_send>(actions, supervision_kind::running));
    EXPECT_FALSE(the<act_running>(actions).gpu_failed);
}

// Found by the soak: QEMU is killed, UNPAIRED comes first, and another one is ordered before its end is told.
TEST_F(standby_handover, the_end_of_a_former_qemu_is_none_of_the_present_one) {
    pair();
    const auto killed = fsm->qemu();
    word(supervision_kind::unpaired, 0, "no checkpoint");
    EXPECT_EQ(the<act_restart_qemu>(take()).qemu, fsm->qemu());
    fsm->on_qemu_died("signal 9 (Killed)", killed, now);
    fsm->on_qemu_ready(killed, now);
    EXPECT_EQ(fsm->state(), standby_state::starting) << "neither is of the one that was ordered";
    fsm->on_qemu_ready(fsm->qemu(), now);
    EXPECT_EQ(fsm->state(), standby_state::greeted);
}

// Found by vm_supervisors check_switchover_fails.
TEST_F(standby_handover, what_was_handed_over_while_it_stood_still_is_claimed_before_it_runs) {
    pair();
    now += 5000; // the next thing that it does is to read what has been lying there
    fsm->on_message(mirror::heartbeat{1, 0}, now);
    word(supervision_kind::handed_over, 2);
    auto actions = take();
    EXPECT_FALSE(any<act_take_over>(actions)) << "the source may have gone on alone";
    ASSERT_TRUE(any<act_standby_ask>(actions));
    EXPECT_EQ(the<act_standby_ask>(actions).request.what, kind::claim);
    fsm->on_arbiter({verdict::refused, asked, 2, 0, "the primary goes on alone"}, now);
    EXPECT_FALSE(any<act_take_over>(take()));
    EXPECT_EQ(fsm->state(), standby_state::starting);
}

// Its source says it after this side's hello, which it could not say while it stood still.
TEST_F(standby_handover, what_is_handed_over_on_a_new_connection_is_not_old) {
    pair();
    now += 250;
    word(supervision_kind::handed_over, 2);
    EXPECT_EQ(fsm->state(), standby_state::claiming);
    take();
    fsm->on_arbiter({verdict::held, asked, 0, now + 1000, "the primary has a lease"}, now);
    now += 20;
    greet();
    EXPECT_EQ(fsm->state(), standby_state::synced);
    word(supervision_kind::handed_over, 2);
    EXPECT_EQ(fsm->state(), standby_state::taking_over);
}

TEST_F(standby_handover, what_is_handed_over_is_old_again_if_it_stands_still_after_the_greeting) {
    pair();
    fsm->on_link_closed("cut", now);
    now += 250;
    greet();
    now += 250;
    word(supervision_kind::handed_over, 2);
    EXPECT_EQ(fsm->state(), standby_state::claiming);
}

TEST_F(standby_handover, without_a_record_what_is_handed_over_is_claimed_when_the_source_has_ended) {
    begin(false);
    pair();
    word(supervision_kind::handed_over, 2);
    take();
    fsm->on_qemu_running(now);
    auto actions = take();
    EXPECT_TRUE(says<act_standby_send>(actions, supervision_kind::running));
    EXPECT_FALSE(any<act_standby_ask>(actions));
    fsm->on_link_closed("reset", now);
    greet();
    take();
    word(supervision_kind::handed_over, 2);
    EXPECT_TRUE(says<act_standby_send>(take(), supervision_kind::running)) << "it may not have heard it";
    word(supervision_kind::died, 2);
    actions = take();
    EXPECT_TRUE(the<act_standby_ask>(actions).request.proven_dead);
    fsm->on_arbiter({verdict::granted, asked, 3, UINT64_MAX, {}}, now);
    EXPECT_TRUE(any<act_running>(take()));
}

TEST_F(standby_handover, without_a_record_a_source_that_is_silent_after_a_switchover_is_cut_off) {
    begin(false);
    pair();
    word(supervision_kind::handed_over, 2);
    fsm->on_qemu_running(now);
    fsm->on_link_closed("cut", now);
    take();
    now += 100;
    fsm->on_tick(now);
    const auto request = the<act_standby_ask>(take()).request;
    EXPECT_EQ(request.what, kind::claim);
    EXPECT_FALSE(request.proven_dead);
    greet();
    take();
    word(supervision_kind::unpaired, 2);
    EXPECT_FALSE(any<act_restart_qemu>(take())) << "the source may be cut off at this moment";
    fsm->on_arbiter({verdict::held, asked, 0, now + 1000, "the switch does not answer"}, now);
    const auto actions = take();
    EXPECT_FALSE(any<act_standby_ask>(actions));
    EXPECT_TRUE(any<act_restart_qemu>(actions)) << "it is said once";
    EXPECT_TRUE(says<act_standby_send>(actions, supervision_kind::belief));
}

// A source that was cut off does not go on, whatever it said before.
TEST_F(standby_handover, without_a_record_a_source_that_was_cut_off_does_not_go_on) {
    begin(false);
    pair();
    word(supervision_kind::handed_over, 2);
    fsm->on_qemu_running(now);
    fsm->on_link_closed("cut", now);
    take();
    now += 100;
    fsm->on_tick(now);
    take();
    greet();
    word(supervision_kind::unpaired, 2);
    fsm->on_arbiter({verdict::granted, asked, 3, UINT64_MAX, {}}, now);
    EXPECT_TRUE(any<act_running>(take()));
}

// With `fence` nothing refuses a claim with proof. What was in the socket while this supervisor stood still
// may be of a life that a person has left since.
TEST_F(standby_handover, without_a_record_a_death_that_was_told_while_it_stood_still_is_no_proof) {
    begin(false);
    pair();
    now += 90000;
    word(supervision_kind::died, 2, "killed");
    auto actions = take();
    EXPECT_FALSE(any<act_take_over>(actions));
    EXPECT_FALSE(any<act_standby_ask>(actions));
    EXPECT_TRUE(any<act_standby_close_link>(actions));
    now += 100;
    fsm->on_tick(now);
    actions = take();
    EXPECT_EQ(the<act_standby_ask>(actions).request.what, kind::claim);
    EXPECT_FALSE(the<act_standby_ask>(actions).request.proven_dead) << "that host is cut off first";
    // Who lives and has not gone on says it again.
    fsm->on_arbiter({verdict::held, asked, 0, now + 1000, "a primary that lives is first"}, now);
    greet();
    word(supervision_kind::died, 2, "killed");
    actions = take();
    EXPECT_TRUE(any<act_take_over>(actions));
    EXPECT_TRUE(the<act_standby_ask>(actions).request.proven_dead);
}

TEST_F(standby_handover, with_a_record_a_death_that_was_told_while_it_stood_still_is_for_the_arbiter) {
    pair();
    now += 90000;
    word(supervision_kind::died, 2, "killed");
    EXPECT_TRUE(the<act_standby_ask>(take()).request.proven_dead);
}

TEST_F(standby_handover, what_is_read_late_does_not_say_that_the_primary_lives) {
    begin(false);
    pair();
    const auto heard = now;
    now += 90000;
    fsm->on_message(mirror::heartbeat{1, 0}, now);
    now += 100;
    fsm->on_tick(now);
    const auto request = the<act_standby_ask>(take()).request;
    EXPECT_EQ(request.what, kind::claim);
    EXPECT_EQ(request.heard_ms, heard);
}

TEST_F(standby_handover, what_is_handed_over_and_does_not_run_stays_where_it_was) {
    pair();
    word(supervision_kind::handed_over, 2);
    take();
    fsm->on_takeover_failed("a load error", now);
    const auto actions = take();
    EXPECT_TRUE(says<act_standby_send>(actions, supervision_kind::takeover_failed));
    EXPECT_TRUE(any<act_restart_qemu>(actions)) << "and this is a standby again";
}

TEST_F(standby_handover, what_was_taken_back_does_not_run_here) {
    pair();
    word(supervision_kind::handed_over, 2);
    fsm->on_qemu_running(now);
    take();
    fsm->on_arbiter({verdict::refused, asked, 0, 0, "the primary goes on alone"}, now);
    const auto actions = take();
    EXPECT_FALSE(any<act_running>(actions));
    EXPECT_TRUE(any<act_restart_qemu>(actions));
}

// The arbiter says so (fence_fsm): what the standby has is not thrown away, a person may know that it is the
// newest. Who may not claim and hears the primary again is told UNPAIRED.
TEST_F(standby_handover, without_a_record_a_claim_that_is_too_old_waits) {
    begin(false);
    pair();
    fsm->on_link_closed("the switch's port was closed", now);
    now += 100;
    fsm->on_tick(now);
    take();
    fsm->on_arbiter({verdict::held, asked, 0, now + 1000, "heard too long ago"}, now);
    now += 900;
    fsm->on_tick(now);
    EXPECT_TRUE(take().empty());
    now += 100;
    fsm->on_tick(now);
    EXPECT_EQ(the<act_standby_ask>(take()).request.heard_ms, now - 1100);
    EXPECT_EQ(fsm->state(), standby_state::claiming);
    fsm->on_arbiter({verdict::held, asked, 0, now + 1000, "heard too long ago"}, now);
    greet();
    word(supervision_kind::unpaired, 2);
    EXPECT_TRUE(any<act_restart_qemu>(take()));
}

// kagemusha_world --arbiter fence, seeds 2100251939, 2201886555, 1900582840: PAIR was read from its socket
// long after the primary had died, and a person had started the VM anew.
TEST_F(standby_handover, without_a_record_it_is_paired_by_a_primary_that_lives_only) {
    begin(false, true);
    word(supervision_kind::pair, 2);
    take();
    seen(1, false);
    const auto is_paired_by = [&](std::uint64_t answer_to) {
        fsm->on_message(mirror::heartbeat{5000, answer_to}, now);
        return says<act_standby_send>(take(), supervision_kind::paired);
    };
    EXPECT_FALSE(is_paired_by(0));
    EXPECT_FALSE(is_paired_by(now)) << "what was said before it could be paired";
    const auto said = now += 20;
    EXPECT_FALSE(is_paired_by(0));
    now += 100;
    EXPECT_FALSE(is_paired_by(said)) << "the primary may have died since";
    const auto again = now;
    now += 99;
    EXPECT_TRUE(is_paired_by(again));
    EXPECT_EQ(fsm->state(), standby_state::synced);
}

TEST_F(standby_handover, without_a_record_a_primary_whose_answers_take_too_long_is_told_why_it_has_no_pair) {
    begin(false, true);
    word(supervision_kind::pair, 2);
    take();
    seen(1, false);
    take();
    now += 1000;
    fsm->on_tick(now);
    EXPECT_EQ(the<act_standby_ask>(take()).request.what, kind::look);
    seen(1, false);
    EXPECT_EQ(std::get<supervision>(the<act_standby_send>(take()).what).kind, supervision_kind::belief);
    EXPECT_FALSE(fsm->waiting_for().empty());
    EXPECT_EQ(fsm->state(), standby_state::proving);
    fsm->on_message(mirror::heartbeat{5000, now}, now + 10);
    EXPECT_TRUE(says<act_standby_send>(take(), supervision_kind::paired));
    EXPECT_TRUE(fsm->waiting_for().empty());
}

} // namespace
} // namespace kagemusha::ha
