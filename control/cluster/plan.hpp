// SPDX-License-Identifier: GPL-2.0-or-later
//
// The plan: what is wanted of a cluster, beside what there is of it on all hosts, gives the steps that lead
// from the one to the other. Pure. It is made anew again and again from what is seen; no step depends on a
// former one having been seen to end, so a daemon that died between two steps goes on with the next one.
//
// A node's VM has two slots, a and b: names under which its two supervisors run, and where they listen. Which
// of them is the primary changes with takeovers. The order that the plan keeps:
//   * the network is there before a VM that is connected to it, and goes after the last one;
//   * a VM is started anew only when neither slot has a supervisor: whoever is left may be taking over;
//   * a standby is started only beside a primary that runs alone, and is named to it once it listens;
//   * a node's files go when nobody runs from them, and the record goes when nothing else is left.
#pragma once

#include "control/cluster/declaration.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kagemusha::control::cluster {

enum class wish { running, stopped, deleted };
const char* to_text(wish what);
std::optional<wish> wish_of(std::string_view text);

inline constexpr std::size_t slots = 2;
inline char slot_letter(std::size_t slot) {
    return slot == 0 ? 'a' : 'b';
}

// What a supervisor measures, for people; no step depends on it.
struct slot_gauges {
    std::uint64_t checkpoint_age_ms = 0, pause_us = 0, epoch_us = 0, checkpoints = 0, takeovers = 0;
    double paused_percent = 0;
    std::uint64_t gpu_behind_ms = 0;           // the standby's GPU
    double gpu_percent = no_gpu_share;         // of its GPU's time, lately
    static constexpr double no_gpu_share = -1; // it shares none, or nobody has looked twice
};

struct slot_seen {
    bool busy = false;       // a process that has not got a name yet, or does not answer
    bool registered = false; // it has its name, so nobody else can run there
    std::string role, state; // of its answer: "primary", "standby"; ha::to_text() of the state
    std::string problem;     // a sentence of the supervisor's
    slot_gauges gauges = {};
    bool unreachable = false; // its host has not been heard of for a while: nobody knows
    bool is_there() const { return busy || registered; }
};

struct node_seen {
    std::array<slot_seen, slots> slot;
    bool has_files = false;
    std::string runs_with;   // node_description() of the start that is running; "": none, or not known
    bool may_start = true;   // false: it failed a moment ago, and is tried again later
    bool may_protect = true; // false: a standby was named a moment ago
    std::string failure;     // of the last start: a sentence, or empty
};

struct cluster_seen {
    bool network = false;
    std::string network_has;      // network_description() that it has
    std::string network_problem;  // a sentence of the network's
    bool has_files = false;       // the cluster's own folder
    std::uint16_t trunk_port = 0; // where this host's part of the network awaits the others
    std::string trunks;           // what this part was told of the others
    std::map<unsigned, node_seen> nodes;
};

enum class step_kind {
    start_network,
    configure_network,
    stop_network,
    start_primary,
    start_standby,
    protect, // names the standby in `slot` to the primary in the other one
    stop_slot,
    remove_node,
    remove_cluster, // its folder, and then its record
};
const char* to_text(step_kind kind);

struct step {
    step_kind kind;
    unsigned node = 0;
    std::size_t slot = 0;
    bool operator==(const step&) const = default;
};
std::string to_text(const step& what);

// For people, and whether it is what was wanted.
struct node_report {
    std::string state; // "starting", "running", "protected", "unprotected", "taking over", "stopping", …
    std::string text;  // more, as a sentence; or empty
    bool settled = false;
    bool needs_restart = false;                            // it runs with an older declaration
    std::optional<std::size_t> primary = {}, standby = {}; // its slots
    slot_gauges gauges = {};                               // of the primary
};

struct plan {
    std::vector<step> steps;
    std::map<unsigned, node_report> nodes;
    bool settled = false; // nothing to do, and nothing that is waited for
};

plan make_plan(const declaration& declared, wish wanted, const cluster_seen& seen);

// What has happened between two plans of one cluster, a sentence for each node that is not what it was.
std::vector<std::string> differences(const plan& before, const plan& after);

// What a node is started with, and what the network has, as text that is compared.
std::string node_description(const declaration& declared, unsigned number);
std::string network_description(const declaration& declared);

} // namespace kagemusha::control::cluster
