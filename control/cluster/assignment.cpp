// SPDX-License-Identifier: GPL-2.0-or-later
//
// See assignment.hpp.
#include "control/cluster/assignment.hpp"

#include "control/cluster/node_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace kagemusha::control::cluster {

namespace {

bool runs_alone(const slot_seen& s) {
    return s.registered && s.role == "primary" && s.state == "alone";
}

// Its host says that nobody is there.
bool is_empty(const slot_seen& s) {
    return !s.is_there() && !s.unreachable;
}

resources needs_of(const declaration& declared, unsigned number) {
    const auto& shape = declared.shape(number);
    return {shape.cpus, shape.memory_mib, gpu_percent(declared)};
}

class assigner {
public:
    assigner(const std::vector<fleet_host>& hosts, const std::vector<assigned_cluster>& clusters,
             bool is_alone)
        : hosts_(hosts), clusters_(clusters), pool_(offers(hosts), is_alone), ports_(hosts.size()) {
        for (std::size_t i = 0; i < hosts.size(); ++i)
            if (!hosts[i].alive)
                pool_.leave_out(i);
    }

    // First everybody is where he stays, so that each choice is made with all that is known, and holds.
    assigned operator()() {
        for (const auto& one : clusters_)
            keep(one);
        for (const auto& one : clusters_)
            if (one.wanted == wish::running)
                choose(one);
        for (std::size_t i = 0; i < hosts_.size(); ++i) {
            out_.used.push_back(pool_.used(i));
            out_.reserved_cpus.push_back(pool_.reserved_cpus(i));
        }
        return std::move(out_);
    }

private:
    static std::vector<host_offer> offers(const std::vector<fleet_host>& hosts) {
        std::vector<host_offer> out;
        out.reserve(hosts.size());
        for (const auto& one : hosts)
            out.push_back(one.offer);
        return out;
    }

    std::optional<std::size_t> index(const std::optional<slot_place>& place) const {
        for (std::size_t i = 0; place && i < hosts_.size(); ++i)
            if (hosts_[i].offer.name == place->host)
                return i;
        return std::nullopt;
    }

    static node_seen seen(const assigned_cluster& one, unsigned number) {
        const auto found = one.seen.nodes.find(number);
        return found == one.seen.nodes.end() ? node_seen{} : found->second;
    }

    // Of the slots that a node has, those that go.
    static void drop(const assigned_cluster& one, unsigned number, assigned_node& node) {
        const auto looks = seen(one, number);
        const bool is_over = one.wanted == wish::deleted || number > one.declared->nodes;
        const auto free = [&](std::size_t i) { return !node.slot[i] || is_empty(looks.slot[i]); };
        if (is_over) {
            if (!looks.slot[0].is_there() && !looks.slot[1].is_there() && !looks.has_files)
                node.slot = {};
        } else if (one.wanted == wish::stopped) {
            if (free(0) && free(1))
                node.slot = {};
        } else if (node.slot[0] && node.slot[1] && !one.declared->shape(number).is_protected) {
            if (const std::size_t which = free(1) ? 1 : 0; free(which))
                node.slot[which].reset();
        } else {
            for (std::size_t i = 0; i < slots; ++i)
                if (node.slot[i] && looks.slot[i].unreachable && runs_alone(looks.slot[1 - i]))
                    node.slot[i].reset();
        }
    }

    void keep(const assigned_cluster& one) {
        auto& places = out_.clusters[one.declared->name];
        for (const auto& [number, had] : one.has) {
            auto node = had;
            drop(one, number, node);
            if (!node.slot[0] && !node.slot[1])
                continue;
            for (const auto& place : node.slot)
                if (const auto host = index(place))
                    ports_[*host].insert(place->port);
            account(one, number, node);
            places.emplace(number, std::move(node));
        }
    }

    void account(const assigned_cluster& one, unsigned number, const assigned_node& node) {
        const auto looks = seen(one, number);
        const std::size_t first = looks.slot[1].role == "primary" && node.slot[1] ? 1 : node.slot[0] ? 0 : 1;
        const auto primary = index(node.slot[first]), standby = index(node.slot[1 - first]);
        if (!primary && !standby)
            return; // of hosts that nobody knows any more
        numbers_[{one.declared->name, number}] = next_;
        pool_.add(next_++, {one.declared->name, needs_of(*one.declared, number),
                            primary ? *primary : *standby, primary ? standby : std::nullopt});
    }

    slot_place take(std::size_t host) {
        auto& used = ports_[host];
        auto port = hosts_[host].first_port;
        while (used.contains(port))
            port = static_cast<std::uint16_t>(port + ports_of_a_slot);
        used.insert(port);
        return {hosts_[host].offer.name, port};
    }

    void choose(const assigned_cluster& one) {
        const auto& name = one.declared->name;
        for (unsigned number = 1; number <= one.declared->nodes; ++number) {
            const bool is_protected = one.declared->shape(number).is_protected;
            auto& places = out_.clusters[name];
            const auto found = places.find(number);
            if (found == places.end())
                place(one, number, is_protected);
            else if (is_protected && (!found->second.slot[0] || !found->second.slot[1]))
                protect(one, number, found->second);
        }
    }

    void place(const assigned_cluster& one, unsigned number, bool is_protected) {
        std::string why;
        auto chosen = pool_.place({one.declared->name, needs_of(*one.declared, number), is_protected}, why);
        if (!chosen) {
            out_.no_room[one.declared->name][number] = why;
            return;
        }
        auto& node = out_.clusters[one.declared->name][number];
        node.slot[0] = take(chosen->primary);
        if (chosen->standby)
            node.slot[1] = take(*chosen->standby);
        pool_.add(next_++, std::move(*chosen));
    }

    void protect(const assigned_cluster& one, unsigned number, assigned_node& node) {
        const std::size_t empty = node.slot[0] ? 1 : 0;
        const auto looks = seen(one, number).slot[1 - empty];
        const auto known = numbers_.find({one.declared->name, number});
        if (known == numbers_.end() || (!runs_alone(looks) && !is_empty(looks)))
            return;
        if (const auto host = pool_.protect(known->second))
            node.slot[empty] = take(*host);
        else
            out_.no_room[one.declared->name][number] =
                fmt::format("no other host has room for the standby of {}", node_name(number));
    }

    const std::vector<fleet_host>& hosts_;
    const std::vector<assigned_cluster>& clusters_;
    placement pool_;
    std::vector<std::set<std::uint16_t>> ports_;
    std::map<std::pair<std::string, unsigned>, std::uint64_t> numbers_;
    std::uint64_t next_ = 0;
    assigned out_;
};

slot_seen slot_of(const slot_place& place, unsigned number, std::size_t slot,
                  const std::map<std::string, cluster_seen>& views, const std::vector<fleet_host>& hosts) {
    slot_seen out;
    const bool is_alive = std::any_of(hosts.begin(), hosts.end(), [&](const fleet_host& one) {
        return one.alive && one.offer.name == place.host;
    });
    if (!is_alive) {
        out.unreachable = true;
        out.problem = fmt::format("{} can't be reached", place.host);
        return out;
    }
    const auto view = views.find(place.host);
    if (view == views.end()) {
        out.busy = true;
        return out;
    }
    const auto node = view->second.nodes.find(number);
    return node == view->second.nodes.end() ? out : node->second.slot[slot];
}

} // namespace

assigned assign(const std::vector<fleet_host>& hosts, const std::vector<assigned_cluster>& clusters,
                bool is_alone) {
    return assigner(hosts, clusters, is_alone)();
}

std::vector<std::string> differences(const assignment& before, const assignment& after) {
    std::vector<std::string> out;
    for (const auto& [number, node] : after) {
        const auto found = before.find(number);
        for (std::size_t i = 0; i < slots; ++i)
            if (node.slot[i] && (found == before.end() || found->second.slot[i] != node.slot[i]))
                out.push_back(fmt::format("{}.{} is placed on {}", node_name(number), slot_letter(i),
                                          node.slot[i]->host));
    }
    return out;
}

cluster_seen merge(const assignment& has, const std::map<std::string, cluster_seen>& views,
                   const std::vector<fleet_host>& hosts, const std::string& self) {
    cluster_seen out;
    const auto own = views.find(self);
    if (own != views.end()) {
        out.network = own->second.network;
        out.network_has = own->second.network_has;
        out.has_files = own->second.has_files;
    }
    for (const auto& [host, view] : views) {
        if (out.network_problem.empty())
            out.network_problem = view.network_problem;
        for (const auto& [number, node] : view.nodes) {
            auto& all = out.nodes[number];
            all.has_files = all.has_files || node.has_files;
            const bool has_primary = node.slot[0].role == "primary" || node.slot[1].role == "primary";
            if (all.runs_with.empty() || (has_primary && !node.runs_with.empty()))
                all.runs_with = node.runs_with;
            if (host == self) {
                all.may_start = node.may_start;
                all.may_protect = node.may_protect;
            }
            if (all.failure.empty() || host == self)
                all.failure = node.failure.empty() ? all.failure : node.failure;
            // Somebody is in a slot that is not his: nobody starts there until he is gone. Of a node that has no
            // place he is what there is of it.
            for (std::size_t i = 0; i < slots; ++i)
                if (node.slot[i].is_there() && has.contains(number))
                    all.slot[i].busy = true;
                else if (node.slot[i].is_there())
                    all.slot[i] = node.slot[i];
        }
    }
    for (const auto& [number, node] : has)
        for (std::size_t i = 0; i < slots; ++i) {
            if (!node.slot[i])
                continue;
            auto& there = out.nodes[number].slot[i];
            auto said = slot_of(*node.slot[i], number, i, views, hosts);
            if (said.is_there() || said.unreachable || !there.busy)
                there = std::move(said);
        }
    return out;
}

bool is_mine(const step& what, const assignment& has, const cluster_seen& own, const std::string& self) {
    const auto found = has.find(what.node);
    const auto slot_is_here = [&](std::size_t slot) {
        return found != has.end() && found->second.slot[slot] && found->second.slot[slot]->host == self;
    };
    switch (what.kind) {
    case step_kind::start_network:
    case step_kind::configure_network:
        return std::any_of(has.begin(), has.end(), [&](const auto& one) { return one.second.is_on(self); });
    case step_kind::stop_network:
    case step_kind::remove_cluster:
        return true;
    case step_kind::start_primary:
    case step_kind::start_standby:
        return slot_is_here(what.slot);
    case step_kind::stop_slot:
        return found == has.end() ? own.nodes.contains(what.node) : slot_is_here(what.slot);
    case step_kind::protect:
        return slot_is_here(1 - what.slot);
    case step_kind::remove_node: {
        const auto here = own.nodes.find(what.node);
        return here != own.nodes.end() && here->second.has_files;
    }
    }
    return false;
}

std::vector<step> strays(const cluster_seen& own, const assignment* has, const std::string& self) {
    std::vector<step> out;
    bool somebody = false;
    for (const auto& [number, node] : own.nodes) {
        const auto found = has ? has->find(number) : assignment::const_iterator{};
        const bool is_placed = has && found != has->end();
        bool runs = false;
        for (std::size_t i = 0; i < slots; ++i) {
            runs = runs || node.slot[i].is_there();
            const bool is_own = is_placed && found->second.slot[i] && found->second.slot[i]->host == self;
            if (node.slot[i].registered && !is_own && (!has || is_placed))
                out.push_back({step_kind::stop_slot, number, i});
        }
        somebody = somebody || runs;
        const bool is_elsewhere = is_placed && !found->second.is_on(self);
        if (!runs && node.has_files && (!has || is_elsewhere))
            out.push_back({step_kind::remove_node, number, 0});
    }
    const bool is_used =
        has && std::any_of(has->begin(), has->end(), [&](const auto& one) { return one.second.is_on(self); });
    const bool has_elsewhere = has && !has->empty();
    if (somebody || is_used || (has && !has_elsewhere))
        return out;
    if (own.network)
        out.push_back({step_kind::stop_network});
    else if (own.has_files && out.empty())
        out.push_back({step_kind::remove_cluster});
    return out;
}

} // namespace kagemusha::control::cluster
