// SPDX-License-Identifier: GPL-2.0-or-later
//
// See placement.hpp. One pass over all hosts for a slot: with a thousand of them that is some microseconds,
// and needs no index that could disagree with what is given away.
#include "control/cluster/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <tuple>
#include <utility>

namespace kagemusha::control::cluster {

namespace {

void change(std::uint64_t& value, std::uint64_t by, bool add) {
    if (!add && value < by)
        std::abort(); // more is taken back than was given: a bug
    value = add ? value + by : value - by;
}

// In 1/10000, so that equal hosts are equal on every machine.
std::uint64_t fullness(const resources& used, const resources& offers) {
    const auto part = [](std::uint64_t a, std::uint64_t of) { return of == 0 ? 0 : a * 10000 / of; };
    return std::max({part(used.cpus, offers.cpus), part(used.memory_mib, offers.memory_mib),
                     part(used.gpu_percent, offers.gpu_percent)});
}

} // namespace

placement::placement(std::vector<host_offer> hosts, bool shares)
    : hosts_(std::move(hosts)), shares_(shares), loads_(hosts_.size()) {}

std::size_t placement::living() const {
    return static_cast<std::size_t>(
        std::count_if(loads_.begin(), loads_.end(), [](const load& l) { return l.alive; }));
}

// With `primary`: as the standby of a node there.
bool placement::fits(const load& at, const resources& offers, const resources& needs,
                     std::optional<std::size_t> primary) const {
    auto cpus = at.used.cpus + (primary ? 0 : needs.cpus);
    auto reserve = at.most;
    if (primary) {
        const auto found = at.takes_over.find(*primary);
        reserve = std::max(reserve, needs.cpus + (found == at.takes_over.end() ? 0 : found->second));
    }
    return at.alive && cpus + reserve <= offers.cpus &&
           at.used.memory_mib + needs.memory_mib <= offers.memory_mib &&
           at.used.gpu_percent + needs.gpu_percent <= offers.gpu_percent;
}

std::optional<std::size_t> placement::best(const request& wanted, std::optional<std::size_t> primary) const {
    const bool may_be_same = shares_ && living() < 2;
    std::optional<std::size_t> found;
    std::pair<unsigned, std::uint64_t> least{};
    static const std::map<std::size_t, unsigned> nowhere;
    const auto known = clusters_.find(wanted.cluster);
    const auto& own = known == clusters_.end() ? nowhere : known->second;
    auto next = own.begin(); // goes along with the hosts
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
        const auto here = next != own.end() && next->first == i ? (next++)->second : 0u;
        // On one host the standby's processors are those of its node: only one of both runs.
        const bool same = primary && *primary == i;
        if (same && !may_be_same)
            continue;
        const auto& at = loads_[i];
        auto needs = wanted.needs;
        if (same)
            needs.memory_mib *= 2, needs.gpu_percent *= 2; // its node is not accounted for yet
        if (!fits(at, hosts_[i].offers, needs, same ? std::nullopt : primary))
            continue;
        const std::pair rank{here, fullness(at.used, hosts_[i].offers)};
        if (!found || rank < least) {
            found = i;
            least = rank;
        }
    }
    return found;
}

std::optional<placed_node> placement::place(const request& wanted, std::string& why) const {
    placed_node node{wanted.cluster, wanted.needs, 0, std::nullopt};
    const auto primary = best(wanted, std::nullopt);
    if (!primary) {
        why = fmt::format(
            "no host has room for a node with {} CPUs, {} MiB{}", wanted.needs.cpus, wanted.needs.memory_mib,
            wanted.needs.gpu_percent == 0 ? std::string()
                                          : fmt::format(" and {} % of a GPU", wanted.needs.gpu_percent));
        return std::nullopt;
    }
    node.primary = *primary;
    if (!wanted.is_protected)
        return node;
    node.standby = best(wanted, primary);
    if (!node.standby && !shares_ && living() < 2) {
        why = fmt::format("a protected node needs two hosts, and only {} is there now",
                          hosts_[node.primary].name);
        return std::nullopt;
    }
    if (!node.standby) {
        why = fmt::format("no host has room for the standby of a node with {} CPUs and {} MiB: it needs the "
                          "node's memory and its part of a GPU again, and its CPUs in reserve",
                          wanted.needs.cpus, wanted.needs.memory_mib);
        return std::nullopt;
    }
    return node;
}

void placement::account(const placed_node& node, bool add) {
    const auto count = [&](std::size_t host) {
        auto& hosts = clusters_[node.cluster];
        auto& own = hosts[host];
        own = add ? own + 1 : own - 1;
        if (own == 0)
            hosts.erase(host);
        if (hosts.empty())
            clusters_.erase(node.cluster);
    };
    auto& primary = loads_[node.primary];
    change(primary.used.cpus, node.needs.cpus, add);
    change(primary.used.memory_mib, node.needs.memory_mib, add);
    change(primary.used.gpu_percent, node.needs.gpu_percent, add);
    count(node.primary);
    if (!node.standby)
        return;
    auto& standby = loads_[*node.standby];
    change(standby.used.memory_mib, node.needs.memory_mib, add);
    change(standby.used.gpu_percent, node.needs.gpu_percent, add);
    count(*node.standby);
    if (*node.standby == node.primary)
        return;
    auto& takes = standby.takes_over[node.primary];
    change(takes, node.needs.cpus, add);
    if (takes == 0)
        standby.takes_over.erase(node.primary);
    standby.most = 0;
    for (const auto& [host, cpus] : standby.takes_over)
        standby.most = std::max(standby.most, cpus);
}

void placement::add(std::uint64_t number, placed_node node) {
    if (node.primary >= hosts_.size() || (node.standby && *node.standby >= hosts_.size()) ||
        nodes_.contains(number))
        std::abort(); // a bug: nobody else makes numbers
    account(node, true);
    nodes_.emplace(number, std::move(node));
}

void placement::remove(std::uint64_t number) {
    const auto found = nodes_.find(number);
    if (found == nodes_.end())
        return;
    account(found->second, false);
    nodes_.erase(found);
}

std::optional<std::size_t> placement::protect(std::uint64_t number) {
    auto node = nodes_.at(number);
    // The node itself stands, and is accounted for while its standby is sought; on the only host best() counts
    // both of them.
    const bool may_be_same = shares_ && living() < 2;
    if (may_be_same)
        account(node, false);
    const auto found = best({node.cluster, node.needs, true}, node.primary);
    if (may_be_same)
        account(node, true);
    remove(number);
    node.standby = found;
    add(number, std::move(node));
    return found;
}

std::vector<placement::moved> placement::host_died(std::size_t host, std::vector<std::uint64_t>& lost) {
    std::vector<std::uint64_t> affected;
    for (const auto& [number, node] : nodes_)
        if (node.primary == host || node.standby == host)
            affected.push_back(number);
    loads_[host].alive = false;
    std::vector<moved> out;
    // First everybody is where the death has put him, so that the first choice of a slot is made with all
    // that is known, and holds.
    for (const auto number : affected) {
        auto node = nodes_.at(number);
        const bool was_primary = node.primary == host;
        remove(number);
        if (was_primary && (!node.standby || *node.standby == host)) {
            lost.push_back(number);
            continue;
        }
        if (was_primary)
            node.primary = *node.standby;
        node.standby.reset();
        out.push_back({number, was_primary, std::nullopt});
        add(number, std::move(node));
    }
    for (auto& one : out)
        if (living() >= 2)
            one.standby = protect(one.number);
    return out;
}

} // namespace kagemusha::control::cluster
