// SPDX-License-Identifier: GPL-2.0-or-later
//
// See api.hpp.
#include "control/daemon/api.hpp"

#include "control/base/installation.hpp"
#include "control/base/json_text.hpp"
#include "control/cluster/json_keys.hpp"
#include "control/cluster/node_files.hpp"
#include "control/cluster/node_ssh.hpp"
#include "control/daemon/fleet/peers.hpp"
#include "control/daemon/logins.hpp"
#include "control/lan/addresses.hpp"
#include "control/lan/lan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <sys/sysinfo.h>
#include <unistd.h>

namespace kagemusha::control::daemon {

using cluster::wish;
using json = nlohmann::json;

namespace {

constexpr unsigned cpus_for_each =
    8; // processors of guests for each of the host's: most wait most of the time

api_answer changed_meanwhile(const std::string& name) {
    return refuse(409, fmt::format("'{}' was changed by somebody else meanwhile: look at it again", name));
}

constexpr auto recent_for = std::chrono::milliseconds(200);

std::vector<std::string_view> parts_of(std::string_view path) {
    std::vector<std::string_view> parts;
    path = path.substr(0, path.find('?'));
    while (path.starts_with('/')) {
        path.remove_prefix(1);
        const auto end = std::min(path.find('/'), path.size());
        parts.push_back(path.substr(0, end));
        path.remove_prefix(end);
    }
    return parts;
}

// Starting, stopping, … of a cluster as a whole.
std::string summary(const cluster_record& record, const std::optional<reconciler::seen>& seen) {
    if (record.wanted == wish::deleted)
        return "deleting";
    if (seen && seen->revision == record.revision && seen->plan.settled)
        return to_text(record.wanted);
    return record.wanted == wish::running ? "starting" : "stopping";
}

std::string slot_text(std::optional<std::size_t> slot) {
    return slot ? std::string(1, cluster::slot_letter(*slot)) : std::string();
}

} // namespace

api_answer refuse(unsigned status, std::string why) {
    return {status, {{"error", std::move(why)}}};
}

std::string revision_of(std::string_view if_match) {
    if (if_match == "*")
        return {};
    if (if_match.size() >= 2 && if_match.front() == '"' && if_match.back() == '"')
        if_match = if_match.substr(1, if_match.size() - 2);
    return std::string(if_match);
}

std::optional<cluster::declaration> declared_in(const api_request& request, api_answer& wrong) {
    std::vector<std::string> errors;
    auto declared = cluster::parse_json_text(request.body, errors);
    if (!declared)
        wrong = refuse(400, fmt::format("{}", fmt::join(errors, "; ")));
    return declared;
}

api::api(const etcd_process& etcd, reconciler& work, const state_folder& folder, event_log& events)
    : store_(etcd)
    , work_(work)
    , folder_(folder)
    , events_(events)
    , people_(etcd, folder.path() + "/audit.log") {}

std::vector<std::pair<std::string, std::string>> api::routes() {
    std::vector<std::pair<std::string, std::string>> out;
    for (const auto& one : table())
        out.emplace_back(one.method, one.path);
    return out;
}

api_answer api::answer_route(const route& one, const api_request& request, const place& at) {
    if (one.is_local && !request.who.is_local)
        return refuse(403, "this is answered only at the daemon's Unix socket");
    if (request.who.may < one.least && request.who.may == access::role::nobody)
        return refuse(401, "log in, or send a token");
    if (request.who.may < one.least)
        return refuse(403, fmt::format("this needs the role {}, and '{}' is {}", to_text(one.least),
                                       request.who.name, to_text(request.who.may)));
    if (!at.name.empty() && !cluster::is_cluster_name(at.name))
        return refuse(404, fmt::format("there is no cluster '{}'", cluster::shown(at.name)));
    return (this->*one.handle)(request, at);
}

api_answer api::answer(const api_request& request) {
    const std::lock_guard lock(mutex_);
    const auto wanted = parts_of(request.target);
    bool path_is_known = false;
    for (const auto& one : table()) {
        const auto parts = parts_of(one.path);
        place at;
        bool fits = parts.size() == wanted.size();
        for (std::size_t i = 0; fits && i < parts.size(); ++i)
            if (parts[i] == "{name}")
                at.name = wanted[i];
            else if (parts[i] == "{node}")
                at.node = wanted[i];
            else if (parts[i] == "{account}")
                at.account = wanted[i];
            else
                fits = parts[i] == wanted[i];
        path_is_known = path_is_known || fits;
        if (!fits || request.method != one.method)
            continue;
        auto said = answer_route(one, request, at);
        const bool logs_in = one.handle == &api::finish_oidc; // a browser's way back: its query has a secret
        const bool looks = (request.method == "GET" && !logs_in) || one.handle == &api::plan;
        if (!looks || (request.websocket && said.status < 400 && !at.node.empty()))
            people_.audit.add(said.is.name.empty() ? request.who : said.is, request.method,
                              logs_in ? login::oidc_callback_path : request.target, said.status);
        return said;
    }
    if (path_is_known)
        return refuse(405, fmt::format("{} is not possible here", cluster::shown(request.method)));
    return refuse(404, fmt::format("there is nothing at {}", cluster::shown(request.target)));
}

const std::vector<cluster_record>* api::recent() {
    const auto now = std::chrono::steady_clock::now();
    if (!recent_ || now > recent_at_ + recent_for) {
        recent_ = store_.all();
        recent_at_ = now;
    }
    return recent_ ? &*recent_ : nullptr;
}

api_answer api::unreachable() const {
    return refuse(503, "the daemon can't reach its etcd, so nothing can be read or changed now; VMs go on. " +
                           store_.problem());
}

std::optional<cluster_record> api::found(const api_request& request, const std::string& name,
                                         api_answer& wrong) {
    auto record = store_.find(name);
    if (!record) {
        wrong = unreachable();
        return std::nullopt;
    }
    if (!*record) {
        wrong = refuse(404, fmt::format("there is no cluster '{}'", name));
        return std::nullopt;
    }
    if (!request.if_match.empty() && request.if_match != (*record)->revision) {
        wrong = changed_meanwhile(name);
        return std::nullopt;
    }
    return *record;
}

std::optional<cluster_record> api::changeable(const api_request& request, const std::string& name,
                                              api_answer& wrong) {
    auto record = found(request, name, wrong);
    if (record && record->wanted == wish::deleted) {
        wrong = refuse(409, fmt::format("'{}' is being deleted", name));
        return std::nullopt;
    }
    return record;
}

api_answer api::store(cluster_record record, unsigned status) {
    recent_.reset();
    switch (store_.write(record)) {
    case stored::unreachable:
        return unreachable();
    case stored::conflict:
        return changed_meanwhile(record.declared.name);
    case stored::done:
        break;
    }
    work_.kick();
    return {status, describe(record, true), record.revision};
}

api_answer api::store_if_it_fits(cluster_record record, unsigned status) {
    bool reached = true;
    if (record.wanted == wish::running)
        if (const auto why = why_no_room(record, reached); !why.empty())
            return refuse(409, why);
    return reached ? store(std::move(record), status) : unreachable();
}

json api::describe(const cluster_record& record, bool whole) const {
    const auto seen = work_.look(record.declared.name);
    const auto& declared = record.declared;
    const bool current = seen && seen->revision == record.revision;
    json out{{"name", declared.name},
             {"state", summary(record, seen)},
             {"wanted", to_text(record.wanted)},
             {"settled", current && seen->plan.settled},
             {"nodes", declared.nodes},
             {"revision", record.revision}};
    if (!whole)
        return out;
    out["declaration"] = cluster::to_json(declared);
    json nodes = json::array();
    const auto fleet = work_.fleet();
    if (seen)
        for (const auto& [number, report] : seen->plan.nodes)
            nodes.push_back({{"name", cluster::node_name(number)},
                             {"address", lan::dotted(lan::node_address(number))},
                             {"state", report.state},
                             {"text", report.text},
                             {"settled", report.settled},
                             {"needs_restart", report.needs_restart},
                             {"hosts", hosts_of(*fleet, declared.name, number)},
                             {"primary", slot_text(report.primary)},
                             {"standby", slot_text(report.standby)}});
    out["node_states"] = std::move(nodes);
    return out;
}

api_answer api::list(const api_request&, const place&) {
    const auto* records = recent();
    if (!records)
        return unreachable();
    json out = json::array();
    for (const auto& record : *records)
        out.push_back(describe(record, false));
    return {200, {{"clusters", std::move(out)}}};
}

api_answer api::create(const api_request& request, const place&) {
    api_answer wrong;
    auto declared = declared_in(request, wrong);
    if (!declared)
        return wrong;
    const auto there = store_.find(declared->name);
    if (!there)
        return unreachable();
    if (*there) {
        // Who asks again, because an answer was lost, gets what he has.
        if ((*there)->declared == *declared && (*there)->wanted == wish::running)
            return {200, describe(**there, true), (*there)->revision};
        return refuse(409, fmt::format("there is a cluster '{}' already{}", declared->name,
                                       (*there)->wanted == wish::deleted ? ", which is being deleted" : ""));
    }
    return store_if_it_fits({std::move(*declared), wish::running, new_secret(), "0", new_cluster_ca()}, 201);
}

api_answer api::show(const api_request& request, const place& at) {
    const auto* records = recent();
    if (!records)
        return unreachable();
    for (const auto& record : *records)
        if (record.declared.name == at.name)
            return {200, describe(record, true), record.revision};
    // Another host may have made it a moment ago.
    api_answer wrong;
    const auto record = found(request, at.name, wrong);
    return record ? api_answer{200, describe(*record, true), record->revision} : wrong;
}

api_answer api::change(const api_request& request, const place& at) {
    api_answer wrong;
    auto declared = declared_in(request, wrong);
    if (!declared)
        return wrong;
    if (declared->name != at.name)
        return refuse(
            400, fmt::format("the declaration is '{}''s: a cluster can't get another name", declared->name));
    auto record = changeable(request, at.name, wrong);
    if (!record)
        return wrong;
    record->declared = std::move(*declared);
    return store_if_it_fits(std::move(*record), 200);
}

api_answer api::scale(const api_request& request, const place& at) {
    const auto body = json::parse(request.body, nullptr, false);
    std::vector<std::string> errors;
    unsigned nodes = 0;
    if (body.is_discarded()) {
        errors.emplace_back("this is no JSON");
    } else {
        cluster::json_keys keys(body, "a scale request", errors);
        keys.number("nodes", nodes, 1, cluster::most_nodes);
    }
    if (errors.empty() && nodes == 0)
        errors.emplace_back("a scale request needs 'nodes'");
    if (!errors.empty())
        return refuse(400, fmt::format("{}", fmt::join(errors, "; ")));
    api_answer wrong;
    auto record = changeable(request, at.name, wrong);
    if (!record)
        return wrong;
    record->declared.nodes = nodes;
    std::erase_if(record->declared.exceptions, [&](const auto& one) { return one.first > nodes; });
    return store_if_it_fits(std::move(*record), 200);
}

api_answer api::start(const api_request& request, const place& at) {
    api_answer wrong;
    auto record = changeable(request, at.name, wrong);
    if (!record)
        return wrong;
    record->wanted = wish::running;
    return store_if_it_fits(std::move(*record), 200);
}

api_answer api::stop(const api_request& request, const place& at) {
    api_answer wrong;
    auto record = changeable(request, at.name, wrong);
    if (!record)
        return wrong;
    record->wanted = wish::stopped;
    return store(std::move(*record), 200);
}

api_answer api::remove(const api_request& request, const place& at) {
    api_answer wrong;
    auto record = found(request, at.name, wrong);
    if (!record)
        return wrong;
    record->wanted = wish::deleted;
    return store(std::move(*record), 202);
}

api_answer api::agent(const api_request& request, const place& at) {
    api_answer wrong;
    const auto record = found(request, at.name, wrong);
    if (!record)
        return wrong;
    const auto number = cluster::node_number(at.node);
    if (!number || *number > record->declared.nodes)
        return refuse(404, fmt::format("'{}' has no node '{}': it has node1 to node{}", at.name,
                                       cluster::shown(at.node), record->declared.nodes));
    auto socket = lan::exec_socket(folder_.network(at.name), *number);
    std::string error;
    if (peers_ && place_of(work_, at.name, *number))
        socket = peers_->way_to(at.name, *number, error);
    if (!error.empty())
        return refuse(503, error);
    return {200, {{"socket", socket}, {"secret", node_secret(*record, *number)}}};
}

api_answer api::ssh(const api_request& request, const place& at) {
    api_answer wrong;
    const auto record = found(request, at.name, wrong);
    if (!record)
        return wrong;
    if (record->declared.image.empty())
        return refuse(409,
                      fmt::format("the nodes of '{0}' have no ssh server: declare 'image' = \"mpi\", or use "
                                  "`kage cluster exec {0}`",
                                  at.name));
    const auto folder = folder_.cluster(at.name);
    std::error_code error;
    if (record->wanted == wish::deleted || !std::filesystem::exists(folder, error))
        return refuse(409, fmt::format("'{0}' has nothing on this host: ask on one that `kage cluster show "
                                       "{0}` names, or use `kage cluster exec`",
                                       at.name));
    if (const auto why = write_owner_logins(*record, folder, tool_program()); !why.empty())
        return refuse(409, why);
    return {200, {{"config", owner_config(folder)}, {"hostfile", cluster::hostfile(record->declared)}}};
}

cluster::resources offers_of_this_host() {
    struct sysinfo info{};
    ::sysinfo(&info);
    const auto memory_mib = (std::uint64_t{info.totalram} * info.mem_unit) >> 20;
    return {static_cast<std::uint64_t>(::sysconf(_SC_NPROCESSORS_ONLN)) * cpus_for_each, memory_mib * 9 / 10,
            100};
}

} // namespace kagemusha::control::daemon
