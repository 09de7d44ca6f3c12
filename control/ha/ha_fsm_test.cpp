// SPDX-License-Identifier: GPL-2.0-or-later
//
// The state machines of the two supervisors, a case at a time; docs/spec/takeover.md names the test of each
// of its rows.
#include "control/ha/primary_fsm.hpp"
#include "control/ha/standby_fsm.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace kagemusha::ha {
namespace {

using mirror::supervision;
using mirror::supervision_kind;
using verdict = arbiter_answer::verdict;
using kind = arbiter_request::kind;

template <class Fsm, class Action>
std::vector<Action> actions_of(Fsm& fsm) {
    std::vector<Action> out;
    Action a;
    while (fsm.next(a))
        out.push_back(a);
    return out;
}

// The last action of a kind; a failure when there is none.
template <class Wanted, class Action>
Wanted the(const std::vector<Action>& actions) {
    for (auto a = actions.rbegin(); a != actions.rend(); ++a)
        if (const auto* found = std::get_if<Wanted>(&*a))
            return *found;
    ADD_FAILURE() << "no such action";
    return {};
}

template <class Wanted, class Action>
bool any(const std::vector<Action>& actions) {
    return std::any_of(actions.begin(), actions.end(),
                       [](const Action& a) { return std::holds_alternative<Wanted>(a); });
}

template <class Send, class Action>
bool says(const std::vector<Action>& actions, supervision_kind what) {
    return std::any_of(actions.begin(), actions.end(), [&](const Action& a) {
        const auto* sent = std::get_if<Send>(&a);
        const auto* s = sent ? std::get_if<supervision>(&sent->what) : nullptr;
        return s && s->kind == what;
    });
}

mirror::hello hello_of(mirror::role role) {
    mirror::hello h;
    h.role = role;
    h.vm = "vm";
    h.capabilities = {"supervision"};
    h.heartbeat_budget_ms = 100;
    h.hold_bytes = h.hold_entries = 1;
    return h;
}

struct primary : testing::Test {
    primary_config config() {
        primary_config c;
        c.vm = "vm";
        c.description = "d";
        c.heartbeat_ms = 20;
        c.heartbeat_budget_ms = 100;
        c.renew_ms = 50;
        c.has_standby = true;
        c.policy = policy;
        return c;
    }
    std::vector<primary_action> take() { return actions_of<primary_fsm, primary_action>(*fsm); }
    void granted(std::uint64_t term, std::uint64_t until) {
        fsm->on_arbiter({verdict::granted, asked, term, until, {}}, now);
    }
    // Remembers the request that was made, and gives the actions.
    std::vector<primary_action> done() {
        auto actions = take();
        if (any<act_ask>(actions))
            asked = the<act_ask>(actions).request.number;
        return actions;
    }
    void protect() {
        fsm.emplace(config());
        fsm->start(now);
        done();
        granted(1, now + 300);
        done();
        fsm->on_link_up(now);
        fsm->on_message(hello_of(mirror::role::standby), now);
        fsm->on_message(supervision{supervision_kind::description, 0, "d"}, now);
        fsm->on_message(supervision{supervision_kind::ready, 0, {}}, now);
        fsm->on_qemu_protecting(now);
        fsm->on_message(supervision{supervision_kind::paired, 2, {}}, now);
        done();
        granted(2, now + 300);
        done();
        ASSERT_EQ(fsm->state(), primary_state::protecting);
    }
    loss_policy policy = loss_policy::degraded;
    std::optional<primary_fsm> fsm;
    std::uint64_t now = 1000, asked = 0;
};

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
    fsm->on_link_closed("the VM runs there", now + 5);
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
    fsm->on_qemu_replication_lost("its QEMU is gone", now);
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
    fsm->on_qemu_replication_lost("gone", now);
    done();
    now = 1400;
    fsm->on_message(mirror::heartbeat{5, 1390}, now);
    EXPECT_FALSE(any<act_gate>(take()));
}

TEST_F(primary, silence_beyond_the_budget_loses_the_standby) {
    protect();
    now += 100;
    fsm->on_tick(now);
    EXPECT_EQ(fsm->state(), primary_state::losing);
}

TEST_F(primary, policy_stop_kills_the_vm_and_leaves_it_to_the_standby) {
    policy = loss_policy::stop;
    protect();
    fsm->on_qemu_replication_lost("gone", now);
    EXPECT_TRUE(any<act_kill_qemu>(take()));
    fsm->on_qemu_died("killed", false, now);
    EXPECT_TRUE(says<act_send>(take(), supervision_kind::died));
}

TEST_F(primary, a_term_is_told_only_once) {
    protect();
    fsm->on_qemu_replication_lost("gone", now);
    done();
    granted(2, now + 300);
    done();
    fsm->on_message(supervision{supervision_kind::ready, 0, {}}, now);
    fsm->on_qemu_protecting(now); // PAIR with 3, which is never recorded
    take();
    fsm->on_message(supervision{supervision_kind::lost, 0, "died"}, now);
    fsm->on_message(supervision{supervision_kind::ready, 0, {}}, now);
    fsm->on_qemu_protecting(now);
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
    EXPECT_EQ(the<act_ask>(done()).request.what, kind::alone);
    granted(2, now + 300);
    const auto actions = take();
    EXPECT_TRUE(says<act_send>(actions, supervision_kind::unpaired));
    EXPECT_TRUE(the<act_ended>(actions).in_order);
}

TEST_F(primary, a_gpu_that_failed_is_left_to_the_standby) {
    protect();
    fsm->on_gpu_failed("its worker died", now);
    auto actions = take();
    EXPECT_EQ(the<act_kill_qemu>(actions).why, "its GPU failed: its worker died");
    EXPECT_FALSE(any<act_tell_gpu_failure>(actions));
    fsm->on_gpu_failed("its worker died", now); // said again and again
    EXPECT_TRUE(take().empty());
    fsm->on_qemu_died("killed", false, now);
    EXPECT_TRUE(says<act_send>(take(), supervision_kind::died));
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
    fsm.emplace(config());
    fsm->start(now);
    done();
    granted(1, now + 300);
    done();
    fsm->on_gpu_failed("its worker died", now);
    const auto actions = take();
    EXPECT_TRUE(any<act_tell_gpu_failure>(actions));
    EXPECT_FALSE(any<act_kill_qemu>(actions));
}

TEST_F(primary, a_standby_whose_gpu_has_no_copy_protects_nobody) {
    protect();
    fsm->on_message(supervision{supervision_kind::lost, 2, "its GPU has no copy any more: a worker died"},
                    now);
    EXPECT_EQ(fsm->state(), primary_state::losing);
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
    fsm->on_qemu_handed_over(now);
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

struct standby : testing::Test {
    void SetUp() override {
        standby_config c;
        c.vm = "vm";
        c.description = "d";
        c.heartbeat_budget_ms = 100;
        c.retry_ms = 30;
        fsm.emplace(c);
        fsm->on_qemu_ready(now);
        fsm->on_link_up(now);
        fsm->on_message(hello_of(mirror::role::primary), now);
        fsm->on_message(supervision{supervision_kind::description, 0, "d"}, now);
        take();
    }
    std::vector<standby_action> take() {
        auto actions = actions_of<standby_fsm, standby_action>(*fsm);
        if (any<act_standby_ask>(actions))
            asked = the<act_standby_ask>(actions).request.number;
        return actions;
    }
    void pair(std::uint64_t term = 2) {
        fsm->on_message(supervision{supervision_kind::pair, term, {}}, now);
        EXPECT_TRUE(says<act_standby_send>(take(), supervision_kind::paired));
    }
    std::optional<standby_fsm> fsm;
    std::uint64_t now = 1000, asked = 0;
};

TEST_F(standby, takes_over_at_once_with_proof_and_runs_with_the_arbiters_leave) {
    pair();
    fsm->on_message(supervision{supervision_kind::died, 2, "killed"}, now);
    auto actions = take();
    EXPECT_TRUE(any<act_take_over>(actions));
    EXPECT_TRUE(the<act_standby_ask>(actions).request.proven_dead);
    fsm->on_qemu_running(now + 5);
    EXPECT_FALSE(any<act_running>(take()));
    fsm->on_arbiter({verdict::granted, asked, 3, now + 300, {}}, now + 6);
    EXPECT_EQ(the<act_running>(take()).term, 3u);
}

TEST_F(standby, proof_of_another_term_is_none) {
    pair();
    fsm->on_message(supervision{supervision_kind::died, 1, "killed"}, now);
    EXPECT_FALSE(any<act_take_over>(take()));
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
    fsm->on_message(mirror::heartbeat{now - 50, 0}, now + 1);
    EXPECT_FALSE(any<act_standby_send>(take()));
    fsm->on_arbiter({verdict::held, asked, 0, now + 150, "held"}, now + 2);
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
    fsm->on_qemu_ready(now);
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
    fsm->on_qemu_ready(now);
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

TEST_F(standby, another_description_is_refused) {
    fsm->on_message(supervision{supervision_kind::description, 0, "other"}, now);
    EXPECT_TRUE(any<act_standby_close_link>(take()));
}

TEST_F(standby, the_devices_connection_is_refused) {
    standby_config c;
    c.vm = "vm";
    standby_fsm other(c);
    other.on_qemu_ready(now);
    other.on_link_up(now);
    auto h = hello_of(mirror::role::primary);
    h.capabilities = {"zstd"};
    other.on_message(h, now);
    EXPECT_TRUE(any<act_standby_close_link>(actions_of<standby_fsm, standby_action>(other)));
}

} // namespace
} // namespace kagemusha::ha
