// SPDX-License-Identifier: GPL-2.0-or-later
//
// primary_fsm, a case at a time: records that are lost, deaths and stops at bad moments, switchovers. An arbiter
// without a record: primary_fsm_fence_test.cpp.
#include "control/ha/ha_test_helpers.hpp"

namespace kagemusha::ha {
namespace {

using namespace test;

struct primary_end : primary_test {};

// ---- a record that is gone

TEST_F(primary_end, a_record_that_is_gone_kills_nobody) {
    open();
    now += 50;
    fsm->on_tick(now);
    done();
    fsm->on_arbiter({verdict::gone, asked, 0, 0, "etcd has no record"}, now);
    auto actions = done();
    EXPECT_FALSE(any<act_kill_qemu>(actions));
    EXPECT_EQ(the<act_gate>(actions).until_ms, 0u) << "another one could be given the VM now";
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::restore);
    EXPECT_FALSE(the<act_ask>(actions).request.paired);
    granted(1, now + 300);
    EXPECT_EQ(the<act_gate>(take()).until_ms, now + 300);
}

TEST_F(primary_end, a_record_that_is_another_ones_by_now_kills) {
    protect();
    now += 50;
    fsm->on_tick(now);
    done();
    fsm->on_arbiter({verdict::gone, asked, 0, 0, "etcd has no record"}, now);
    EXPECT_TRUE(the<act_ask>(done()).request.paired) << "our lease was valid";
    fsm->on_arbiter({verdict::refused, asked, 0, 0, "another has it"}, now);
    EXPECT_TRUE(any<act_kill_qemu>(take()));
}

TEST_F(primary_end, a_pairs_record_is_made_again_only_by_who_knows_that_nobody_took_over) {
    protect();
    fsm->on_link_closed("cut", now);
    now += 1000; // frozen: the lease is over, and the standby may have claimed
    fsm->on_tick(now);
    done();
    fsm->on_arbiter({verdict::gone, asked, 0, 0, "etcd has no record"}, now);
    auto actions = done();
    EXPECT_EQ(the<act_gate>(actions).until_ms, 0u);
    EXPECT_FALSE(any<act_ask>(actions));
    EXPECT_NE(fsm->waiting_for(now).find("may have taken over"), std::string::npos);
    greet();
    done();
    fsm->on_message(mirror::heartbeat{5, now}, now);
    EXPECT_EQ(the<act_ask>(done()).request.what, kind::restore) << "it is heard, so it has not";
}

// ---- the order of the mark

TEST_F(primary_end, the_pair_is_recorded_after_the_mark_is_durable) {
    disks = true;
    tell();
    word(supervision_kind::paired, 2);
    auto actions = done();
    EXPECT_EQ(the<act_mark>(actions).mark.state, disk_state::protected_);
    EXPECT_FALSE(any<act_ask>(actions));
    now += 50;
    fsm->on_tick(now);
    EXPECT_EQ(the<act_ask>(done()).request.what, kind::renew);
    granted(1, now + 300);
    EXPECT_FALSE(any<act_ask>(done()));
    fsm->on_marked({}, now);
    EXPECT_EQ(the<act_ask>(done()).request.what, kind::pair);
}

TEST_F(primary_end, a_mark_that_cannot_be_written_protects_nobody) {
    disks = true;
    tell();
    word(supervision_kind::paired, 2);
    done();
    fsm->on_marked("vm.img.kagemusha: no space", now);
    EXPECT_EQ(fsm->state(), primary_state::unpairing);
    EXPECT_EQ(the<act_ask>(done()).request.what, kind::alone);
    EXPECT_EQ(fsm->degraded(), "vm.img.kagemusha: no space");
}

// ---- deaths before the pair is recorded, and after `alone` may have been

TEST_F(primary_end, a_death_while_the_pair_is_recorded_is_told_when_it_is) {
    tell();
    word(supervision_kind::paired, 2);
    fsm->on_marked({}, now);
    done();
    fsm->on_qemu_died("killed", false, now);
    EXPECT_FALSE(says<act_send>(done(), supervision_kind::died)) << "it could not claim";
    fsm->on_arbiter({verdict::unreachable, asked, 0, 0, "away"}, now);
    now += 50;
    fsm->on_tick(now);
    EXPECT_EQ(the<act_ask>(done()).request.what, kind::pair);
    granted(2, now + 300);
    EXPECT_TRUE(says<act_send>(take(), supervision_kind::died));
}

TEST_F(primary_end, a_death_before_the_standby_has_answered_is_told_later) {
    disks = true;
    tell();
    fsm->on_qemu_died("killed", false, now);
    done();
    word(supervision_kind::paired, 2);
    EXPECT_TRUE(any<act_mark>(done()));
    fsm->on_marked({}, now);
    EXPECT_EQ(the<act_ask>(done()).request.what, kind::pair);
    granted(2, now + 300);
    EXPECT_TRUE(says<act_send>(take(), supervision_kind::died));
}

TEST_F(primary_end, a_death_after_alone_was_asked_for_says_that_nothing_was_released) {
    protect();
    fsm->on_qemu_replication_lost(fsm->replication(), "broken pipe", now);
    done();
    fsm->on_qemu_died("killed", false, now); // the answer is lost, or on its way
    for (const auto& a : take())
        if (const auto* sent = std::get_if<act_send>(&a))
            if (const auto* s = std::get_if<supervision>(&sent->what);
                s && s->kind == supervision_kind::died) {
                EXPECT_TRUE(s->unreleased);
                return;
            }
    ADD_FAILURE() << "DIED was not said";
}

TEST_F(primary_end, a_killed_qemu_that_does_not_end_is_left_to_the_standby_with_its_gate_closed) {
    protect();
    fsm->on_gpu_failed("its worker died", now);
    EXPECT_TRUE(any<act_kill_qemu>(done()));
    now += 3000;
    fsm->on_message(mirror::heartbeat{5, now}, now);
    fsm->on_tick(now);
    const auto actions = done();
    EXPECT_EQ(the<act_gate>(actions).until_ms, 0u);
    EXPECT_TRUE(says<act_send>(actions, supervision_kind::died));
    fsm->on_message(mirror::heartbeat{5, now}, now);
    EXPECT_FALSE(any<act_gate>(done())) << "for good";
}

// ---- a stop that the arbiter does not hear

TEST_F(primary_end, a_stop_without_an_arbiter_ends_when_the_standby_has_confirmed_it) {
    protect();
    fsm->on_stop(now);
    EXPECT_TRUE(says<act_send>(done(), supervision_kind::unpaired));
    fsm->on_arbiter({verdict::unreachable, asked, 0, 0, "away"}, now);
    EXPECT_EQ(fsm->state(), primary_state::unpairing);
    word(supervision_kind::belief, 0);
    done();
    now += 2000;
    fsm->on_message(mirror::heartbeat{5, now}, now);
    fsm->on_tick(now);
    const auto end = the<act_ended>(take());
    EXPECT_TRUE(end.in_order);
    EXPECT_FALSE(end.alone) << "the record still says that a standby may go on";
}

TEST_F(primary_end, a_stop_that_nobody_hears_says_so) {
    protect();
    fsm->on_link_closed("cut", now);
    fsm->on_stop(now);
    done();
    fsm->on_arbiter({verdict::unreachable, asked, 0, 0, "away"}, now);
    now += 29999;
    fsm->on_tick(now);
    EXPECT_EQ(fsm->state(), primary_state::unpairing);
    now += 1;
    fsm->on_tick(now);
    const auto end = the<act_ended>(take());
    EXPECT_FALSE(end.in_order);
    EXPECT_NE(end.why.find("may start the VM"), std::string::npos);
}

TEST_F(primary_end, a_stop_that_the_arbiter_never_answers_says_so) {
    protect();
    fsm->on_link_closed("cut", now);
    fsm->on_stop(now);
    now += 30000;
    fsm->on_tick(now);
    EXPECT_TRUE(the<act_ended>(take()).why.ends_with("the arbiter does not answer"));
}

// Found by kagemusha_world (seed 3500536825): between the last renewal and the stop, the arbiter was put back
// to when the pair was recorded, and the standby of then started what a person had stopped.
TEST_F(primary_end, who_ends_alone_says_so_when_it_releases_its_lease) {
    protect();
    fsm->on_stop(now);
    EXPECT_EQ(the<act_ask>(done()).request.what, kind::alone);
    granted(2, now + 300);
    const auto last = take();
    ASSERT_TRUE(the<act_ended>(last).alone);
    EXPECT_EQ(the<act_ask>(last).request.what, kind::release);
    EXPECT_TRUE(the<act_ask>(last).request.alone);
}

TEST_F(primary_end, who_leaves_the_vm_to_its_standby_says_nothing_of_alone) {
    protect();
    fsm->on_qemu_died("killed", false, now);
    const auto request = the<act_ask>(done()).request;
    EXPECT_EQ(request.what, kind::release);
    EXPECT_FALSE(request.alone);
}

TEST_F(primary_end, a_guest_that_ends_with_its_qemu_is_a_stop) {
    protect();
    fsm->on_qemu_died("the guest switched itself off", true, now);
    EXPECT_EQ(the<act_ask>(done()).request.what, kind::alone);
    granted(2, now + 300);
    EXPECT_TRUE(the<act_ended>(take()).alone);
}

// ---- switchovers

TEST_F(primary_end, a_switchover_keeps_the_vm_until_the_standby_runs_it) {
    protect();
    fsm->on_qemu_handed_over(fsm->replication(), now);
    EXPECT_FALSE(any<act_kill_qemu>(take()));
    word(supervision_kind::running, 3);
    const auto actions = take();
    EXPECT_TRUE(any<act_kill_qemu>(actions));
    EXPECT_TRUE(the<act_ended>(actions).in_order);
    EXPECT_FALSE(the<act_ended>(actions).alone);
}

// Nobody takes the VM back any more, so the standby need not wait for a word, nor ask for one.
TEST_F(primary_end, a_source_whose_qemu_dies_says_so) {
    for (const bool shared : {true, false}) {
        shared_record = shared;
        protect();
        fsm->on_qemu_handed_over(fsm->replication(), now);
        EXPECT_TRUE(says<act_send>(take(), supervision_kind::handed_over));
        fsm->on_qemu_died("killed", false, now);
        auto actions = take();
        EXPECT_TRUE(says<act_send>(actions, supervision_kind::died));
        EXPECT_FALSE(says<act_send>(actions, supervision_kind::handed_over));
        fsm->on_link_closed("reset", now);
        now += 20;
        fsm->on_tick(now);
        greet();
        actions = take();
        EXPECT_TRUE(says<act_send>(actions, supervision_kind::died)) << "it may not have heard it";
        EXPECT_FALSE(says<act_send>(actions, supervision_kind::handed_over));
    }
}

TEST_F(primary_end, a_switchover_that_fails_goes_on_here) {
    protect();
    fsm->on_qemu_handed_over(fsm->replication(), now);
    take();
    word(supervision_kind::takeover_failed, 2, "a load error");
    auto actions = done();
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::alone);
    EXPECT_FALSE(any<act_go_on_alone>(actions)) << "the standby may have claimed it";
    granted(2, now + 300);
    actions = take();
    EXPECT_TRUE(any<act_go_on_alone>(actions));
    EXPECT_EQ(the<act_gate>(actions).until_ms, now + 300);
}

TEST_F(primary_end, a_switchover_that_is_not_answered_goes_on_here_unless_it_was_claimed) {
    protect();
    fsm->on_qemu_handed_over(fsm->replication(), now);
    take();
    now += 10000;
    fsm->on_tick(now);
    EXPECT_EQ(fsm->state(), primary_state::reclaiming);
    done();
    fsm->on_arbiter({verdict::refused, asked, 0, 0, "term 2 is over"}, now);
    const auto actions = take();
    EXPECT_TRUE(any<act_kill_qemu>(actions));
    EXPECT_TRUE(the<act_ended>(actions).in_order);
}

// Found by kagemusha_world's checker `ends`: a standby that was stopped before it had greeted on a new
// connection was taken for one of an older release that runs the VM.
TEST_F(primary_end, a_goodbye_before_the_greeting_does_not_say_that_the_vm_runs_there) {
    protect();
    fsm->on_qemu_handed_over(fsm->replication(), now);
    fsm->on_link_closed("reset", now);
    now += 20;
    fsm->on_tick(now);
    done();
    fsm->on_link_up(now);
    fsm->on_message(mirror::goodbye{mirror::goodbye_reason::shutdown, "stopped"}, now);
    EXPECT_EQ(fsm->state(), primary_state::handing_over);
    EXPECT_FALSE(any<act_ended>(done()));
}

TEST_F(primary_end, a_switchover_can_be_cancelled) {
    protect();
    fsm->on_qemu_handed_over(fsm->replication(), now);
    done();
    fsm->on_cancel_switchover(now);
    EXPECT_EQ(the<act_ask>(done()).request.what, kind::alone);
    granted(2, now + 300);
    const auto actions = take();
    EXPECT_TRUE(any<act_go_on_alone>(actions));
    EXPECT_TRUE(says<act_send>(actions, supervision_kind::unpaired));
}

TEST_F(primary_end, a_switchover_without_a_record_is_over_with_the_sources_word) {
    shared_record = false;
    protect();
    fsm->on_qemu_handed_over(fsm->replication(), now);
    take();
    word(supervision_kind::running, 3);
    const auto actions = take();
    EXPECT_TRUE(any<act_kill_qemu>(actions));
    EXPECT_TRUE(says<act_send>(actions, supervision_kind::died)) << "the standby waits for it";
    EXPECT_TRUE(the<act_ended>(actions).in_order);
}

TEST_F(primary_end, a_switchover_without_a_record_is_taken_back_when_the_standby_is_cut_off) {
    shared_record = false;
    protect();
    fsm->on_qemu_handed_over(fsm->replication(), now);
    fsm->on_link_closed("cut", now);
    take();
    now += 10000;
    fsm->on_tick(now);
    EXPECT_EQ(fsm->state(), primary_state::reclaiming);
    auto actions = done();
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::alone);
    EXPECT_FALSE(the<act_ask>(actions).request.confirmed);
    fsm->on_link_up(now);
    fsm->on_message(hello_of(mirror::role::standby), now);
    word(supervision_kind::description, 0, "d");
    EXPECT_TRUE(says<act_send>(take(), supervision_kind::unpaired));
    word(supervision_kind::running, 3);
    EXPECT_FALSE(any<act_kill_qemu>(take())) << "it may be cut off at this moment";
    granted(2, UINT64_MAX);
    EXPECT_TRUE(any<act_go_on_alone>(take()));
}

TEST_F(primary_end, a_standby_that_hears_it_confirms_that_the_switchover_is_taken_back) {
    shared_record = false;
    protect();
    fsm->on_qemu_handed_over(fsm->replication(), now);
    fsm->on_cancel_switchover(now);
    auto actions = done();
    EXPECT_TRUE(says<act_send>(actions, supervision_kind::unpaired));
    EXPECT_FALSE(any<act_ask>(actions));
    word(supervision_kind::belief, 0);
    actions = done();
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::alone);
    EXPECT_TRUE(the<act_ask>(actions).request.confirmed);
}

} // namespace
} // namespace kagemusha::ha
