// SPDX-License-Identifier: GPL-2.0-or-later
//
// The state machine of a primary's supervisor, a case at a time; docs/spec/takeover.md names the test of each
// of its rows.
#include "control/ha/ha_test_helpers.hpp"

#include <algorithm>

namespace kagemusha::ha {
namespace {

using namespace test;

struct primary : primary_test {};

TEST_F(primary, starts_qemu_only_with_a_lease) {
    fsm.emplace(config());
    fsm->start(now);
    EXPECT_FALSE(any<act_start_qemu>(done()));
    fsm->on_arbiter({verdict::held, asked, 0, now + 100, "held"}, now);
    EXPECT_FALSE(any<act_start_qemu>(done()));
    now += 50;
    fsm->on_tick(now);
    done();
    granted(1, now + 300);
    EXPECT_TRUE(any<act_start_qemu>(done()));
}

TEST_F(primary, ends_when_another_holds_the_lease_for_too_long) {
    fsm.emplace(config());
    fsm->start(now);
    done();
    now += 20000;
    fsm->on_arbiter({verdict::held, asked, 0, now + 100, "the other one has it"}, now);
    EXPECT_EQ(the<act_ended>(done()).why, "the other one has it");
}

TEST_F(primary, a_dead_qemu_is_told_at_once_and_the_lease_is_given_back) {
    protect();
    fsm->on_qemu_died("killed", false, now);
    const auto actions = take();
    EXPECT_TRUE(says<act_send>(actions, supervision_kind::died));
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::release);
    word(supervision_kind::running, 3);
    EXPECT_TRUE(the<act_ended>(take()).in_order);
}

TEST_F(primary, a_death_that_was_told_is_not_yet_a_takeover) {
    protect();
    fsm->on_qemu_died("killed", false, now);
    done();
    granted(2, now);
    fsm->on_link_closed("reset", now);
    EXPECT_EQ(fsm->state(), primary_state::leaving);
    now += 1000;
    fsm->on_tick(now);
    auto actions = done();
    EXPECT_TRUE(any<act_connect>(actions)) << "it is told again";
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::look);
    arbiter_answer seen{verdict::granted, asked, 3, 0, {}, false, false};
    fsm->on_arbiter(seen, now);
    EXPECT_TRUE(the<act_ended>(take()).in_order) << "the record says that the standby has it";
}

TEST_F(primary, a_death_that_nobody_answers_is_no_orderly_end) {
    protect();
    fsm->on_qemu_died("killed", false, now);
    fsm->on_link_closed("reset", now);
    done();
    now += 11000;
    fsm->on_tick(now);
    EXPECT_FALSE(the<act_ended>(take()).in_order);
}

TEST_F(primary, an_older_standby_says_goodbye_when_it_runs_the_vm) {
    open();
    greet_as_older_release();
    EXPECT_FALSE(says<act_send>(done(), supervision_kind::belief)) << "it would end the connection";
    word(supervision_kind::description, 0, "d");
    word(supervision_kind::ready);
    fsm->on_qemu_protecting(fsm->replication(), now);
    word(supervision_kind::paired, 2);
    fsm->on_marked({}, now);
    done();
    granted(2, now + 300);
    fsm->on_qemu_died("killed", false, now);
    EXPECT_TRUE(says<act_send>(take(), supervision_kind::died));
    fsm->on_message(mirror::goodbye{mirror::goodbye_reason::shutdown, "the VM runs here now"}, now);
    EXPECT_TRUE(the<act_ended>(take()).in_order);
}

TEST_F(primary, a_dead_qemu_is_told_after_reconnecting) {
    protect();
    fsm->on_link_closed("cut", now);
    take();
    fsm->on_qemu_died("killed", false, now + 1);
    EXPECT_FALSE(says<act_send>(take(), supervision_kind::died));
    now += 30;
    fsm->on_tick(now);
    EXPECT_TRUE(any<act_connect>(take()));
    fsm->on_link_up(now);
    fsm->on_message(hello_of(mirror::role::standby), now);
    EXPECT_TRUE(says<act_send>(take(), supervision_kind::died));
}

TEST_F(primary, goes_on_alone_only_after_the_arbiter_has_recorded_it) {
    protect();
    fsm->on_qemu_replication_lost(fsm->replication(), "its QEMU is gone", now);
    auto actions = done();
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::alone);
    EXPECT_FALSE(any<act_go_on_alone>(actions));
    fsm->on_arbiter({verdict::unreachable, asked, 0, 0, "away"}, now);
    EXPECT_FALSE(any<act_go_on_alone>(done()));
    now += 60;
    fsm->on_tick(now);
    done();
    granted(2, now + 300);
    actions = done();
    EXPECT_TRUE(any<act_go_on_alone>(actions));
    EXPECT_TRUE(says<act_send>(actions, supervision_kind::unpaired));
    EXPECT_EQ(fsm->degraded(), "its QEMU is gone");
}

// So that a record that was put back to when there was a standby is noticed.
TEST_F(primary, a_renewal_says_whether_it_goes_on_alone) {
    const auto renews_alone = [&] {
        now += 60;
        fsm->on_tick(now);
        const auto request = the<act_ask>(done()).request;
        EXPECT_EQ(request.what, kind::renew);
        return request.alone;
    };
    protect();
    EXPECT_FALSE(renews_alone());
    granted(2, now + 300);
    fsm->on_qemu_replication_lost(fsm->replication(), "its QEMU is gone", now);
    done();
    record_alone();
    EXPECT_TRUE(renews_alone());
}

// Found by kagemusha_world (seed 1526655): the thread that gives QEMU its orders hangs in a disk, and says of
// the replication before what it saw of that.
TEST_F(primary, what_is_reported_of_a_former_replication_is_none_of_this_one) {
    tell();
    const auto former = fsm->replication();
    word(supervision_kind::lost, 0, "died");
    EXPECT_TRUE(any<act_go_on_alone>(done()));
    now += 1000;
    fsm->on_tick(now);
    word(supervision_kind::ready);
    const auto present = the<act_replicate>(done()).replication;
    EXPECT_NE(present, former);
    granted(1, now + 300);
    done();
    fsm->on_qemu_protecting(former, now); // act_go_on_alone has not been carried out yet
    EXPECT_EQ(fsm->state(), primary_state::replicating);
    fsm->on_qemu_replication_lost(former, "of the former one", now);
    EXPECT_EQ(fsm->state(), primary_state::replicating);
    EXPECT_TRUE(done().empty());

    fsm->on_qemu_protecting(present, now);
    EXPECT_TRUE(says<act_send>(done(), supervision_kind::pair));
    word(supervision_kind::paired, 3);
    fsm->on_marked({}, now);
    done();
    granted(3, now + 300);
    ASSERT_EQ(fsm->state(), primary_state::protecting);
    fsm->on_qemu_handed_over(former, now);
    fsm->on_qemu_replication_lost(former, "of the former one", now);
    EXPECT_EQ(fsm->state(), primary_state::protecting);
}

// kagemusha_world, seed 4261745: READY was under way for longer than the state transfer took. It is taken for
// a new QEMU's, and the standby, which was told PAIR since, waited as a synced one for ever.
TEST_F(primary, a_standby_that_was_ready_before_it_was_told_is_unpaired) {
    tell();
    word(supervision_kind::ready);
    EXPECT_EQ(fsm->state(), primary_state::replicating) << "again";
    EXPECT_FALSE(says<act_send>(done(), supervision_kind::unpaired)) << "it has nothing, as far as is known";
    word(supervision_kind::paired, fsm->term() + 1);
    EXPECT_TRUE(says<act_send>(done(), supervision_kind::unpaired));
}

// What the standby said last comes back to it, as its own time: so it knows that this primary lives.
TEST_F(primary, a_heartbeat_answers_the_standbys) {
    tell();
    now += 20;
    fsm->on_tick(now);
    done();
    fsm->on_message(mirror::heartbeat{777, now}, now);
    now += 20;
    fsm->on_tick(now);
    const auto beat = the<act_send>(done());
    ASSERT_TRUE(std::holds_alternative<mirror::heartbeat>(beat.what));
    EXPECT_EQ(std::get<mirror::heartbeat>(beat.what), (mirror::heartbeat{now, 777}));
}

TEST_F(primary, a_refusal_of_the_arbiter_kills_it) {
    protect();
    now += 60;
    fsm->on_tick(now);
    done();
    fsm->on_arbiter({verdict::refused, asked, 0, 0, "term 2 is over"}, now);
    const auto actions = take();
    EXPECT_TRUE(any<act_kill_qemu>(actions));
    EXPECT_FALSE(the<act_ended>(actions).in_order);
}

TEST_F(primary, the_gate_follows_answered_heartbeats_while_the_arbiter_is_away) {
    protect();
    now = 1400; // the lease of 1300 is over
    fsm->on_message(mirror::heartbeat{5, 1390}, now);
    EXPECT_EQ(the<act_gate>(take()).until_ms, 1490u);
    fsm->on_message(mirror::heartbeat{5, 99999}, now); // of the future: no promise
    EXPECT_FALSE(any<act_gate>(take()));
}

TEST_F(primary, the_gate_does_not_follow_heartbeats_of_one_that_is_not_paired) {
    protect();
    fsm->on_qemu_replication_lost(fsm->replication(), "gone", now);
    done();
    now = 1400;
    fsm->on_message(mirror::heartbeat{5, 1390}, now);
    EXPECT_FALSE(any<act_gate>(take()));
}

TEST_F(primary, silence_beyond_the_budget_loses_the_standby) {
    protect();
    now += 100;
    fsm->on_tick(now);
    EXPECT_EQ(fsm->state(), primary_state::unpairing);
}

TEST_F(primary, policy_stop_kills_the_vm_and_leaves_it_to_the_standby) {
    policy = loss_policy::stop;
    protect();
    fsm->on_qemu_replication_lost(fsm->replication(), "gone", now);
    EXPECT_TRUE(any<act_kill_qemu>(take()));
    fsm->on_qemu_died("killed", false, now);
    EXPECT_TRUE(says<act_send>(take(), supervision_kind::died));
}

TEST_F(primary, a_term_is_told_only_once) {
    protect();
    fsm->on_qemu_replication_lost(fsm->replication(), "gone", now);
    done();
    granted(2, now + 300);
    done();
    fsm->on_message(supervision{supervision_kind::ready, 0, {}}, now);
    fsm->on_qemu_protecting(fsm->replication(), now); // PAIR with 3, which is never recorded
    take();
    word(supervision_kind::lost, 0, "died");
    now += 1000; // the second failure waits
    word(supervision_kind::ready);
    fsm->on_qemu_protecting(fsm->replication(), now);
    bool told = false;
    for (const auto& a : take()) {
        const auto* sent = std::get_if<act_send>(&a);
        const auto* s = sent ? std::get_if<supervision>(&sent->what) : nullptr;
        if (s && s->kind == supervision_kind::pair) {
            EXPECT_EQ(s->term, 4u);
            told = true;
        }
    }
    EXPECT_TRUE(told);
}

TEST_F(primary, a_stop_is_recorded_so_that_nobody_takes_over) {
    protect();
    fsm->on_stop(now);
    auto actions = done();
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::alone);
    EXPECT_TRUE(says<act_send>(actions, supervision_kind::unpaired));
    granted(2, now + 300);
    actions = take();
    EXPECT_TRUE(the<act_ended>(actions).in_order);
    EXPECT_TRUE(the<act_ended>(actions).alone) << "its images are the newest";
}

TEST_F(primary, a_gpu_that_failed_is_left_to_the_standby) {
    protect();
    fsm->on_gpu_failed("its worker died", now);
    auto actions = take();
    EXPECT_EQ(the<act_kill_qemu>(actions).why, "its GPU failed: its worker died");
    EXPECT_FALSE(any<act_report_gpu_failure>(actions));
    fsm->on_gpu_failed("its worker died", now); // said again and again
    EXPECT_TRUE(take().empty());
    fsm->on_qemu_died("killed", false, now);
    const auto actions_after = take();
    EXPECT_TRUE(std::any_of(actions_after.begin(), actions_after.end(), [](const auto& a) {
        const auto* sent = std::get_if<act_send>(&a);
        const auto* died = sent ? std::get_if<supervision>(&sent->what) : nullptr;
        return died && died->kind == supervision_kind::died && died->gpu_failed;
    }));
}

// A program that crashes its worker would take the VM's standby away each time.
TEST_F(primary, a_gpu_that_fails_again_soon_is_told_the_guest) {
    const auto taken_over = [&](bool gpu_failed) {
        fsm.emplace(config());
        fsm->start_after_takeover(1, now + 300, now, gpu_failed);
        done();
        greet();
        word(supervision_kind::ready);
        fsm->on_qemu_protecting(fsm->replication(), now);
        done();
        word(supervision_kind::paired, 2);
        fsm->on_marked({}, now);
        done();
        granted(2, now + 300);
        done();
        ASSERT_EQ(fsm->state(), primary_state::protecting);
    };
    taken_over(true);
    const auto until = now + config().gpu_takeover_ms;
    fsm->on_gpu_failed("its worker died", now);
    auto actions = take();
    EXPECT_FALSE(any<act_kill_qemu>(actions));
    EXPECT_NE(the<act_report_gpu_failure>(actions).why.find("its standby stays"), std::string::npos);
    fsm->on_gpu_failed("its worker died", now); // said again and again
    EXPECT_EQ(the<act_report_gpu_failure>(take()).why, "");
    EXPECT_EQ(fsm->state(), primary_state::protecting);
    fsm->on_gpu_failed("its worker died", until);
    EXPECT_TRUE(any<act_kill_qemu>(take())) << "a failure now and then is a GPU's";
    taken_over(false);
    fsm->on_gpu_failed("its worker died", now);
    EXPECT_TRUE(any<act_kill_qemu>(take())) << "what failed before was no GPU";
}

TEST_F(primary, a_gpu_that_failed_waits_for_a_standby_that_is_not_connected) {
    protect();
    fsm->on_link_closed("cut", now);
    take();
    fsm->on_gpu_failed("its worker died", now);
    EXPECT_TRUE(take().empty()) << "the standby may be dead, too";
    now += 200;
    fsm->on_tick(now);
    done();
    granted(2, now + 300); // the renewal that was due
    EXPECT_EQ(the<act_ask>(done()).request.what, kind::alone);
    granted(2, now + 300);
    EXPECT_TRUE(any<act_go_on_alone>(take())) << "which tells the guest";
}

TEST_F(primary, a_gpu_that_failed_is_left_to_a_standby_that_has_connected_again) {
    protect();
    fsm->on_link_closed("cut", now);
    now += 30;
    fsm->on_tick(now);
    take();
    fsm->on_link_up(now);
    fsm->on_message(hello_of(mirror::role::standby), now);
    take();
    fsm->on_gpu_failed("its worker died", now);
    EXPECT_TRUE(any<act_kill_qemu>(take()));
}

TEST_F(primary, the_guest_is_told_of_a_gpu_that_failed_when_nobody_stands_by) {
    open();
    done();
    fsm->on_gpu_failed("its worker died", now);
    const auto actions = take();
    EXPECT_TRUE(any<act_report_gpu_failure>(actions));
    EXPECT_FALSE(any<act_kill_qemu>(actions));
}

TEST_F(primary, a_standby_whose_gpu_has_no_copy_protects_nobody) {
    protect();
    fsm->on_message(supervision{supervision_kind::lost, 2, "its GPU has no copy any more: a worker died"},
                    now);
    EXPECT_EQ(fsm->state(), primary_state::unpairing);
    EXPECT_EQ(fsm->degraded(), "the standby is lost: its GPU has no copy any more: a worker died");
    EXPECT_EQ(the<act_ask>(done()).request.what, kind::alone);
    granted(2, now + 300);
    const auto actions = take();
    EXPECT_TRUE(any<act_go_on_alone>(actions));
    EXPECT_TRUE(says<act_send>(actions, supervision_kind::unpaired)) << "it begins anew";
}

TEST_F(primary, a_death_before_alone_is_recorded_is_still_told) {
    protect();
    fsm->on_message(supervision{supervision_kind::lost, 2, "its GPU has no copy any more: a worker died"},
                    now);
    done();
    fsm->on_qemu_died("killed", false, now);
    EXPECT_TRUE(says<act_send>(take(), supervision_kind::died)) << "the VM goes on without the GPU's state";
    EXPECT_EQ(fsm->state(), primary_state::leaving);
}

TEST_F(primary, a_standby_without_a_vm_is_not_told_of_a_death) {
    protect();
    fsm->on_message(supervision{supervision_kind::lost, 0, "its QEMU ended: killed"}, now);
    done();
    fsm->on_qemu_died("killed", false, now);
    const auto actions = take();
    EXPECT_FALSE(says<act_send>(actions, supervision_kind::died));
    EXPECT_FALSE(the<act_ended>(actions).in_order);
}

TEST_F(primary, a_switchover_closes_the_gate_before_it_is_told) {
    protect();
    fsm->on_qemu_handed_over(fsm->replication(), now);
    const auto actions = take();
    std::size_t gate = 99, told = 99;
    for (std::size_t i = 0; i < actions.size(); ++i) {
        if (const auto* g = std::get_if<act_gate>(&actions[i]); g && g->until_ms == 0)
            gate = i;
        if (says<act_send>(std::vector{actions[i]}, supervision_kind::handed_over))
            told = i;
    }
    EXPECT_LT(gate, told);
    EXPECT_LT(told, actions.size());
}

// ---- protection comes back (what was told is told again until it is acknowledged)

TEST_F(primary, a_standby_that_believes_it_is_paired_is_told_otherwise_until_it_says_so) {
    protect();
    fsm->on_link_closed("reset", now);
    fsm->on_qemu_replication_lost(fsm->replication(), "reset, too", now);
    done();
    auto actions = record_alone();
    EXPECT_TRUE(any<act_go_on_alone>(actions));
    EXPECT_FALSE(says<act_send>(actions, supervision_kind::unpaired)) << "nobody hears it";
    now += 500;
    fsm->on_tick(now);
    EXPECT_TRUE(any<act_connect>(done()));
    greet();
    EXPECT_TRUE(says<act_send>(done(), supervision_kind::belief));
    word(supervision_kind::belief, 2);
    EXPECT_TRUE(says<act_send>(done(), supervision_kind::unpaired));
    now += 20;
    fsm->on_tick(now);
    EXPECT_FALSE(says<act_send>(done(), supervision_kind::unpaired)) << "each one costs it a QEMU";
    fsm->on_link_closed("reset", now);
    now += 500;
    fsm->on_tick(now);
    done();
    greet();
    word(supervision_kind::belief, 2);
    EXPECT_TRUE(says<act_send>(done(), supervision_kind::unpaired)) << "it may not have heard it";
    word(supervision_kind::belief, 0);
    now += 20;
    fsm->on_tick(now);
    EXPECT_FALSE(says<act_send>(done(), supervision_kind::unpaired)) << "it has understood";
    word(supervision_kind::ready);
    EXPECT_TRUE(any<act_replicate>(done()));
}

TEST_F(primary, a_standby_is_filled_as_its_last_ready_says) {
    open();
    greet();
    word(supervision_kind::ready, 0, "one zero");
    EXPECT_EQ(the<act_replicate>(done()).replica, "one zero");
    word(supervision_kind::belief, 0);
    word(supervision_kind::ready, 0, "two one");
    EXPECT_EQ(the<act_replicate>(done()).replica, "two one");
    word(supervision_kind::belief, 0);
    word(supervision_kind::ready); // of an earlier release, or nothing is known of its images
    now += 4000;                   // it is not tried again at once
    granted(1, now + 300);
    fsm->on_tick(now);
    EXPECT_EQ(the<act_replicate>(done()).replica, "");
}

TEST_F(primary, a_standby_that_knows_no_changes_of_pages_gets_whole_ones) {
    open();
    greet(); // of a release before versions of checkpoints
    word(supervision_kind::ready);
    EXPECT_FALSE(the<act_replicate>(done()).page_changes);
    fsm->on_link_closed("to be upgraded", now);
    now += 4000;
    granted(1, now + 300);
    fsm->on_tick(now);
    done();
    fsm->on_link_up(now);
    auto upgraded = hello_of(mirror::role::standby);
    upgraded.checkpoint_version = page_changes_version;
    upgraded.oldest_checkpoint_version = 1;
    fsm->on_message(upgraded, now);
    word(supervision_kind::description, 0, "d");
    word(supervision_kind::ready);
    EXPECT_TRUE(the<act_replicate>(done()).page_changes);
}

// BELIEF 0 says that another QEMU is started; that one is not ready before READY.
TEST_F(primary, a_standby_that_begins_anew_while_it_is_filled_is_not_filled_before_it_is_ready) {
    open();
    greet();
    word(supervision_kind::ready);
    EXPECT_TRUE(any<act_replicate>(done()));
    word(supervision_kind::belief, 0);
    EXPECT_FALSE(any<act_replicate>(done()));
    word(supervision_kind::ready);
    EXPECT_TRUE(any<act_replicate>(done()));
}

TEST_F(primary, an_older_standby_that_is_not_ready_is_told_that_it_is_out_of_date) {
    open();
    greet_as_older_release();
    word(supervision_kind::description, 0, "d");
    EXPECT_FALSE(says<act_send>(done(), supervision_kind::unpaired)) << "READY may be on its way";
    now += 100;
    fsm->on_tick(now);
    EXPECT_TRUE(says<act_send>(done(), supervision_kind::unpaired));
}

TEST_F(primary, ready_while_protecting_says_that_the_paired_one_is_gone) {
    protect();
    word(supervision_kind::ready);
    EXPECT_EQ(fsm->state(), primary_state::unpairing);
    done();
    const auto actions = record_alone();
    EXPECT_TRUE(any<act_go_on_alone>(actions));
    EXPECT_FALSE(says<act_send>(actions, supervision_kind::unpaired)) << "it has nothing";
    EXPECT_TRUE(any<act_replicate>(actions)) << "and may have it at once";
}

TEST_F(primary, a_standby_that_fails_again_and_again_waits_longer_each_time) {
    tell();
    std::vector<std::uint64_t> waits;
    for (int i = 0; i < 6; ++i) {
        word(supervision_kind::lost, 0, "a bad block");
        word(supervision_kind::ready);
        const auto failed = now;
        while (fsm->state() == primary_state::alone) {
            now += 100;
            fsm->on_message(mirror::heartbeat{1, 0}, now); // it lives
            fsm->on_tick(now);
            if (any<act_ask>(take()))
                fsm->on_arbiter({verdict::unreachable, 0, 0, 0, {}}, now);
        }
        EXPECT_EQ(fsm->state(), primary_state::replicating);
        waits.push_back(now - failed);
    }
    EXPECT_EQ(waits, (std::vector<std::uint64_t>{0, 1000, 2000, 4000, 4000, 4000}));
}

TEST_F(primary, a_person_does_not_wait_for_the_next_transfer) {
    tell();
    for (int i = 0; i < 3; ++i) {
        word(supervision_kind::lost, 0, "a bad block");
        word(supervision_kind::ready);
        now += 1000;
        fsm->on_protect({}, now);
        EXPECT_EQ(fsm->state(), primary_state::replicating);
    }
    for (int i = 0; i < 2; ++i) {
        word(supervision_kind::lost, 0, "a bad block");
        word(supervision_kind::ready);
    }
    EXPECT_EQ(fsm->state(), primary_state::alone);
    EXPECT_NE(fsm->waiting_for(now).find("begins in 1 s"), std::string::npos);
}

TEST_F(primary, a_person_wants_another_standby) {
    protect();
    fsm->on_protect("other:7000", now);
    auto actions = done();
    EXPECT_TRUE(any<act_close_link>(actions));
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::alone) << "the old one must not take over";
    EXPECT_FALSE(any<act_go_on_alone>(actions));
    actions = record_alone();
    EXPECT_TRUE(any<act_go_on_alone>(actions));
    greet();
    word(supervision_kind::ready);
    EXPECT_TRUE(any<act_replicate>(done()));
}

TEST(resync_backoff, protection_that_lasted_makes_the_next_failure_the_first) {
    resync_backoff b({1000, 4000, 10000, 0});
    b.failed(1000);
    EXPECT_EQ(b.not_before(), 1000u);
    b.failed(2000);
    b.failed(4000);
    EXPECT_EQ(b.not_before(), 6000u);
    b.protecting(7000);
    b.failed(16999);
    EXPECT_EQ(b.not_before(), 20999u) << "too short";
    b.protecting(21000);
    b.failed(31000);
    EXPECT_EQ(b.not_before(), 31000u);
}

} // namespace
} // namespace kagemusha::ha
