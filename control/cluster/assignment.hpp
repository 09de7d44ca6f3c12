// SPDX-License-Identifier: GPL-2.0-or-later
//
// Which host has which slot of which node: what one daemon of all, the leader, writes, and each host does its
// part of. Pure; placement.hpp chooses the hosts.
//
// A choice holds. A slot is given to another host only when its own is not heard of AND the supervisor in the
// node's other slot runs the VM alone, which the arbiter has allowed: so neither a daemon that is away for a
// while nor a cut between hosts makes a VM run twice. What nobody can know waits.
#pragma once

#include "control/cluster/placement.hpp"
#include "control/cluster/plan.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kagemusha::control::cluster {

inline constexpr std::uint16_t ports_of_a_slot = 3; // its supervisor's, its GPU's, its QEMU's
inline constexpr std::uint16_t slots_of_a_host = 1024;

struct slot_place {
    std::string host;
    std::uint16_t port = 0; // the first of its ports
    bool operator==(const slot_place&) const = default;
};

struct assigned_node {
    std::array<std::optional<slot_place>, slots> slot;
    bool operator==(const assigned_node&) const = default;
    bool is_on(const std::string& host) const {
        return (slot[0] && slot[0]->host == host) || (slot[1] && slot[1]->host == host);
    }
};

using assignment = std::map<unsigned, assigned_node>; // by the node's number

struct fleet_host {
    host_offer offer;
    bool alive = true;
    std::uint16_t first_port = 0;
};

struct assigned_cluster {
    const declaration* declared = nullptr;
    wish wanted = wish::running;
    assignment has;
    cluster_seen seen; // of all hosts: merge() below
};

struct assigned {
    std::map<std::string, assignment> clusters; // as they are to be
    std::map<std::string, std::map<unsigned, std::string>>
        no_room;                              // nodes and standbys that have no host: why
    std::vector<resources> used;              // of each host
    std::vector<std::uint64_t> reserved_cpus; // for a takeover, of each host
};

// `hosts` and `clusters` in an order that does not depend on who asks: by name. `is_alone`: there is one host, and
// will be no other; of several a protected node waits until two are there.
assigned assign(const std::vector<fleet_host>& hosts, const std::vector<assigned_cluster>& clusters,
                bool is_alone);

// What has changed, a sentence for each slot that has another host.
std::vector<std::string> differences(const assignment& before, const assignment& after);

// ---- what hosts see, together

// What all hosts see of one cluster, as one: of each slot what its own host has said. A host that is alive and
// has not said anything is busy there; one that is not alive is unreachable. `self`: whose attempts, network
// and folder count, because who plans carries out its own steps.
cluster_seen merge(const assignment& has, const std::map<std::string, cluster_seen>& views,
                   const std::vector<fleet_host>& hosts, const std::string& self);

// Whether a step is this host's to do.
bool is_mine(const step& what, const assignment& has, const cluster_seen& own, const std::string& self);

// Nodes that this host has something of and that are not its own: the slots to stop, and, once nobody runs, the
// nodes whose files go. `has` is null when there is no such cluster any more.
std::vector<step> strays(const cluster_seen& own, const assignment* has, const std::string& self);

// As the API says them.
nlohmann::json to_json(const resources& from);

// As etcd has them. Nothing: they are of another release.
nlohmann::json to_json(const assignment& from);
std::optional<assignment> parse_assignment(const nlohmann::json& from);
nlohmann::json to_json(const cluster_seen& from);
std::optional<cluster_seen> parse_seen(const nlohmann::json& from);

} // namespace kagemusha::control::cluster
