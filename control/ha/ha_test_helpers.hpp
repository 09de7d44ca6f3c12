// SPDX-License-Identifier: GPL-2.0-or-later
//
// What the tests of the supervisors' state machines share: a primary and a standby that are led, event by
// event, to the state of a case, and what they did there.
#pragma once

#include "control/ha/primary_fsm.hpp"
#include "control/ha/standby_fsm.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace kagemusha::ha::test {

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

inline mirror::hello hello_of(mirror::role role) {
    mirror::hello h;
    h.role = role;
    h.vm = "vm";
    h.capabilities = {"supervision", mirror::supervision_2_capability, mirror::lineage_capability};
    h.instance = 7;
    h.heartbeat_budget_ms = 100;
    h.hold_bytes = h.hold_entries = 1;
    return h;
}

struct primary_test : testing::Test {
    primary_config config() {
        primary_config c;
        c.vm = "vm";
        c.description = "d";
        c.heartbeat_ms = 20;
        c.heartbeat_budget_ms = 100;
        c.renew_ms = 50;
        c.has_standby = true;
        c.policy = policy;
        c.resync = {1000, 4000, 10000, 0};
        c.shared_record = shared_record;
        c.disks = disks;
        c.mark = disk;
        c.image = "a.img";
        c.instance = 0xa;
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
    void word(supervision_kind what, std::uint64_t term = 0, const std::string& text = {}) {
        fsm->on_message(supervision{what, term, text}, now);
    }
    // A VM that may run here, as far as the arbiter is concerned.
    void open() {
        fsm.emplace(config());
        fsm->start(now);
        done();
        granted(1, now + 300);
    }
    void greet() {
        fsm->on_link_up(now);
        fsm->on_message(hello_of(mirror::role::standby), now);
        word(supervision_kind::description, 0, "d");
    }
    void greet_as_older_release() {
        fsm->on_link_up(now);
        auto h = hello_of(mirror::role::standby);
        h.capabilities = {"supervision"};
        fsm->on_message(h, now);
    }
    void tell() { // to the state announcing
        begin_telling();
        done();
        if (!shared_record)
            granted(1, UINT64_MAX);
        done();
    }
    void begin_telling() {
        open();
        fsm->on_marked({}, now);
        done();
        greet();
        word(supervision_kind::ready);
        fsm->on_qemu_protecting(fsm->replication(), now);
    }
    void protect() {
        tell();
        word(supervision_kind::paired, 2);
        fsm->on_marked({}, now);
        done();
        granted(2, now + 300);
        done();
        ASSERT_EQ(fsm->state(), primary_state::protecting);
    }
    // From unpairing.
    std::vector<primary_action> record_alone() {
        granted(2, now + 300);
        return done();
    }
    loss_policy policy = loss_policy::degraded;
    bool shared_record = true, disks = false;
    disk_mark disk;
    std::optional<primary_fsm> fsm;
    std::uint64_t now = 1000, asked = 0;
};

inline lineage lineage_of(std::vector<lineage::run> runs) {
    lineage out;
    for (const auto& r : runs)
        out.add(r);
    return out;
}

// The text of the last LINEAGE that was said; empty: none was.
template <class Send, class Action>
std::string reported_lineage(const std::vector<Action>& actions) {
    std::string text;
    for (const auto& a : actions)
        if (const auto* sent = std::get_if<Send>(&a))
            if (const auto* s = std::get_if<supervision>(&sent->what);
                s && s->kind == supervision_kind::lineage)
                text = s->text;
    return text;
}

struct standby_test : testing::Test {
    void SetUp() override { begin(); }
    void begin(bool shared_record = true, bool echoes = false) {
        standby_config c;
        c.shared_record = shared_record;
        c.look_ms = 1000;
        c.vm = "vm";
        c.description = "d";
        c.heartbeat_budget_ms = 100;
        c.retry_ms = 30;
        fsm.emplace(c);
        fsm->on_qemu_ready(fsm->qemu(), now);
        fsm->on_link_up(now);
        auto hello = hello_of(mirror::role::primary);
        if (echoes)
            hello.capabilities.emplace_back(mirror::heartbeat_echo_capability);
        fsm->on_message(hello, now);
        fsm->on_message(supervision{supervision_kind::description, 0, "d"}, now);
        take();
    }
    std::vector<standby_action> take() {
        auto actions = actions_of<standby_fsm, standby_action>(*fsm);
        if (any<act_standby_ask>(actions))
            asked = the<act_standby_ask>(actions).request.number;
        return actions;
    }
    void word(supervision_kind what, std::uint64_t term = 0, const std::string& text = {}) {
        fsm->on_message(supervision{what, term, text}, now);
    }
    void seen(std::uint64_t term, bool paired, bool ours = false) {
        fsm->on_arbiter({verdict::granted, asked, term, 0, {}, paired, ours}, now);
    }
    void pair(std::uint64_t term = 2) {
        word(supervision_kind::pair, term);
        auto actions = take();
        EXPECT_EQ(the<act_standby_ask>(actions).request.what, kind::look);
        EXPECT_FALSE(says<act_standby_send>(actions, supervision_kind::paired));
        seen(term - 1, false);
        EXPECT_TRUE(says<act_standby_send>(take(), supervision_kind::paired));
    }
    // Another one, for which nobody has come yet.
    void listen() {
        standby_config c;
        c.vm = "vm";
        c.description = "d";
        fsm.emplace(c);
        fsm->on_qemu_ready(fsm->qemu(), now);
        take();
    }
    void connect() {
        fsm->on_link_up(now);
        fsm->on_message(hello_of(mirror::role::primary), now);
    }
    void greet() {
        connect();
        word(supervision_kind::description, 0, "d");
    }
    std::optional<standby_fsm> fsm;
    std::uint64_t now = 1000, asked = 0;
};

} // namespace kagemusha::ha::test
