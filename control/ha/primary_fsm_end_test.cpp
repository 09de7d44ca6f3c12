// SPDX-License-Identifier: GPL-2.0-or-later
//
// primary_fsm, a case at a time: records that are lost, deaths and stops at bad moments, switchovers, and an
// arbiter without a record.
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

// ---- an arbiter without a record (fence)

// A GPU without a copy is not a standby that has nothing: it may still take the VM's own state over.
TEST_F(primary_end, a_standby_of_another_time_that_lost_its_gpu_is_told_unpaired) {
    tell();
    fsm->on_link_closed("cut", now);
    ASSERT_EQ(fsm->state(), primary_state::alone);
    now += 500;
    fsm->on_tick(now);
    greet();
    take();
    word(supervision_kind::lost, 7, "its GPU has no copy any more");
    EXPECT_TRUE(says<act_send>(take(), supervision_kind::unpaired));
}

TEST_F(primary_end, without_a_record_who_was_told_is_cut_off_before_the_vm_goes_on_alone) {
    shared_record = false;
    tell();
    fsm->on_link_closed("cut", now);
    auto actions = done();
    EXPECT_FALSE(any<act_go_on_alone>(actions));
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::alone);
    EXPECT_FALSE(the<act_ask>(actions).request.confirmed);
}

// A supervisor that crashes and comes back finds that in its record, and opens no second VM.
TEST_F(primary_end, without_a_record_the_standby_is_told_after_that_was_written_down) {
    shared_record = false;
    begin_telling();
    auto actions = done();
    EXPECT_FALSE(says<act_send>(actions, supervision_kind::pair));
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::renew);
    EXPECT_TRUE(the<act_ask>(actions).request.paired);
    fsm->on_arbiter({verdict::unreachable, asked, 0, 0, "disk full"}, now);
    EXPECT_FALSE(says<act_send>(take(), supervision_kind::pair));
    now += 50;
    fsm->on_tick(now);
    done();
    granted(1, UINT64_MAX);
    EXPECT_TRUE(says<act_send>(done(), supervision_kind::pair));
    now += 50;
    fsm->on_tick(now);
    done();
    granted(1, UINT64_MAX);
    EXPECT_FALSE(says<act_send>(done(), supervision_kind::pair)) << "once";
}

TEST_F(primary_end, without_a_record_who_was_not_told_yet_is_not_cut_off) {
    shared_record = false;
    begin_telling();
    done();
    fsm->on_link_closed("cut", now);
    granted(1, UINT64_MAX);
    const auto actions = done();
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::alone) << "the record says that it was told";
    EXPECT_TRUE(the<act_ask>(actions).request.confirmed);
}

TEST_F(primary_end, without_a_record_a_check_that_fails_does_not_keep_it_from_going_on_alone) {
    shared_record = false;
    tell();
    word(supervision_kind::paired, 2);
    fsm->on_marked({}, now);
    EXPECT_EQ(the<act_ask>(done()).request.what, kind::pair);
    fsm->on_link_closed("cut", now);
    fsm->on_arbiter({verdict::unreachable, asked, 0, 0, "the check failed"}, now);
    now += 50;
    fsm->on_tick(now);
    EXPECT_EQ(the<act_ask>(done()).request.what, kind::alone);
}

TEST_F(primary_end, without_a_record_a_standby_that_confirms_is_not_cut_off) {
    shared_record = false;
    protect();
    fsm->on_stop(now);
    auto actions = done();
    EXPECT_TRUE(says<act_send>(actions, supervision_kind::unpaired));
    EXPECT_FALSE(any<act_ask>(actions));
    word(supervision_kind::belief, 0);
    actions = done();
    EXPECT_TRUE(the<act_ask>(actions).request.confirmed);
}

// Found by kagemusha_world (seeds 1101682181 and 1500480847): READY of a QEMU that was started before PAIR
// came, or BELIEF 0 of one whose record could not be read yet; PAIRED followed.
TEST_F(primary_end, without_a_record_a_word_from_before_paired_confirms_nothing) {
    for (const bool ready : {true, false}) {
        shared_record = false;
        tell();
        if (ready)
            word(supervision_kind::ready);
        else
            fsm->on_qemu_replication_lost(fsm->replication(), "too slow", now);
        EXPECT_EQ(fsm->state(), primary_state::unpairing);
        auto actions = done();
        EXPECT_TRUE(says<act_send>(actions, supervision_kind::unpaired));
        EXPECT_FALSE(any<act_ask>(actions));
        const auto told = now;
        now += 5;
        if (!ready)
            word(supervision_kind::belief, 0, "it does not reach the arbiter");
        word(supervision_kind::paired, 2);
        word(supervision_kind::belief, 0); // the answer to UNPAIRED
        fsm->on_message(mirror::heartbeat{1, told}, now);
        EXPECT_FALSE(any<act_ask>(done())) << "that was sent before UNPAIRED";
        fsm->on_message(mirror::heartbeat{1, told + 1}, now);
        actions = done();
        EXPECT_EQ(the<act_ask>(actions).request.what, kind::alone);
        EXPECT_TRUE(the<act_ask>(actions).request.confirmed);
    }
}

TEST_F(primary_end, without_a_record_who_says_nothing_after_paired_is_cut_off) {
    shared_record = false;
    tell();
    word(supervision_kind::ready);
    word(supervision_kind::paired, 2);
    done();
    const auto told = now;
    now += 100;
    fsm->on_message(mirror::heartbeat{1, told + 1}, now);
    fsm->on_tick(now);
    const auto actions = done();
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::alone);
    EXPECT_FALSE(the<act_ask>(actions).request.confirmed);
}

TEST_F(primary_end, without_a_record_a_standby_that_ends_while_it_is_told_is_not_cut_off) {
    shared_record = false;
    tell();
    word(supervision_kind::lost, 0, "it is stopped");
    fsm->on_message(mirror::goodbye{mirror::goodbye_reason::shutdown, "stopped"}, now);
    const auto actions = done();
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::alone);
    EXPECT_TRUE(the<act_ask>(actions).request.confirmed);
}

// ---- another standby is wanted

TEST_F(primary_end, without_a_record_a_standby_that_another_one_follows_may_confirm_it) {
    shared_record = false;
    protect();
    fsm->on_protect("other:7000", now);
    auto actions = done();
    EXPECT_EQ(fsm->state(), primary_state::unpairing);
    EXPECT_TRUE(says<act_send>(actions, supervision_kind::unpaired));
    EXPECT_FALSE(any<act_close_link>(actions)) << "it could not confirm it";
    EXPECT_FALSE(any<act_ask>(actions));
    now += 10;
    word(supervision_kind::belief, 0);
    actions = done();
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::alone);
    EXPECT_TRUE(the<act_ask>(actions).request.confirmed);
    word(supervision_kind::ready);
    granted(2, UINT64_MAX);
    EXPECT_FALSE(any<act_replicate>(done())) << "to the other one only";
    EXPECT_LE(fsm->deadline(), now);
    fsm->on_tick(now);
    actions = done();
    EXPECT_TRUE(any<act_close_link>(actions));
    EXPECT_EQ(the<act_connect>(actions).address, "other:7000");
}

TEST_F(primary_end,
       without_a_record_a_standby_that_another_one_follows_and_that_does_not_confirm_it_is_cut_off) {
    shared_record = false;
    protect();
    fsm->on_protect("other:7000", now);
    done();
    now += 100;
    EXPECT_LE(fsm->deadline(), now);
    fsm->on_tick(now);
    const auto actions = done();
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::alone);
    EXPECT_FALSE(the<act_ask>(actions).request.confirmed);
    EXPECT_TRUE(any<act_close_link>(actions));
    EXPECT_EQ(the<act_connect>(actions).address, "other:7000");
}

// Which host is cut off is that of the standby that was told, wherever the next one is.
TEST_F(primary_end, the_command_of_fence_learns_where_the_standby_is) {
    shared_record = false;
    open();
    fsm->on_link_closed("nobody there", now);
    fsm->on_protect("one:7000", now);
    EXPECT_EQ(the<act_connect>(done()).address, "one:7000");
    greet();
    word(supervision_kind::ready);
    fsm->on_qemu_protecting(fsm->replication(), now);
    done();
    granted(1, UINT64_MAX);
    word(supervision_kind::paired, 2);
    EXPECT_EQ(the<act_ask>(done()).request.whom, "one:7000") << "of a pair: for the check of the command";
    granted(2, UINT64_MAX);
    fsm->on_protect("two:7000", now);
    now += 100;
    fsm->on_tick(now);
    EXPECT_EQ(the<act_ask>(done()).request.whom, "one:7000");
}

TEST_F(primary_end, a_switchover_is_settled_with_the_standby_that_has_the_vm) {
    shared_record = false;
    protect();
    fsm->on_qemu_handed_over(fsm->replication(), now);
    fsm->on_protect("other:7000", now);
    EXPECT_FALSE(any<act_close_link>(done()));
    fsm->on_link_closed("reset", now);
    now += 20;
    fsm->on_tick(now);
    EXPECT_EQ(the<act_connect>(done()).address, "");
    greet();
    word(supervision_kind::running, 3);
    EXPECT_TRUE(says<act_send>(done(), supervision_kind::died));
}

TEST_F(primary_end, another_standby_does_not_end_a_vm_that_runs_with_one_only) {
    policy = loss_policy::stop;
    protect();
    fsm->on_protect("other:7000", now);
    EXPECT_FALSE(any<act_kill_qemu>(done()));
    EXPECT_FALSE(any<act_kill_qemu>(record_alone()));
    EXPECT_EQ(fsm->state(), primary_state::alone);
}

// ---- `fence`: when the standby lived last

// Answers that were in the socket while it stood still are no younger than what they answer.
TEST_F(primary_end, what_is_read_late_does_not_say_that_the_standby_lives) {
    shared_record = false;
    protect();
    now += 20;
    fsm->on_tick(now);
    const auto asked_ms = now;
    done();
    now += 90000;
    fsm->on_message(mirror::heartbeat{5, asked_ms}, now);
    fsm->on_qemu_replication_lost(fsm->replication(), "broken pipe", now);
    now += 100;
    fsm->on_tick(now);
    const auto actions = done();
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::alone);
    EXPECT_EQ(the<act_ask>(actions).request.heard_ms, asked_ms);
}

TEST_F(primary_end, without_a_record_a_standby_that_was_stopped_is_not_cut_off) {
    shared_record = false;
    protect();
    word(supervision_kind::lost, 0, "it is stopped");
    EXPECT_TRUE(the<act_ask>(done()).request.confirmed);
}

TEST_F(primary_end, nothing_counts_before_the_standby_has_said_what_it_is_for) {
    open();
    fsm->on_link_up(now);
    fsm->on_message(hello_of(mirror::role::standby), now);
    word(supervision_kind::ready);
    EXPECT_TRUE(any<act_close_link>(take()));
}

TEST_F(primary_end, a_standby_that_does_not_reach_the_arbiter_says_so) {
    protect();
    word(supervision_kind::belief, 2, "etcd can't be reached");
    EXPECT_EQ(fsm->state(), primary_state::protecting);
    EXPECT_EQ(fsm->standby_problem(), "etcd can't be reached");
}

TEST_F(primary_end, what_a_standby_could_not_do_is_over_when_it_is_paired) {
    tell();
    word(supervision_kind::belief, 0, "etcd can't be reached");
    EXPECT_EQ(fsm->degraded(), "the standby could not take over: etcd can't be reached");
    word(supervision_kind::belief, 0);
    word(supervision_kind::paired, 2);
    EXPECT_EQ(fsm->degraded(), "the pair is being recorded");
}

TEST_F(primary_end, a_qemu_that_stands_still_is_left_to_the_standby) {
    protect();
    fsm->on_qemu_stuck("its main loop has stood still for 8000 ms", now);
    EXPECT_EQ(the<act_kill_qemu>(take()).why, "its main loop has stood still for 8000 ms");
    fsm->on_qemu_stuck("its main loop has stood still for 8000 ms", now); // said again and again
    EXPECT_TRUE(take().empty());
    fsm->on_qemu_died("killed", false, now);
    EXPECT_TRUE(says<act_send>(take(), supervision_kind::died));
}

TEST_F(primary_end, a_qemu_that_stands_still_is_not_killed_without_a_standby) {
    open();
    done();
    fsm->on_qemu_stuck("its main loop has stood still for 8000 ms", now);
    EXPECT_TRUE(take().empty());
    protect();
    fsm->on_link_closed("cut", now);
    take();
    fsm->on_qemu_stuck("its main loop has stood still for 8000 ms", now);
    EXPECT_TRUE(take().empty()) << "the standby may be dead, too";
}

} // namespace
} // namespace kagemusha::ha
