// SPDX-License-Identifier: GPL-2.0-or-later
//
// primary_fsm, a case at a time: an arbiter without a record (`fence`), and when the standby lived last.
#include "control/ha/ha_test_helpers.hpp"

namespace kagemusha::ha {
namespace {

using namespace test;

struct primary_fence : primary_test {};

// A GPU without a copy is not a standby that has nothing: it may still take the VM's own state over.
TEST_F(primary_fence, a_standby_of_another_time_that_lost_its_gpu_is_told_unpaired) {
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

TEST_F(primary_fence, without_a_record_who_was_told_is_cut_off_before_the_vm_goes_on_alone) {
    shared_record = false;
    tell();
    fsm->on_link_closed("cut", now);
    auto actions = done();
    EXPECT_FALSE(any<act_go_on_alone>(actions));
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::alone);
    EXPECT_FALSE(the<act_ask>(actions).request.confirmed);
}

// A supervisor that crashes and comes back finds that in its record, and opens no second VM.
TEST_F(primary_fence, without_a_record_the_standby_is_told_after_that_was_written_down) {
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

TEST_F(primary_fence, without_a_record_who_was_not_told_yet_is_not_cut_off) {
    shared_record = false;
    begin_telling();
    done();
    fsm->on_link_closed("cut", now);
    granted(1, UINT64_MAX);
    const auto actions = done();
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::alone) << "the record says that it was told";
    EXPECT_TRUE(the<act_ask>(actions).request.confirmed);
}

TEST_F(primary_fence, without_a_record_a_check_that_fails_does_not_keep_it_from_going_on_alone) {
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

TEST_F(primary_fence, without_a_record_a_standby_that_confirms_is_not_cut_off) {
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
TEST_F(primary_fence, without_a_record_a_word_from_before_paired_confirms_nothing) {
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

TEST_F(primary_fence, without_a_record_who_says_nothing_after_paired_is_cut_off) {
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

TEST_F(primary_fence, without_a_record_a_standby_that_ends_while_it_is_told_is_not_cut_off) {
    shared_record = false;
    tell();
    word(supervision_kind::lost, 0, "it is stopped");
    fsm->on_message(mirror::goodbye{mirror::goodbye_reason::shutdown, "stopped"}, now);
    const auto actions = done();
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::alone);
    EXPECT_TRUE(the<act_ask>(actions).request.confirmed);
}

// ---- another standby is wanted

TEST_F(primary_fence, without_a_record_a_standby_that_another_one_follows_may_confirm_it) {
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

TEST_F(primary_fence,
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
TEST_F(primary_fence, the_command_of_fence_learns_where_the_standby_is) {
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

TEST_F(primary_fence, a_switchover_is_settled_with_the_standby_that_has_the_vm) {
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

TEST_F(primary_fence, another_standby_does_not_end_a_vm_that_runs_with_one_only) {
    policy = loss_policy::stop;
    protect();
    fsm->on_protect("other:7000", now);
    EXPECT_FALSE(any<act_kill_qemu>(done()));
    EXPECT_FALSE(any<act_kill_qemu>(record_alone()));
    EXPECT_EQ(fsm->state(), primary_state::alone);
}

// ---- `fence`: when the standby lived last

// Answers that were in the socket while it stood still are no younger than what they answer.
TEST_F(primary_fence, what_is_read_late_does_not_say_that_the_standby_lives) {
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

TEST_F(primary_fence, without_a_record_a_standby_that_was_stopped_is_not_cut_off) {
    shared_record = false;
    protect();
    word(supervision_kind::lost, 0, "it is stopped");
    EXPECT_TRUE(the<act_ask>(done()).request.confirmed);
}

TEST_F(primary_fence, nothing_counts_before_the_standby_has_said_what_it_is_for) {
    open();
    fsm->on_link_up(now);
    fsm->on_message(hello_of(mirror::role::standby), now);
    word(supervision_kind::ready);
    EXPECT_TRUE(any<act_close_link>(take()));
}

TEST_F(primary_fence, a_standby_that_does_not_reach_the_arbiter_says_so) {
    protect();
    word(supervision_kind::belief, 2, "etcd can't be reached");
    EXPECT_EQ(fsm->state(), primary_state::protecting);
    EXPECT_EQ(fsm->standby_problem(), "etcd can't be reached");
}

TEST_F(primary_fence, what_a_standby_could_not_do_is_over_when_it_is_paired) {
    tell();
    word(supervision_kind::belief, 0, "etcd can't be reached");
    EXPECT_EQ(fsm->degraded(), "the standby could not take over: etcd can't be reached");
    word(supervision_kind::belief, 0);
    word(supervision_kind::paired, 2);
    EXPECT_EQ(fsm->degraded(), "the pair is being recorded");
}

TEST_F(primary_fence, a_qemu_that_stands_still_is_left_to_the_standby) {
    protect();
    fsm->on_qemu_stuck("its main loop has stood still for 8000 ms", now);
    EXPECT_EQ(the<act_kill_qemu>(take()).why, "its main loop has stood still for 8000 ms");
    fsm->on_qemu_stuck("its main loop has stood still for 8000 ms", now); // said again and again
    EXPECT_TRUE(take().empty());
    fsm->on_qemu_died("killed", false, now);
    EXPECT_TRUE(says<act_send>(take(), supervision_kind::died));
}

TEST_F(primary_fence, a_qemu_that_stands_still_is_not_killed_without_a_standby) {
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
