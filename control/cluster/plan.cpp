// SPDX-License-Identifier: GPL-2.0-or-later
//
// See plan.hpp.
#include "control/cluster/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace kagemusha::control::cluster {

namespace {

bool is_primary(const slot_seen& s) {
    return s.registered && s.role == "primary";
}

bool is_standby(const slot_seen& s) {
    return s.registered && s.role == "standby";
}

// It is there and says nothing that can be used: it starts, or hangs.
bool is_silent(const slot_seen& s) {
    return s.is_there() && s.role != "primary" && s.role != "standby";
}

// A standby that has never had a copy, or whose copy is of no use: it will not take over.
bool waits_for_a_primary(const slot_seen& s) {
    return is_standby(s) && s.state == "listening";
}

class planner {
public:
    planner(const declaration& declared, wish wanted, const cluster_seen& seen)
        : declared_(declared), wanted_(wanted), seen_(seen) {}

    plan operator()() {
        const bool wants_network = wanted_ == wish::running;
        const bool network_fits = seen_.network && seen_.network_has == network_description(declared_);
        if (wants_network && !seen_.network)
            add(step_kind::start_network);
        else if (wants_network && !network_fits)
            add(step_kind::configure_network);
        std::map<unsigned, node_seen> nodes = seen_.nodes;
        if (wanted_ != wish::deleted)
            for (unsigned number = 1; number <= declared_.nodes; ++number)
                nodes.try_emplace(number);
        bool somebody = false;
        for (const auto& [number, node] : nodes) {
            somebody = somebody || node.slot[0].is_there() || node.slot[1].is_there();
            const bool wanted = number <= declared_.nodes && wanted_ == wish::running;
            if (wanted)
                out_.nodes[number] = run(number, node);
            else
                end(number, node);
        }
        // Of the way to node1's ssh server.
        if (const auto first = out_.nodes.find(1); first != out_.nodes.end() && first->second.text.empty())
            first->second.text = seen_.network_problem;
        if (!wants_network && !somebody && seen_.network)
            add(step_kind::stop_network);
        const bool nothing_left =
            !somebody && !seen_.network &&
            std::none_of(nodes.begin(), nodes.end(), [](const auto& one) { return one.second.has_files; });
        if (wanted_ == wish::deleted && nothing_left)
            add(step_kind::remove_cluster);
        out_.settled = out_.steps.empty() &&
                       std::all_of(out_.nodes.begin(), out_.nodes.end(),
                                   [](const auto& one) { return one.second.settled; }) &&
                       wanted_ != wish::deleted && somebody == (wanted_ == wish::running);
        return std::move(out_);
    }

private:
    void add(step_kind kind, unsigned node = 0, std::size_t slot = 0) {
        out_.steps.push_back({kind, node, slot});
    }

    // The slot of a host that is not heard of counts as empty beside one that runs the VM, or takes over. A
    // standby that has a copy and hears its primary knows better.
    static std::optional<std::size_t> clear_unreachable(node_seen& node) {
        for (std::size_t i = 0; i < slots; ++i) {
            if (!node.slot[i].unreachable)
                continue;
            const auto& other = node.slot[1 - i];
            const bool shows_it = is_primary(other) || (is_standby(other) && other.state != "synced");
            if (!shows_it)
                return i;
            node.slot[i] = {};
        }
        return std::nullopt;
    }

    node_report run(unsigned number, node_seen node) {
        node_report report;
        if (const auto lost = clear_unreachable(node)) {
            report.state = "unreachable";
            report.text = node.slot[*lost].problem;
            std::tie(report.primary, report.standby) = who(node);
            return report;
        }
        const auto& shape = declared_.shape(number);
        const auto [primary, standby] = who(node);
        report.primary = primary;
        report.standby = standby;
        if (primary)
            report.gauges = node.slot[*primary].gauges;
        report.needs_restart =
            !node.runs_with.empty() && node.runs_with != node_description(declared_, number);
        if (is_silent(node.slot[0]) || is_silent(node.slot[1])) {
            report.state = "starting";
            return report;
        }
        // What it has is older than what ran since: nobody can go on from it.
        if (standby && node.slot[*standby].state == "outdated") {
            report.state = "starting";
            add(step_kind::stop_slot, number, *standby);
            return report;
        }
        if (!primary && !standby) {
            report.state = node.failure.empty() ? "starting" : "failed";
            report.text = node.failure;
            report.needs_restart = false;
            if (node.may_start && seen_.network)
                add(step_kind::start_primary, number, 0);
            return report;
        }
        if (!primary) {
            const auto& waits = node.slot[*standby];
            report.state = waits_for_a_primary(waits) ? "starting" : "taking over";
            report.text = waits.problem;
            // Its primary has ended before it had a copy of it.
            if (waits_for_a_primary(waits) && node.may_start && seen_.network)
                add(step_kind::start_primary, number, 1 - *standby);
            return report;
        }
        return beside_primary(number, node, shape.is_protected, *primary, standby, std::move(report));
    }

    node_report beside_primary(unsigned number, const node_seen& node, bool wants_standby,
                               std::size_t primary, std::optional<std::size_t> standby, node_report report) {
        const auto& runs = node.slot[primary];
        const bool can_have_one = node.runs_with.empty() || !report.needs_restart || standby;
        report.text = runs.problem;
        if (runs.state == "leaving" || runs.state == "ended") {
            report.state = "stopping"; // the guest has switched itself off, or somebody stopped it
            return report;
        }
        if (!wants_standby) {
            report.text.clear(); // that it has no standby is no problem
            report.state = runs.state == "opening" || runs.state == "comparing" ? "starting" : "running";
            report.settled = report.state == "running" && !standby;
            if (standby)
                add(step_kind::stop_slot, number, *standby);
            return report;
        }
        report.settled = runs.state == "protecting";
        report.state = report.settled ? "protected" : "unprotected";
        if (report.settled)
            return report;
        if (!standby) {
            report.text = node.failure.empty() ? report.text : node.failure;
            if (can_have_one && runs.state == "alone" && node.may_start)
                add(step_kind::start_standby, number, 1 - primary);
            else if (!can_have_one)
                report.text = "it was started without protection: stop the cluster and start it again";
            report.settled = !can_have_one;
        } else if (runs.state == "alone" && node.slot[*standby].state == "listening" && node.may_protect) {
            add(step_kind::protect, number, *standby);
        }
        return report;
    }

    void end(unsigned number, const node_seen& node) {
        node_report report{"stopping", "", false, false, {}, {}, {}};
        const auto [primary, standby] = who(node);
        // The primary's end is also its standby's; one that stays is told, too.
        if (primary)
            add(step_kind::stop_slot, number, *primary);
        else if (standby)
            add(step_kind::stop_slot, number, *standby);
        else if (!node.slot[0].is_there() && !node.slot[1].is_there()) {
            report = {"stopped", "", true, false, {}, {}, {}};
            const bool is_over = wanted_ == wish::deleted || number > declared_.nodes;
            if (is_over && node.has_files) {
                report.state = "stopping";
                report.settled = false;
                add(step_kind::remove_node, number);
            } else if (is_over) {
                return;
            }
        }
        out_.nodes[number] = report;
    }

    static std::pair<std::optional<std::size_t>, std::optional<std::size_t>> who(const node_seen& node) {
        std::optional<std::size_t> primary, standby;
        for (std::size_t i = 0; i < slots; ++i)
            if (is_primary(node.slot[i]))
                primary = i;
            else if (is_standby(node.slot[i]))
                standby = i;
        return {primary, standby};
    }

    const declaration& declared_;
    const wish wanted_;
    const cluster_seen& seen_;
    plan out_;
};

} // namespace

const char* to_text(wish what) {
    switch (what) {
    case wish::running:
        return "running";
    case wish::stopped:
        return "stopped";
    case wish::deleted:
        return "deleted";
    }
    return "";
}

std::optional<wish> wish_of(std::string_view text) {
    for (const auto one : {wish::running, wish::stopped, wish::deleted})
        if (text == to_text(one))
            return one;
    return std::nullopt;
}

const char* to_text(step_kind kind) {
    switch (kind) {
    case step_kind::start_network:
        return "start the network";
    case step_kind::configure_network:
        return "change the network";
    case step_kind::stop_network:
        return "end the network";
    case step_kind::start_primary:
        return "start";
    case step_kind::start_standby:
        return "start the standby of";
    case step_kind::protect:
        return "protect";
    case step_kind::stop_slot:
        return "stop";
    case step_kind::remove_node:
        return "delete";
    case step_kind::remove_cluster:
        return "forget the cluster";
    }
    return "";
}

std::string to_text(const step& what) {
    if (what.node == 0)
        return to_text(what.kind);
    return fmt::format("{} {}.{}", to_text(what.kind), node_name(what.node), slot_letter(what.slot));
}

plan make_plan(const declaration& declared, wish wanted, const cluster_seen& seen) {
    return planner(declared, wanted, seen)();
}

std::vector<std::string> differences(const plan& before, const plan& after) {
    std::vector<std::string> out;
    for (const auto& [number, now] : after.nodes) {
        const auto found = before.nodes.find(number);
        const auto was = found == before.nodes.end() ? node_report{} : found->second;
        // Of a quick one nobody has seen that it was under way.
        const bool went_on =
            now.primary && (was.primary ? was.primary != now.primary : was.state == "taking over");
        if (went_on)
            out.push_back(fmt::format("{} runs on in {}", node_name(number), slot_letter(*now.primary)));
        if (now.state != was.state)
            out.push_back(fmt::format("{} is {}{}{}", node_name(number), now.state,
                                      now.text.empty() ? "" : ": ", now.text));
    }
    for (const auto& [number, was] : before.nodes)
        if (!after.nodes.contains(number))
            out.push_back(fmt::format("{} is gone", node_name(number)));
    return out;
}

std::string node_description(const declaration& declared, unsigned number) {
    auto out = to_json(declared);
    for (const char* other : {"nodes", "node", "network", "cpus", "memory", "protected"})
        out.erase(other);
    const auto& shape = declared.shape(number);
    out["cpus"] = shape.cpus;
    out["memory"] = shape.memory_mib;
    out["protected"] = shape.is_protected;
    return out.dump();
}

std::string network_description(const declaration& declared) {
    auto out = to_json(declared).at("network");
    out["nodes"] = declared.nodes;
    out["name"] = declared.name;
    return out.dump();
}

} // namespace kagemusha::control::cluster
