// SPDX-License-Identifier: GPL-2.0-or-later
//
// Placement: single choices, and a seeded pool of 1,000 hosts with 10,000 nodes in which hosts die. What never
// happens is counted from the nodes' places alone, not from the accounts that placement keeps.
#include "control/cluster/placement.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace kagemusha::control::cluster {
namespace {

std::vector<host_offer> hosts(std::size_t count, resources offers) {
    std::vector<host_offer> out;
    for (std::size_t i = 0; i < count; ++i)
        out.push_back({fmt::format("host{}", i), offers});
    return out;
}

placed_node must_place(placement& pool, std::uint64_t number, const placement::request& wanted) {
    std::string why;
    const auto placed = pool.place(wanted, why);
    EXPECT_TRUE(placed) << why;
    if (placed)
        pool.add(number, *placed);
    return placed.value_or(placed_node{});
}

// From the nodes alone.
struct account {
    std::vector<resources> used;
    std::vector<std::map<std::size_t, std::uint64_t>> takes_over;
};

account count(const placement& pool) {
    account out{std::vector<resources>(pool.hosts().size()), {}};
    out.takes_over.resize(pool.hosts().size());
    for (const auto& [number, node] : pool.nodes()) {
        out.used[node.primary].cpus += node.needs.cpus;
        out.used[node.primary].memory_mib += node.needs.memory_mib;
        out.used[node.primary].gpu_percent += node.needs.gpu_percent;
        if (!node.standby)
            continue;
        out.used[*node.standby].memory_mib += node.needs.memory_mib;
        out.used[*node.standby].gpu_percent += node.needs.gpu_percent;
        if (*node.standby != node.primary)
            out.takes_over[*node.standby][node.primary] += node.needs.cpus;
    }
    return out;
}

// `with_reserve`: also after any one death.
void nobody_has_too_much(const placement& pool, bool with_reserve) {
    const auto has = count(pool);
    for (std::size_t i = 0; i < has.used.size(); ++i) {
        const auto& offers = pool.hosts()[i].offers;
        ASSERT_LE(has.used[i].memory_mib, offers.memory_mib) << i;
        ASSERT_LE(has.used[i].gpu_percent, offers.gpu_percent) << i;
        ASSERT_LE(has.used[i].cpus, offers.cpus) << i;
        for (const auto& [from, cpus] : has.takes_over[i])
            if (with_reserve)
                ASSERT_LE(has.used[i].cpus + cpus, offers.cpus) << i << " when " << from << " dies";
    }
}

TEST(cluster_placement, a_node_and_its_standby_are_apart_where_there_are_two_hosts) {
    placement two(hosts(2, {8, 8192, 100}));
    const auto node = must_place(two, 1, {"lab", {2, 1024, 10}, true});
    ASSERT_TRUE(node.standby);
    EXPECT_NE(node.primary, *node.standby);

    placement one(hosts(1, {8, 8192, 100}));
    const auto alone = must_place(one, 1, {"lab", {2, 1024, 10}, true});
    EXPECT_EQ(alone.standby, alone.primary);
    EXPECT_EQ(one.used(0).memory_mib, 2048u); // it counts twice all the same
    EXPECT_EQ(one.used(0).gpu_percent, 20u);
}

TEST(cluster_placement, nodes_of_a_cluster_spread) {
    placement pool(hosts(4, {64, 65536, 100}));
    std::set<std::size_t> primaries;
    for (std::uint64_t i = 0; i < 4; ++i)
        primaries.insert(must_place(pool, i, {"lab", {1, 512, 0}, false}).primary);
    EXPECT_EQ(primaries.size(), 4u);
}

TEST(cluster_placement, what_a_death_would_bring_is_kept_free) {
    placement pool(hosts(2, {4, 100000, 100}));
    // Each host has a node of 2 CPUs and is the standby of the other's: 2 + 2 of 4.
    must_place(pool, 1, {"a", {2, 512, 0}, true});
    must_place(pool, 2, {"a", {2, 512, 0}, true});
    nobody_has_too_much(pool, true);
    std::string why;
    EXPECT_FALSE(pool.place({"b", {1, 512, 0}, false}, why));
    EXPECT_NE(why.find("no host has room for a node with 1 CPUs, 512 MiB"), std::string::npos) << why;
}

TEST(cluster_placement, what_is_taken_back_is_free_again) {
    placement pool(hosts(2, {4, 4096, 100}));
    for (int round = 0; round < 3; ++round) {
        must_place(pool, 1, {"a", {2, 2048, 50}, true});
        pool.remove(1);
        for (std::size_t i = 0; i < 2; ++i) {
            EXPECT_EQ(pool.used(i).cpus, 0u);
            EXPECT_EQ(pool.used(i).memory_mib, 0u);
            EXPECT_EQ(pool.reserved_cpus(i), 0u);
        }
    }
}

TEST(cluster_placement, what_lacks_is_said) {
    placement pool(hosts(1, {4, 1024, 100}));
    std::string why;
    EXPECT_FALSE(pool.place({"a", {1, 2048, 0}, false}, why));
    EXPECT_FALSE(pool.place({"a", {1, 1024, 0}, true}, why)); // twice its memory on one host
    EXPECT_NE(why.find("standby"), std::string::npos) << why;
    placement none({});
    EXPECT_FALSE(none.place({"a", {1, 1, 0}, false}, why));
}

TEST(cluster_placement, a_death_without_a_standby_loses_the_node) {
    placement pool(hosts(2, {4, 4096, 100}));
    const auto node = must_place(pool, 7, {"a", {1, 512, 0}, false});
    std::vector<std::uint64_t> lost;
    EXPECT_TRUE(pool.host_died(node.primary, lost).empty());
    EXPECT_EQ(lost, std::vector<std::uint64_t>{7});
}

// 1,000 hosts in racks of different sizes, 10,000 nodes of clusters of 1 to 16, every second one protected.
placement large_pool(unsigned seed, std::mt19937& random) {
    random.seed(seed);
    std::vector<host_offer> all;
    for (std::size_t i = 0; i < 1000; ++i)
        all.push_back(
            {fmt::format("host{}", i), {64 + 64 * (random() % 3), (128u << 10) << random() % 3, 400}});
    placement pool(std::move(all));
    std::uint64_t number = 0;
    for (unsigned cluster = 0; number < 10000; ++cluster) {
        const auto size = 1 + random() % 16;
        const placement::request wanted{
            fmt::format("c{}", cluster),
            {1 + random() % 8, 1024u << random() % 5, random() % 2 == 0 ? 0 : 5 * (1 + random() % 5)},
            random() % 2 == 0};
        for (unsigned i = 0; i < size && number < 10000; ++i) {
            std::string why;
            if (const auto placed = pool.place(wanted, why))
                pool.add(number, *placed);
            ++number;
        }
    }
    return pool;
}

TEST(cluster_placement, a_thousand_hosts_and_ten_thousand_nodes) {
    for (const unsigned seed : {1u, 2u}) {
        SCOPED_TRACE(seed);
        std::mt19937 random;
        auto pool = large_pool(seed, random);
        EXPECT_GT(pool.nodes().size(), 9900u); // almost all fit
        nobody_has_too_much(pool, true);
        for (const auto& [number, node] : pool.nodes())
            ASSERT_NE(node.standby, node.primary) << number;
        // Ten hosts die, one after the other; each time everybody who has lost a place has one new choice.
        std::set<std::size_t> dead;
        while (dead.size() < 10) {
            const auto host = random() % 1000;
            if (!dead.insert(host).second)
                continue;
            const auto before = pool.nodes();
            std::vector<std::uint64_t> lost;
            const auto moved = pool.host_died(host, lost);
            std::set<std::uint64_t> once;
            for (const auto& one : moved) {
                ASSERT_TRUE(once.insert(one.number).second) << "a second choice";
                ASSERT_EQ(one.taken_over, before.at(one.number).primary == host);
                ASSERT_TRUE(one.standby) << "no standby again although there is room";
                ASSERT_FALSE(dead.contains(*one.standby));
            }
            for (const auto& [number, node] : before)
                if (node.primary == host || node.standby == host) {
                    ASSERT_TRUE(once.contains(number) || std::count(lost.begin(), lost.end(), number) == 1)
                        << number;
                }
            for (const auto& [number, node] : pool.nodes()) {
                ASSERT_FALSE(dead.contains(node.primary)) << number;
                ASSERT_NE(node.standby, node.primary) << number;
            }
            nobody_has_too_much(pool, false);
        }
    }
}

TEST(cluster_placement, the_same_input_has_the_same_places) {
    std::mt19937 random;
    const auto one = large_pool(3, random), other = large_pool(3, random);
    ASSERT_EQ(one.nodes().size(), other.nodes().size());
    for (const auto& [number, node] : one.nodes()) {
        EXPECT_EQ(node.primary, other.nodes().at(number).primary);
        EXPECT_EQ(node.standby, other.nodes().at(number).standby);
    }
}

} // namespace
} // namespace kagemusha::control::cluster
