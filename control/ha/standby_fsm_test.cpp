// SPDX-License-Identifier: GPL-2.0-or-later
//
// The state machine of a standby's supervisor, a case at a time; docs/spec/takeover.md names the test of each
// of its rows. Switchovers, and claims without a record: standby_fsm_handover_test.cpp.
#include "control/ha/ha_test_helpers.hpp"

namespace kagemusha::ha {
namespace {

using namespace test;

struct standby : standby_test {};

TEST_F(standby, takes_over_at_once_with_proof_and_runs_with_the_arbiters_leave) {
    pair();
    fsm->on_message(supervision{supervision_kind::died, 2, "killed"}, now);
    auto actions = take();
    EXPECT_TRUE(any<act_take_over>(actions));
    EXPECT_TRUE(the<act_standby_ask>(actions).request.proven_dead);
    fsm->on_qemu_running(now + 5);
    EXPECT_FALSE(any<act_running>(take()));
    fsm->on_arbiter({verdict::granted, asked, 3, now + 300, {}}, now + 6);
    const auto running = the<act_running>(take());
    EXPECT_EQ(running.term, 3u);
    EXPECT_FALSE(running.gpu_failed);
}

TEST_F(standby, a_takeover_for_a_failed_gpu_is_told_as_one) {
    pair();
    supervision died{supervision_kind::died, 2, "killed, because its GPU failed"};
    died.gpu_failed = true;
    fsm->on_message(died, now);
    take();
    fsm->on_qemu_running(now);
    fsm->on_arbiter({verdict::granted, asked, 3, now + 300, {}}, now);
    EXPECT_TRUE(the<act_running>(take()).gpu_failed);
}

TEST_F(standby, proof_of_another_term_is_none) {
    pair();
    fsm->on_message(supervision{supervision_kind::died, 1, "killed"}, now);
    EXPECT_FALSE(any<act_take_over>(take()));
}

// BELIEF 0 takes READY back. HANDED_OVER that was under way while another QEMU was started would leave a
// ready standby unused for ever (kagemusha_world --arbiter lock --hosts 3 --seed 3400082596).
TEST_F(standby, who_is_ready_answers_a_late_word_with_nothing) {
    pair();
    fsm->on_qemu_died("killed", fsm->qemu(), now);
    fsm->on_qemu_ready(fsm->qemu(), now);
    EXPECT_TRUE(says<act_standby_send>(take(), supervision_kind::ready));
    for (const auto late : {supervision_kind::handed_over, supervision_kind::died}) {
        word(late, 2);
        EXPECT_TRUE(take().empty());
    }
}

TEST_F(standby, does_not_take_over_before_it_is_paired) {
    fsm->on_message(supervision{supervision_kind::died, 0, "killed"}, now);
    EXPECT_FALSE(any<act_take_over>(take()));
}

TEST_F(standby, a_closed_connection_is_no_proof) {
    pair();
    fsm->on_link_closed("reset", now);
    EXPECT_FALSE(any<act_take_over>(take()));
    fsm->on_tick(now + 99);
    EXPECT_FALSE(any<act_standby_ask>(take()));
    fsm->on_tick(now + 100);
    const auto actions = take();
    EXPECT_FALSE(any<act_take_over>(actions));
    EXPECT_EQ(the<act_standby_ask>(actions).request.what, kind::claim);
    EXPECT_FALSE(the<act_standby_ask>(actions).request.proven_dead);
    fsm->on_arbiter({verdict::granted, asked, 3, now + 400, {}}, now + 101);
    EXPECT_TRUE(any<act_take_over>(take()));
}

TEST_F(standby, waits_for_a_lease_and_says_so_when_the_arbiter_is_away) {
    pair();
    now += 100;
    fsm->on_tick(now);
    take();
    fsm->on_arbiter({verdict::held, asked, 0, now + 150, "held"}, now);
    EXPECT_EQ(fsm->deadline(), now + 150);
    now += 150;
    fsm->on_tick(now);
    take();
    fsm->on_arbiter({verdict::unreachable, asked, 0, 0, "etcd can't be reached"}, now);
    EXPECT_FALSE(any<act_take_over>(take()));
    EXPECT_EQ(fsm->waiting_for(), "etcd can't be reached");
    EXPECT_EQ(fsm->deadline(), now + 30);
}

TEST_F(standby, an_answer_after_the_end_is_nobodys) {
    pair();
    now += 100;
    fsm->on_tick(now);
    EXPECT_TRUE(any<act_standby_ask>(take()));
    fsm->on_stop(now);
    take();
    fsm->on_arbiter({verdict::granted, asked, 3, now + 400, {}}, now);
    EXPECT_TRUE(take().empty());
    EXPECT_EQ(fsm->state(), standby_state::ended);
}

TEST_F(standby, promises_nothing_while_it_claims) {
    pair();
    now += 100;
    fsm->on_tick(now);
    take();
    const auto claim = asked;
    greet();
    take();
    fsm->on_message(mirror::heartbeat{now - 50, 0}, now + 1);
    EXPECT_FALSE(any<act_standby_send>(take()));
    fsm->on_arbiter({verdict::held, claim, 0, now + 150, "held"}, now + 2);
    EXPECT_EQ(fsm->state(), standby_state::synced);
    fsm->on_message(mirror::heartbeat{now, 0}, now + 3);
    EXPECT_TRUE(any<act_standby_send>(take()));
}

TEST_F(standby, a_gpu_without_a_copy_is_said_at_once) {
    pair();
    fsm->on_gpu_lost("a worker died", now);
    EXPECT_TRUE(says<act_standby_send>(take(), supervision_kind::lost));
    EXPECT_EQ(fsm->state(), standby_state::synced) << "until the primary says that it goes on alone";
    fsm->on_gpu_lost("a worker died", now);
    EXPECT_TRUE(take().empty()) << "once";
    fsm->on_message(supervision{supervision_kind::unpaired, 2, "lost"}, now);
    EXPECT_TRUE(any<act_restart_qemu>(take()));
    fsm->on_gpu_lost("a worker died", now); // of the QEMU that is being killed
    fsm->on_qemu_ready(fsm->qemu(), now);
    EXPECT_FALSE(says<act_standby_send>(take(), supervision_kind::lost));
    EXPECT_EQ(fsm->gpu_lost(), "");
}

TEST_F(standby, a_gpu_without_a_copy_is_said_when_the_primary_connects) {
    pair();
    fsm->on_link_closed("cut", now);
    fsm->on_gpu_lost("a worker died", now);
    EXPECT_TRUE(take().empty()) << "nobody hears it";
    fsm->on_link_up(now);
    fsm->on_message(hello_of(mirror::role::primary), now);
    EXPECT_TRUE(says<act_standby_send>(take(), supervision_kind::lost));
}

TEST_F(standby, a_takeover_without_the_gpus_state_says_so) {
    pair();
    fsm->on_gpu_lost("a worker died", now);
    take();
    fsm->on_message(supervision{supervision_kind::died, 2, "killed"}, now);
    EXPECT_EQ(the<act_take_over>(take()).why,
              "the primary's QEMU has ended: killed; without the state of its GPU, so programs that use it "
              "get errors: a worker died");
}

TEST_F(standby, an_outdated_one_starts_anew) {
    pair();
    fsm->on_message(supervision{supervision_kind::unpaired, 2, "too slow"}, now);
    EXPECT_TRUE(any<act_restart_qemu>(take()));
    fsm->on_qemu_ready(fsm->qemu(), now);
    EXPECT_TRUE(says<act_standby_send>(take(), supervision_kind::ready));
}

TEST_F(standby, the_arbiters_refusal_makes_it_outdated) {
    pair();
    now += 100;
    fsm->on_tick(now);
    take();
    fsm->on_arbiter({verdict::refused, asked, 0, 0, "the primary goes on alone"}, now);
    const auto actions = take();
    EXPECT_FALSE(any<act_take_over>(actions));
    EXPECT_TRUE(any<act_restart_qemu>(actions));
}

// As often as it comes again: its QEMU has heard nothing of it, so it need not start anew.
TEST_F(standby, who_is_refused_costs_no_qemu_and_is_told_once) {
    listen();
    for (int i = 0; i < 3; ++i) {
        connect();
        EXPECT_FALSE(says<act_standby_send>(take(), supervision_kind::ready));
        word(supervision_kind::description, 0, "other");
        const auto actions = take();
        EXPECT_TRUE(any<act_standby_close_link>(actions));
        EXPECT_FALSE(any<act_restart_qemu>(actions));
        EXPECT_EQ(any<act_standby_state>(actions), i == 0);
        EXPECT_NE(fsm->waiting_for(), "");
        EXPECT_EQ(fsm->state(), standby_state::listening);
    }
    greet();
    EXPECT_TRUE(says<act_standby_send>(take(), supervision_kind::ready));
    EXPECT_EQ(fsm->waiting_for(), "");
}

TEST_F(standby, a_refusal_of_the_primarys_is_told_once) {
    listen();
    for (int i = 0; i < 2; ++i) {
        connect();
        take();
        fsm->on_message(mirror::goodbye{mirror::goodbye_reason::refused, "another machine"}, now);
        const auto actions = take();
        EXPECT_FALSE(any<act_restart_qemu>(actions));
        EXPECT_EQ(any<act_standby_state>(actions), i == 0);
        EXPECT_EQ(fsm->waiting_for(), "another machine");
    }
}

TEST_F(standby, another_description_is_refused) {
    fsm->on_message(supervision{supervision_kind::description, 0, "other"}, now);
    EXPECT_TRUE(any<act_standby_close_link>(take()));
}

TEST_F(standby, the_devices_connection_is_refused) {
    standby_config c;
    c.vm = "vm";
    standby_fsm other(c);
    other.on_qemu_ready(other.qemu(), now);
    other.on_link_up(now);
    auto h = hello_of(mirror::role::primary);
    h.capabilities = {"zstd"};
    other.on_message(h, now);
    EXPECT_TRUE(any<act_standby_close_link>(actions_of<standby_fsm, standby_action>(other)));
}

TEST_F(standby, who_cannot_read_the_record_is_not_paired_and_says_why) {
    word(supervision_kind::pair, 2);
    take();
    fsm->on_arbiter({verdict::unreachable, asked, 0, 0, "etcd can't be reached"}, now);
    auto actions = take();
    EXPECT_FALSE(says<act_standby_send>(actions, supervision_kind::paired));
    EXPECT_TRUE(says<act_standby_send>(actions, supervision_kind::belief));
    EXPECT_EQ(fsm->waiting_for(), "etcd can't be reached");
    now += 30;
    fsm->on_tick(now);
    EXPECT_EQ(the<act_standby_ask>(take()).request.what, kind::look);
    seen(1, false);
    EXPECT_TRUE(says<act_standby_send>(take(), supervision_kind::paired));
}

TEST_F(standby, another_arbiters_record_is_no_proof) {
    supervision pair{supervision_kind::pair, 2, {}};
    pair.recorded = 1;
    fsm->on_message(pair, now);
    take();
    seen(0, false);
    EXPECT_FALSE(says<act_standby_send>(take(), supervision_kind::paired));
    EXPECT_NE(fsm->waiting_for().find("same arbiter"), std::string::npos);
}

TEST_F(standby, it_looks_at_the_record_now_and_then) {
    pair();
    now += 1000;
    fsm->on_message(mirror::heartbeat{now, 0}, now);
    fsm->on_tick(now);
    EXPECT_EQ(the<act_standby_ask>(take()).request.what, kind::look);
    fsm->on_arbiter({verdict::unreachable, asked, 0, 0, "etcd can't be reached"}, now);
    EXPECT_TRUE(says<act_standby_send>(take(), supervision_kind::belief)) << "the primary's status has it";
    EXPECT_EQ(fsm->state(), standby_state::synced);
}

TEST_F(standby, it_looks_at_the_record_after_a_claim_without_an_answer) {
    pair();
    fsm->on_link_closed("cut", now);
    now += 100;
    fsm->on_tick(now);
    take();
    fsm->on_arbiter({verdict::unreachable, asked, 0, 0, "away"}, now);
    greet();
    EXPECT_EQ(fsm->state(), standby_state::synced);
    EXPECT_EQ(the<act_standby_ask>(take()).request.what, kind::look);
    seen(2, false); // the primary goes on alone
    EXPECT_TRUE(says<act_standby_send>(take(), supervision_kind::belief)) << "which is answered by UNPAIRED";
    fsm->on_link_closed("cut", now);
    now += 1000;
    fsm->on_tick(now);
    fsm->on_arbiter({verdict::refused, asked, 0, 0, "the primary goes on alone"}, now);
    EXPECT_EQ(fsm->state(), standby_state::claiming);
}

TEST_F(standby, a_claim_that_may_have_been_granted_is_not_repeated_while_the_primary_is_heard) {
    pair();
    now += 100;
    fsm->on_tick(now);
    take();
    fsm->on_arbiter({verdict::unreachable, asked, 0, 0, "away"}, now);
    greet();
    take();
    seen(3, false, true);
    EXPECT_FALSE(any<act_take_over>(take())) << "the primary relies on the heartbeats that were answered";
    EXPECT_EQ(fsm->state(), standby_state::synced);
}

TEST_F(standby, unpaired_is_acknowledged_however_often_it_comes) {
    pair();
    word(supervision_kind::unpaired, 2, "lost");
    EXPECT_TRUE(says<act_standby_send>(take(), supervision_kind::belief));
    word(supervision_kind::unpaired, 2, "lost");
    const auto actions = take();
    EXPECT_TRUE(says<act_standby_send>(actions, supervision_kind::belief));
    EXPECT_FALSE(any<act_restart_qemu>(actions)) << "once";
}

TEST_F(standby, a_primary_that_does_not_know_it_makes_it_outdated) {
    pair();
    fsm->on_link_closed("cut", now);
    greet();
    EXPECT_TRUE(says<act_standby_send>(take(), supervision_kind::belief));
    word(supervision_kind::belief, 0);
    EXPECT_TRUE(any<act_restart_qemu>(take()));
}

TEST_F(standby, an_older_primary_hears_no_word_that_it_does_not_know) {
    standby_config c;
    c.vm = "vm";
    c.description = "d";
    standby_fsm other(c);
    other.on_qemu_ready(other.qemu(), now);
    other.on_link_up(now);
    auto h = hello_of(mirror::role::primary);
    h.capabilities = {"supervision"};
    other.on_message(h, now);
    other.on_message(supervision{supervision_kind::description, 0, "d"}, now);
    const auto actions = actions_of<standby_fsm, standby_action>(other);
    EXPECT_FALSE(says<act_standby_send>(actions, supervision_kind::belief));
    EXPECT_TRUE(says<act_standby_send>(actions, supervision_kind::ready));
}

TEST_F(standby, nothing_counts_before_the_primary_has_said_what_it_is_for) {
    pair();
    fsm->on_link_closed("cut", now);
    fsm->on_link_up(now);
    fsm->on_message(hello_of(mirror::role::primary), now);
    take();
    word(supervision_kind::died, 2, "killed");
    const auto actions = take();
    EXPECT_FALSE(any<act_take_over>(actions));
    EXPECT_TRUE(any<act_standby_close_link>(actions));
}

TEST_F(standby, a_silent_connection_makes_room_for_a_new_one) {
    pair();
    now += 100;
    fsm->on_tick(now);
    EXPECT_TRUE(any<act_standby_close_link>(take()));
    EXPECT_EQ(fsm->state(), standby_state::claiming);
}

TEST_F(standby, a_death_without_a_release_claims_also_what_is_alone) {
    pair();
    supervision died{supervision_kind::died, 2, "killed"};
    died.unreleased = true;
    fsm->on_message(died, now);
    EXPECT_TRUE(the<act_standby_ask>(take()).request.unreleased);
}

TEST_F(standby, a_record_that_is_gone_is_made_again_with_proof_only) {
    pair();
    now += 100;
    fsm->on_tick(now);
    take();
    fsm->on_arbiter({verdict::gone, asked, 0, 0, "no record"}, now);
    EXPECT_EQ(fsm->state(), standby_state::claiming);
    EXPECT_EQ(fsm->waiting_for(), "no record");
    greet();
    take();
    word(supervision_kind::died, 2, "killed");
    EXPECT_EQ(the<act_standby_ask>(take()).request.what, kind::claim);
    fsm->on_arbiter({verdict::gone, asked, 0, 0, "no record"}, now);
    const auto again = the<act_standby_ask>(take()).request;
    EXPECT_EQ(again.what, kind::restore);
    EXPECT_EQ(again.term, 3u);
    EXPECT_FALSE(again.paired);
}

TEST_F(standby, a_gpu_that_fails_before_it_is_paired_begins_anew) {
    fsm->on_gpu_lost("a worker died", now);
    const auto actions = take();
    EXPECT_TRUE(says<act_standby_send>(actions, supervision_kind::lost));
    EXPECT_TRUE(any<act_restart_qemu>(actions));
}

TEST_F(standby, a_qemu_that_stands_still_is_no_standby) {
    pair();
    fsm->on_qemu_stuck("its main loop has stood still for 8000 ms", now);
    const auto actions = take();
    EXPECT_TRUE(says<act_standby_send>(actions, supervision_kind::lost));
    EXPECT_TRUE(any<act_restart_qemu>(actions));
    fsm->on_qemu_stuck("its main loop has stood still for 8000 ms", now); // of the one that is killed
    EXPECT_TRUE(take().empty());
}

TEST_F(standby, a_qemu_that_stands_still_is_kept_while_the_primary_is_silent) {
    pair();
    fsm->on_link_closed("cut", now);
    take();
    fsm->on_qemu_stuck("its main loop has stood still for 8000 ms", now);
    EXPECT_TRUE(take().empty());
    now += 100;
    fsm->on_tick(now);
    EXPECT_EQ(fsm->state(), standby_state::claiming);
    take();
    fsm->on_qemu_stuck("its main loop has stood still for 8000 ms", now);
    EXPECT_TRUE(take().empty());
}

} // namespace
} // namespace kagemusha::ha
