// SPDX-License-Identifier: GPL-2.0-or-later
//
// Which host gets which slot, and when it gets another one; what several hosts see, put together.
#include "control/cluster/assignment.hpp"

#include <gtest/gtest.h>

#include <set>

namespace kagemusha::control::cluster {
namespace {

fleet_host host(const std::string& name, bool alive = true) {
    return {{name, {64, 65536, 100}}, alive, 7500};
}

declaration cluster_of(unsigned nodes, bool is_protected = true) {
    declaration out;
    out.name = "lab";
    out.nodes = nodes;
    out.node = {1, 512, is_protected};
    return out;
}

slot_seen runs(const char* role, const char* state) {
    slot_seen out;
    out.registered = true;
    out.role = role;
    out.state = state;
    return out;
}

// Three hosts whose daemons see what each node's slots are told to be.
struct world {
    std::vector<fleet_host> hosts{host("a"), host("b"), host("c")};
    declaration declared;
    wish wanted = wish::running;
    bool is_alone = false;
    assignment places;
    std::map<std::string, cluster_seen> views;

    cluster_seen seen(const std::string& self = "a") const { return merge(places, views, hosts, self); }
    assigned look() {
        const std::vector<assigned_cluster> all{{&declared, wanted, places, seen()}};
        return assign(hosts, all, is_alone);
    }
    void step() { places = look().clusters.at("lab"); }
    slot_seen& slot(unsigned node, std::size_t which) {
        return views[places.at(node).slot[which]->host].nodes[node].slot[which];
    }
    void run_all() {
        for (auto& one : hosts)
            views[one.offer.name];
        for (const auto& [number, node] : places) {
            slot(number, 0) = runs("primary", node.slot[1] ? "protecting" : "alone");
            if (node.slot[1])
                slot(number, 1) = runs("standby", "synced");
        }
    }
    void die(std::size_t which) {
        hosts[which].alive = false;
        views.erase(hosts[which].offer.name);
    }
};

TEST(assignment, primaries_and_standbys_have_different_hosts_and_ports_of_their_own) {
    world w;
    w.declared = cluster_of(12);
    w.step();
    ASSERT_EQ(w.places.size(), 12u);
    std::set<std::pair<std::string, unsigned>> ports;
    for (const auto& [number, node] : w.places) {
        ASSERT_TRUE(node.slot[0] && node.slot[1]);
        EXPECT_NE(node.slot[0]->host, node.slot[1]->host);
        for (const auto& place : node.slot)
            for (unsigned i = 0; i < ports_of_a_slot; ++i)
                EXPECT_TRUE(ports.emplace(place->host, place->port + i).second);
    }
    const auto before = w.places;
    w.step();
    EXPECT_EQ(w.places, before) << "a choice holds";
}

TEST(assignment, a_dead_hosts_slots_go_elsewhere_and_nothing_else_moves) {
    world w;
    w.declared = cluster_of(12);
    w.step();
    w.run_all();
    const auto before = w.places;
    w.die(0);
    // Those that lost a slot run alone on the other host.
    for (const auto& [number, node] : before)
        for (std::size_t i = 0; i < slots; ++i)
            if (node.slot[i]->host == "a")
                w.slot(number, 1 - i) = runs("primary", "alone");
    w.step();
    for (const auto& [number, node] : w.places)
        for (std::size_t i = 0; i < slots; ++i) {
            ASSERT_TRUE(node.slot[i]);
            if (before.at(number).slot[i]->host == "a")
                EXPECT_NE(node.slot[i]->host, "a");
            else
                EXPECT_EQ(node.slot[i], before.at(number).slot[i]);
            EXPECT_NE(node.slot[0]->host, node.slot[1]->host);
        }
    const auto again = w.places;
    w.step();
    EXPECT_EQ(w.places, again) << "no second choice of a slot";
}

TEST(assignment, a_daemon_that_is_away_moves_nothing) {
    world w;
    w.declared = cluster_of(4);
    w.step();
    w.run_all();
    const auto before = w.places;
    w.die(
        1); // its supervisors go on: primaries elsewhere are protected, standbys elsewhere hear their primary
    w.step();
    EXPECT_EQ(w.places, before);
}

TEST(assignment, a_node_that_nobody_hears_of_is_started_nowhere_else) {
    world w;
    w.declared = cluster_of(2, false);
    w.step();
    w.run_all();
    const auto before = w.places;
    w.die(0);
    w.step();
    EXPECT_EQ(w.places, before);
    const auto lost = before.at(1).is_on("a") ? 1u : 2u;
    const auto plan = make_plan(w.declared, w.wanted, w.seen("b"));
    EXPECT_EQ(plan.nodes.at(lost).state, "unreachable");
    EXPECT_NE(plan.nodes.at(lost).text.find("a can't be reached"), std::string::npos);
    for (const auto& step : plan.steps)
        EXPECT_FALSE(step.node == lost && step.kind == step_kind::start_primary);
}

TEST(assignment, a_host_that_has_said_nothing_yet_is_busy) {
    world w;
    w.declared = cluster_of(1);
    w.step();
    w.views["a"];
    const auto seen = w.seen();
    const auto other = w.places.at(1).slot[0]->host == "a" ? 1u : 0u;
    EXPECT_TRUE(seen.nodes.at(1).slot[other].busy);
    EXPECT_FALSE(seen.nodes.at(1).slot[1 - other].is_there());
}

TEST(assignment, who_is_in_anothers_slot_keeps_it_from_being_started_and_is_ended) {
    world w;
    w.declared = cluster_of(1);
    w.step();
    w.run_all();
    const auto home = w.places.at(1).slot[0]->host;
    const std::string stranger = !w.places.at(1).is_on("a") ? "a" : !w.places.at(1).is_on("b") ? "b" : "c";
    w.slot(1, 0) = {};
    w.views[stranger].nodes[1].slot[0] = runs("primary", "alone");
    EXPECT_TRUE(w.seen(home).nodes.at(1).slot[0].busy);
    const auto steps = strays(w.views[stranger], &w.places, stranger);
    ASSERT_EQ(steps.size(), 1u);
    EXPECT_EQ(steps[0], (step{step_kind::stop_slot, 1, 0}));
    EXPECT_TRUE(strays(w.views[home], &w.places, home).empty());
}

TEST(assignment, what_a_host_has_of_a_cluster_that_is_gone_goes_in_order) {
    cluster_seen own;
    own.has_files = own.network = true;
    own.nodes[1].has_files = true;
    own.nodes[1].slot[0] = runs("standby", "listening");
    const auto kinds = [&] {
        std::vector<step_kind> out;
        for (const auto& one : strays(own, nullptr, "a"))
            out.push_back(one.kind);
        return out;
    };
    EXPECT_EQ(kinds(), std::vector{step_kind::stop_slot});
    own.nodes[1].slot[0] = {};
    EXPECT_EQ(kinds(), (std::vector{step_kind::remove_node, step_kind::stop_network}));
    own.nodes.clear();
    own.network = false;
    EXPECT_EQ(kinds(), std::vector{step_kind::remove_cluster});
    own.has_files = false;
    EXPECT_TRUE(kinds().empty());
}

TEST(assignment, each_step_is_one_hosts) {
    world w;
    w.declared = cluster_of(3);
    w.step();
    w.run_all();
    w.slot(1, 1) = {};
    w.slot(1, 0) = runs("primary", "alone");
    const auto plan = make_plan(w.declared, w.wanted, [&] {
        auto seen = w.seen();
        seen.network = true;
        seen.network_has = network_description(w.declared);
        return seen;
    }());
    ASSERT_EQ(plan.steps.size(), 1u);
    EXPECT_EQ(plan.steps[0], (step{step_kind::start_standby, 1, 1}));
    unsigned mine = 0;
    for (const auto& one : w.hosts)
        mine += is_mine(plan.steps[0], w.places, w.views[one.offer.name], one.offer.name) ? 1 : 0;
    EXPECT_EQ(mine, 1u);
}

TEST(assignment, a_node_without_room_waits_and_says_so) {
    world w;
    w.declared = cluster_of(1);
    w.declared.node.memory_mib = 1 << 20;
    const auto out = w.look();
    EXPECT_TRUE(out.clusters.at("lab").empty());
    EXPECT_NE(out.no_room.at("lab").at(1).find("no host has room"), std::string::npos);
}

TEST(assignment, of_several_hosts_a_protected_node_waits_for_a_second_one) {
    world w;
    w.declared = cluster_of(2);
    w.hosts[1].alive = w.hosts[2].alive = false;
    const auto out = w.look();
    EXPECT_TRUE(out.clusters.at("lab").empty());
    EXPECT_NE(out.no_room.at("lab").at(1).find("needs two hosts, and only a is there"), std::string::npos);
    w.hosts[2].alive = true;
    w.step();
    ASSERT_EQ(w.places.size(), 2u);
    for (const auto& [number, node] : w.places)
        EXPECT_NE(node.slot[0]->host, node.slot[1]->host);
}

TEST(assignment, of_several_hosts_the_last_one_has_no_standby_beside_its_vm) {
    world w;
    w.declared = cluster_of(1);
    w.step();
    w.run_all();
    const auto before = w.places.at(1);
    for (std::size_t i = 0; i < w.hosts.size(); ++i)
        if (w.hosts[i].offer.name != before.slot[0]->host)
            w.die(i);
    w.slot(1, 0) = runs("primary", "alone");
    w.step();
    EXPECT_EQ(w.places.at(1).slot[0], before.slot[0]);
    EXPECT_FALSE(w.places.at(1).slot[1]);
    EXPECT_NE(w.look().no_room.at("lab").at(1).find("no other host"), std::string::npos);
}

TEST(assignment, a_host_that_is_alone_has_both) {
    world w;
    w.is_alone = true;
    w.hosts.resize(1);
    w.declared = cluster_of(2);
    w.step();
    ASSERT_EQ(w.places.size(), 2u);
    for (const auto& [number, node] : w.places) {
        ASSERT_TRUE(node.slot[0] && node.slot[1]);
        EXPECT_NE(node.slot[0]->port, node.slot[1]->port);
    }
}

TEST(assignment, a_stopped_cluster_gives_its_places_back_once_nobody_runs) {
    world w;
    w.declared = cluster_of(2);
    w.step();
    w.run_all();
    w.wanted = wish::stopped;
    w.step();
    EXPECT_EQ(w.places.size(), 2u);
    for (auto& [name, view] : w.views)
        view.nodes.clear();
    w.step();
    EXPECT_TRUE(w.places.empty());
}

TEST(assignment, is_read_as_it_was_written) {
    world w;
    w.declared = cluster_of(3);
    w.step();
    w.places.at(2).slot[1].reset();
    EXPECT_EQ(parse_assignment(to_json(w.places)), w.places);
    for (const char* bad : {"[]", "{\"node1\": 3}", "{\"node0\": [null, null]}", "{\"node1\": [null]}",
                            "{\"node1\": [{\"host\": \"\", \"port\": 1}, null]}",
                            "{\"node1\": [{\"host\": \"a\", \"port\": 70000}, null]}"})
        EXPECT_FALSE(parse_assignment(nlohmann::json::parse(bad))) << bad;
}

TEST(assignment, what_a_host_sees_is_read_as_it_was_written) {
    world w;
    w.declared = cluster_of(2);
    w.step();
    w.run_all();
    auto& view = w.views["a"];
    view.network = true;
    view.trunk_port = 4321;
    view.nodes[1].failure = "why";
    view.network_problem = "no port";
    const auto again = parse_seen(to_json(view));
    ASSERT_TRUE(again);
    EXPECT_EQ(to_json(*again), to_json(view));
    for (const char* bad : {"3", "{}", "{\"nodes\": {\"node1\": {\"slots\": [1, 2]}}}",
                            "{\"nodes\": {\"nodeX\": {\"slots\": [{}, {}]}}}"})
        EXPECT_FALSE(parse_seen(nlohmann::json::parse(bad))) << bad;
}

} // namespace
} // namespace kagemusha::control::cluster
