// SPDX-License-Identifier: GPL-2.0-or-later
//
// The part of the API (api.hpp) that is about hosts: what they have, whether something fits, and requests that
// another host answers.
#include "control/base/json_text.hpp"
#include "control/daemon/api.hpp"
#include "control/daemon/fleet/peers.hpp"
#include "control/daemon/people/unlocked.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kagemusha::control::daemon {

using json = nlohmann::json;

namespace {

std::uint64_t less(std::uint64_t from, std::uint64_t what) {
    return from - std::min(from, what);
}

// "" or what lacks. `left`: what all hosts together have left.
std::string why_not_as_placed(const cluster::assigned& placed, const reconciler::fleet_view& fleet,
                              const std::string& name, cluster::resources* left) {
    std::string why;
    if (const auto found = placed.no_room.find(name); found != placed.no_room.end())
        why = found->second.begin()->second;
    cluster::resources offers, used, rest;
    for (std::size_t i = 0; i < fleet.hosts.size(); ++i) {
        if (!fleet.hosts[i].alive)
            continue;
        const auto& has = fleet.hosts[i].offer.offers;
        const auto& gone = placed.used[i];
        const auto& places = placed.clusters.at(name);
        const bool is_there = std::any_of(places.begin(), places.end(), [&](const auto& one) {
            return one.second.is_on(fleet.hosts[i].offer.name);
        });
        const bool is_too_much = gone.cpus + placed.reserved_cpus[i] > has.cpus ||
                                 gone.memory_mib > has.memory_mib || gone.gpu_percent > has.gpu_percent;
        if (why.empty() && is_there && is_too_much)
            why = fmt::format("{} has no room for what its nodes would need", fleet.hosts[i].offer.name);
        offers = {offers.cpus + has.cpus, offers.memory_mib + has.memory_mib,
                  offers.gpu_percent + has.gpu_percent};
        used = {used.cpus + gone.cpus, used.memory_mib + gone.memory_mib,
                used.gpu_percent + gone.gpu_percent};
        rest = {rest.cpus + less(has.cpus, gone.cpus + placed.reserved_cpus[i]),
                rest.memory_mib + less(has.memory_mib, gone.memory_mib),
                rest.gpu_percent + less(has.gpu_percent, gone.gpu_percent)};
    }
    if (left)
        *left = rest;
    if (why.empty())
        return {};
    return fmt::format("{}. All hosts give nodes {} CPUs, {} MiB and {} % of a GPU, of which {}, {} and {} "
                       "are taken",
                       why, offers.cpus, offers.memory_mib, offers.gpu_percent, used.cpus, used.memory_mib,
                       used.gpu_percent);
}

using slot_counts = std::map<std::string, std::pair<unsigned, unsigned>>; // by host: VMs, standbys

// The slot that has a node's VM; of one that does not run, that in which it would be started.
std::size_t primary_slot(const cluster::assigned_node& node, const std::optional<reconciler::seen>& seen,
                         unsigned number) {
    const std::size_t first = node.slot[0] ? 0 : 1;
    const auto found = seen ? seen->plan.nodes.find(number) : decltype(seen->plan.nodes.end()){};
    return seen && found != seen->plan.nodes.end() ? found->second.primary.value_or(first) : first;
}

} // namespace

nlohmann::json hosts_of(const reconciler::fleet_view& fleet, const std::string& name, unsigned number) {
    json out = json::object();
    const auto places = fleet.places.find(name);
    if (places == fleet.places.end() || !places->second.contains(number))
        return out;
    for (std::size_t i = 0; i < cluster::slots; ++i)
        if (const auto& place = places->second.at(number).slot[i])
            out[std::string(1, cluster::slot_letter(i))] = place->host;
    return out;
}

std::string api::why_no_room(const cluster_record& wanted, bool& reached, free_and_placed* afterwards) {
    auto records = store_.all();
    reached = records.has_value();
    if (!reached)
        return {};
    const auto& name = wanted.declared.name;
    std::erase_if(*records, [&](const auto& one) { return one.declared.name == name; });
    records->push_back(wanted);
    const auto fleet = work_.fleet();
    std::vector<cluster::assigned_cluster> clusters;
    for (const auto& record : *records) {
        const auto places = fleet->places.find(record.declared.name);
        const auto seen = fleet->seen.find(record.declared.name);
        clusters.push_back({&record.declared, record.wanted,
                            places == fleet->places.end() ? cluster::assignment{} : places->second,
                            seen == fleet->seen.end() ? cluster::cluster_seen{} : seen->second});
    }
    const auto placed = cluster::assign(fleet->hosts, clusters, fleet->is_alone);
    if (afterwards)
        afterwards->places = placed.clusters.at(name);
    return why_not_as_placed(placed, *fleet, name, afterwards ? &afterwards->free : nullptr);
}

json api::describe_host() const {
    const auto fleet = work_.fleet();
    const auto self = fleet->entries.find(fleet->self);
    const auto entry = self == fleet->entries.end() ? host_entry{} : self->second;
    const auto& o = entry.offer.offers;
    return {{"name", entry.shown},
            {"version", KAGEMUSHA_VERSION},
            {"offers", {{"cpus", o.cpus}, {"memory_mib", o.memory_mib}, {"gpu_percent", o.gpu_percent}}},
            {"etcd", work_.problem()}};
}

json api::describe_hosts() const {
    const auto fleet = work_.fleet();
    const auto counts_of = [&](const std::string& name, const cluster::assignment& places,
                               slot_counts& into) {
        const auto seen = work_.look(name);
        for (const auto& [number, node] : places) {
            const auto primary = primary_slot(node, seen, number);
            for (std::size_t i = 0; i < cluster::slots; ++i)
                if (node.slot[i])
                    ++(i == primary ? into[node.slot[i]->host].first : into[node.slot[i]->host].second);
        }
    };
    slot_counts counts;
    for (const auto& [name, places] : fleet->places)
        counts_of(name, places, counts);
    json out = json::array();
    for (std::size_t i = 0; i < fleet->hosts.size(); ++i) {
        const auto& host = fleet->hosts[i];
        const auto entry = fleet->entries.find(host.offer.name);
        const bool is_known = entry != fleet->entries.end();
        const auto& [vms, standbys] = counts[host.offer.name];
        out.push_back({{"name", host.offer.name},
                       {"shown", is_known ? entry->second.shown : host.offer.name},
                       {"state", !host.alive                    ? "unreachable"
                                 : !entry->second.is_understood ? "another release"
                                                                : "ready"},
                       {"version", is_known ? entry->second.release : ""},
                       {"leads", host.offer.name == fleet->leader},
                       {"offers", to_json(host.offer.offers)},
                       {"used", to_json(i < fleet->used.size() ? fleet->used[i] : cluster::resources{})},
                       {"reserved_cpus", i < fleet->reserved_cpus.size() ? fleet->reserved_cpus[i] : 0},
                       {"vms", vms},
                       {"standbys", standbys}});
    }
    return out;
}

api_answer api::get_host(const api_request&, const place&) {
    return {200, describe_host()};
}

api_answer api::get_hosts(const api_request&, const place&) {
    return {200, {{"hosts", describe_hosts()}}};
}

std::optional<peer_place> api::place_of(const reconciler& work, const std::string& name, unsigned number) {
    const auto fleet = work.fleet();
    const auto places = fleet->places.find(name);
    if (places == fleet->places.end() || !places->second.contains(number))
        return std::nullopt;
    const auto& node = places->second.at(number);
    const auto& place = node.slot[primary_slot(node, work.look(name), number)];
    const auto host = place ? fleet->entries.find(place->host) : fleet->entries.end();
    if (host == fleet->entries.end() || host->first == fleet->self)
        return std::nullopt;
    return peer_place{host->first, host->second.address, host->second.port};
}

// The other host may ask this one meanwhile.
api_answer api::pass_on(const api_request& request, const peer_place& to) {
    const unlocked meanwhile(mutex_);
    return peers_->ask(to, request);
}

} // namespace kagemusha::control::daemon
