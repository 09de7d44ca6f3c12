// SPDX-License-Identifier: GPL-2.0-or-later
//
// The plan: single situations, and a small world in which supervisors start, die and take over at random while
// the plan is carried out, fails, or is forgotten: in the end there is what was wanted, and on the way never a
// second VM of one node.
#include "control/cluster/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kagemusha::control::cluster {
namespace {

declaration lab(unsigned nodes, bool is_protected = false) {
    declaration d;
    d.name = "lab";
    d.nodes = nodes;
    d.node.is_protected = is_protected;
    return d;
}

slot_seen supervisor(const char* role, const char* state) {
    return {false, true, role, state, {}};
}

cluster_seen with_network(const declaration& d) {
    cluster_seen seen;
    seen.has_files = seen.network = true;
    seen.network_has = network_description(d);
    return seen;
}

node_seen running(const declaration& d, unsigned number, slot_seen a, slot_seen b = {}) {
    node_seen node;
    node.has_files = true;
    node.runs_with = node_description(d, number);
    node.slot = {std::move(a), std::move(b)};
    return node;
}

std::vector<step> steps(const declaration& d, wish w, const cluster_seen& seen) {
    return make_plan(d, w, seen).steps;
}

using k = step_kind;

TEST(cluster_plan, the_network_comes_before_its_nodes) {
    const auto d = lab(2);
    EXPECT_EQ(steps(d, wish::running, {}), (std::vector<step>{{k::start_network}}));
    EXPECT_EQ(steps(d, wish::running, with_network(d)),
              (std::vector<step>{{k::start_primary, 1, 0}, {k::start_primary, 2, 0}}));
}

TEST(cluster_plan, nothing_is_done_twice) {
    const auto d = lab(1);
    auto seen = with_network(d);
    seen.nodes[1] = running(d, 1, {true, false, {}, {}, {}}); // started, and not registered yet
    EXPECT_TRUE(steps(d, wish::running, seen).empty());
    seen.nodes[1] = running(d, 1, {false, true, {}, {}, {}}); // registered, and does not answer
    EXPECT_TRUE(steps(d, wish::running, seen).empty());
    seen.nodes[1] = running(d, 1, supervisor("primary", "alone"));
    const auto p = make_plan(d, wish::running, seen);
    EXPECT_TRUE(p.settled);
    EXPECT_EQ(p.nodes.at(1).state, "running");
}

TEST(cluster_plan, a_protected_node_gets_its_standby_in_the_other_slot) {
    const auto d = lab(1, true);
    auto seen = with_network(d);
    seen.nodes[1] = running(d, 1, {}, supervisor("primary", "alone")); // after a takeover
    EXPECT_EQ(steps(d, wish::running, seen), (std::vector<step>{{k::start_standby, 1, 0}}));
    seen.nodes[1].slot[0] = supervisor("standby", "listening");
    EXPECT_EQ(steps(d, wish::running, seen), (std::vector<step>{{k::protect, 1, 0}}));
    seen.nodes[1].may_protect = false;
    EXPECT_TRUE(steps(d, wish::running, seen).empty());
    seen.nodes[1].slot = {supervisor("standby", "synced"), supervisor("primary", "protecting")};
    EXPECT_TRUE(make_plan(d, wish::running, seen).settled);
}

TEST(cluster_plan, who_may_be_taking_over_is_left_alone) {
    const auto d = lab(1, true);
    auto seen = with_network(d);
    for (const char* state : {"synced", "claiming", "taking-over", "greeted", "proving"}) {
        seen.nodes[1] = running(d, 1, {}, supervisor("standby", state));
        EXPECT_TRUE(steps(d, wish::running, seen).empty()) << state;
    }
    seen.nodes[1] = running(d, 1, {}, supervisor("standby", "listening")); // it never had a copy
    EXPECT_EQ(steps(d, wish::running, seen), (std::vector<step>{{k::start_primary, 1, 0}}));
    seen.nodes[1] = running(d, 1, {}, supervisor("standby", "outdated"));
    EXPECT_EQ(steps(d, wish::running, seen), (std::vector<step>{{k::stop_slot, 1, 1}}));
}

TEST(cluster_plan, a_start_that_failed_waits_and_says_why) {
    const auto d = lab(1);
    auto seen = with_network(d);
    seen.nodes[1].may_start = false;
    seen.nodes[1].failure = "no such GPU";
    const auto p = make_plan(d, wish::running, seen);
    EXPECT_TRUE(p.steps.empty());
    EXPECT_FALSE(p.settled);
    EXPECT_EQ(p.nodes.at(1).state, "failed");
    EXPECT_EQ(p.nodes.at(1).text, "no such GPU");
}

TEST(cluster_plan, what_the_network_complains_of_is_said_of_node1) {
    const auto d = lab(2);
    auto seen = with_network(d);
    seen.network_problem = "cannot listen at 0.0.0.0:2222: Address already in use";
    for (const unsigned number : {1u, 2u})
        seen.nodes[number] = running(d, number, supervisor("primary", "alone"));
    const auto p = make_plan(d, wish::running, seen);
    EXPECT_TRUE(p.settled);
    EXPECT_EQ(p.nodes.at(1).text, seen.network_problem);
    EXPECT_EQ(p.nodes.at(2).text, "");
}

TEST(cluster_plan, what_changed_needs_a_restart_and_a_network_does_not) {
    auto d = lab(1);
    auto seen = with_network(d);
    seen.nodes[1] = running(d, 1, supervisor("primary", "alone"));
    d.node.cpus = 4;
    d.network.bandwidth_mbit = 100;
    const auto p = make_plan(d, wish::running, seen);
    EXPECT_TRUE(p.nodes.at(1).needs_restart);
    EXPECT_EQ(p.steps, (std::vector<step>{{k::configure_network}}));
    seen.nodes[1].slot = {};
    seen.network_has = network_description(d);
    EXPECT_FALSE(make_plan(d, wish::running, seen).nodes.at(1).needs_restart);
}

TEST(cluster_plan, fewer_nodes_end_the_last_ones) {
    const auto d = lab(1);
    auto seen = with_network(d);
    seen.nodes[1] = running(d, 1, supervisor("primary", "alone"));
    seen.nodes[2] = running(d, 2, supervisor("primary", "protecting"), supervisor("standby", "synced"));
    EXPECT_EQ(steps(d, wish::running, seen), (std::vector<step>{{k::stop_slot, 2, 0}}));
    seen.nodes[2].slot = {};
    EXPECT_EQ(steps(d, wish::running, seen), (std::vector<step>{{k::remove_node, 2}}));
    seen.nodes.erase(2);
    EXPECT_TRUE(make_plan(d, wish::running, seen).settled);
}

TEST(cluster_plan, the_record_goes_last) {
    const auto d = lab(1);
    auto seen = with_network(d);
    seen.nodes[1] = running(d, 1, supervisor("primary", "alone"));
    EXPECT_EQ(steps(d, wish::deleted, seen), (std::vector<step>{{k::stop_slot, 1, 0}}));
    seen.nodes[1].slot = {};
    EXPECT_EQ(steps(d, wish::deleted, seen), (std::vector<step>{{k::remove_node, 1}, {k::stop_network}}));
    seen.nodes.clear();
    seen.network = false;
    EXPECT_EQ(steps(d, wish::deleted, seen), (std::vector<step>{{k::remove_cluster}}));
    EXPECT_EQ(steps(d, wish::deleted, {}),
              (std::vector<step>{{k::remove_cluster}})); // a crash after all but that
}

TEST(cluster_plan, a_stopped_cluster_keeps_its_files) {
    const auto d = lab(1);
    auto seen = with_network(d);
    seen.nodes[1] = running(d, 1, {});
    EXPECT_EQ(steps(d, wish::stopped, seen), (std::vector<step>{{k::stop_network}}));
    seen.network = false;
    EXPECT_TRUE(make_plan(d, wish::stopped, seen).settled);
}

// ---- a world

struct world {
    std::mt19937 random;
    declaration declared;
    wish wanted = wish::running;
    cluster_seen seen;
    bool record = true;

    bool chance(unsigned percent) { return random() % 100 < percent; }

    std::size_t vms_of(const node_seen& node) const {
        return static_cast<std::size_t>(
            std::count_if(node.slot.begin(), node.slot.end(),
                          [](const slot_seen& s) { return s.busy || s.role == "primary"; }));
    }

    void carry_out(const step& what) {
        node_seen none; // of steps that are the whole cluster's
        auto& node = what.node == 0 ? none : seen.nodes[what.node];
        auto& slot = node.slot[what.slot];
        switch (what.kind) {
        case k::start_network:
            seen.network = seen.has_files = true;
            seen.network_has = network_description(declared);
            break;
        case k::configure_network:
            seen.network_has = network_description(declared);
            break;
        case k::stop_network:
            for (const auto& [number, one] : seen.nodes)
                ASSERT_TRUE(!one.slot[0].is_there() && !one.slot[1].is_there()) << "somebody is connected";
            seen.network = false;
            break;
        case k::start_primary:
            ASSERT_TRUE(seen.network);
            ASSERT_FALSE(slot.is_there()) << "the name is taken";
            for (const auto& other : node.slot)
                ASSERT_TRUE(!other.is_there() || other.state == "listening") << "it would be a second VM";
            node.has_files = true;
            node.runs_with = node_description(declared, what.node);
            slot = chance(50) ? slot_seen{true, false, {}, {}, {}} : supervisor("primary", "alone");
            break;
        case k::start_standby:
            ASSERT_FALSE(slot.is_there()) << "the name is taken";
            slot = supervisor("standby", "listening");
            break;
        case k::protect:
            if (node.slot[1 - what.slot].role == "primary" && slot.state == "listening") {
                node.slot[1 - what.slot].state = "protecting";
                slot.state = "synced";
            }
            break;
        case k::stop_slot:
            if (slot.role == "primary")
                node.slot = {};
            else
                slot = {};
            break;
        case k::remove_node:
            ASSERT_FALSE(node.slot[0].is_there() || node.slot[1].is_there())
                << "somebody runs from its files";
            seen.nodes.erase(what.node);
            break;
        case k::remove_cluster:
            ASSERT_TRUE(seen.nodes.empty() && !seen.network);
            seen.has_files = false;
            record = false;
            break;
        }
    }

    void something_happens() {
        for (auto& [number, node] : seen.nodes) {
            for (auto& slot : node.slot)
                if (slot.busy && chance(50))
                    slot = supervisor("primary", "alone");
            if (!chance(15))
                continue;
            auto& victim = node.slot[random() % slots];
            auto& other = node.slot[&victim == &node.slot[0] ? 1 : 0];
            const bool protects = victim.role == "primary" && other.state == "synced";
            victim = {};
            if (protects)
                other = supervisor("standby", chance(50) ? "synced" : "claiming");
            else if (other.role == "primary")
                other.state = "alone";
        }
        for (auto& [number, node] : seen.nodes) // a takeover ends
            for (std::size_t i = 0; i < slots; ++i)
                if (!node.slot[1 - i].is_there() && node.slot[i].role == "standby" &&
                    node.slot[i].state != "listening" && chance(50))
                    node.slot[i] = supervisor("primary", "alone");
        if (chance(3))
            seen.network = false;
        if (chance(5)) {
            declared.nodes = 1 + static_cast<unsigned>(random() % 5);
            declared.network.latency_ms = static_cast<std::uint32_t>(random() % 3);
        }
        if (chance(5))
            wanted = chance(70) ? wish::running : wish::stopped;
    }

    // Of one plan a part is carried out: then it crashed.
    void round(bool faults) {
        const auto plan = make_plan(declared, wanted, seen);
        for (const auto& one : plan.steps) {
            if (faults && chance(10))
                return;
            carry_out(one);
            if (testing::Test::HasFatalFailure())
                return;
        }
        for (const auto& [number, node] : seen.nodes)
            ASSERT_LE(vms_of(node), 1u) << "node" << number;
    }
};

TEST(cluster_plan, leads_to_what_is_wanted_from_whatever_happened) {
    for (unsigned seed = 0; seed < 300; ++seed) {
        SCOPED_TRACE(seed);
        world w{std::mt19937(seed), lab(1 + seed % 4, seed % 2 == 0), wish::running, {}, true};
        for (int i = 0; i < 200; ++i) {
            w.something_happens();
            w.round(true);
            ASSERT_FALSE(HasFatalFailure());
        }
        // Now nothing fails any more: few rounds are enough, and then there is nothing to do.
        w.wanted = seed % 3 == 0 ? wish::deleted : seed % 3 == 1 ? wish::stopped : wish::running;
        for (int i = 0; i < 12; ++i) {
            for (auto& [number, node] : w.seen.nodes)
                for (std::size_t s = 0; s < slots; ++s) {
                    if (node.slot[s].busy)
                        node.slot[s] = supervisor("primary", "alone");
                    if (!node.slot[1 - s].is_there() && node.slot[s].role == "standby" &&
                        node.slot[s].state != "listening")
                        node.slot[s] = supervisor("primary", "alone");
                }
            w.round(false);
            ASSERT_FALSE(HasFatalFailure());
        }
        if (w.wanted == wish::deleted) {
            EXPECT_FALSE(w.record);
            EXPECT_TRUE(w.seen.nodes.empty());
            continue;
        }
        const auto last = make_plan(w.declared, w.wanted, w.seen);
        EXPECT_TRUE(last.steps.empty());
        EXPECT_TRUE(last.settled);
        for (unsigned number = 1; number <= w.declared.nodes; ++number)
            EXPECT_EQ(w.vms_of(w.seen.nodes[number]), w.wanted == wish::running ? 1u : 0u);
    }
}

TEST(plan, what_has_happened_to_nodes_is_told_once) {
    plan before, after;
    before.nodes[1] = {"taking over", "", false, false, {}, 1, {}};
    before.nodes[2] = {"running", "", true, false, 0, {}, {}};
    before.nodes[4] = {"protected", "", true, false, 0, 1, {}};
    after.nodes[4] = {"protected", "", true, false, 1, 0, {}};
    before.nodes[3] = {"stopping", "", false, false, {}, {}, {}};
    after.nodes[1] = {"unprotected", "it has no standby", false, false, 1, {}, {}};
    after.nodes[2] = before.nodes[2];
    EXPECT_EQ(differences(before, after),
              (std::vector<std::string>{"node1 runs on in b", "node1 is unprotected: it has no standby",
                                        "node4 runs on in b", "node3 is gone"}));
    EXPECT_TRUE(differences(after, after).empty());
}

} // namespace
} // namespace kagemusha::control::cluster
