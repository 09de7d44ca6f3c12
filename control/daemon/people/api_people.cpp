// SPDX-License-Identifier: GPL-2.0-or-later
//
// The part of the API (api.hpp) that is about people: who may do what, accounts, the audit log; and what pages need
// beside clusters themselves. Logging in is in api_login.cpp.
#include "control/access/secrets.hpp"
#include "control/base/json_text.hpp"
#include "control/base/log_file.hpp"
#include "control/cluster/json_keys.hpp"
#include "control/cluster/node_files.hpp"
#include "control/daemon/api.hpp"
#include "control/daemon/fleet/peers.hpp"
#include "control/daemon/people/request_members.hpp"
#include "control/daemon/people/unlocked.hpp"
#include "control/supervise/control_socket.hpp"
#include "control/vm/vm_registry.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <pwd.h>
#include <unistd.h>

namespace kagemusha::control::daemon {

using access::role;
using json = nlohmann::json;

namespace {

constexpr int answer_ms = 5000; // of a supervisor: a drill answers when the VM runs again
constexpr std::int64_t most_days = 3650;
constexpr std::size_t most_log_lines = 200, longest_log_line = 500;

// By host, how many nodes and standbys it would have.
json placement_json(const cluster::assignment& places) {
    std::map<std::string, std::pair<unsigned, unsigned>> hosts;
    for (const auto& [number, node] : places) {
        if (node.slot[0])
            ++hosts[node.slot[0]->host].first;
        if (node.slot[1])
            ++hosts[node.slot[1]->host].second;
    }
    json out = json::array();
    for (const auto& [name, counts] : hosts)
        out.push_back({{"host", name}, {"vms", counts.first}, {"standbys", counts.second}});
    return out;
}

cluster::resources needs_of(const cluster::declaration& declared, unsigned& standbys) {
    cluster::resources out;
    standbys = 0;
    for (unsigned number = 1; number <= declared.nodes; ++number) {
        const auto& shape = declared.shape(number);
        const unsigned copies = shape.is_protected ? 2 : 1; // a standby's processors are not used until then
        standbys += copies - 1;
        out.cpus += shape.cpus;
        out.memory_mib += shape.memory_mib * copies;
        out.gpu_percent += cluster::gpu_percent(declared) * copies;
    }
    return out;
}

} // namespace

std::optional<request_members> read_members(const std::string& body,
                                            const std::vector<std::string_view>& allowed, api_answer& wrong) {
    request_members out;
    auto from = json::parse(body.empty() ? "{}" : body, nullptr, false);
    if (!from.is_object()) {
        wrong = refuse(400, "this is no JSON object");
        return std::nullopt;
    }
    const std::pair<const char*, std::string request_members::*> texts[] = {
        {"user", &request_members::user},
        {"password", &request_members::password},
        {"code", &request_members::code},
        {"role", &request_members::role}};
    for (auto& [key, value] : from.items()) {
        const auto text = std::ranges::find_if(texts, [&](const auto& one) { return one.first == key; });
        const bool is_allowed = std::ranges::find(allowed, key) != allowed.end();
        if (is_allowed && text != std::end(texts) && value.is_string()) {
            auto& there = value.get_ref<std::string&>();
            out.*(text->second) = there;
            access::forget(there); // it may be a password
        } else if (is_allowed && key == "days" && value.is_number_unsigned() && value > 0 &&
                   value <= most_days) {
            out.days = value.get<std::int64_t>();
        } else {
            wrong = refuse(400, is_allowed ? fmt::format("'{}' can't have this value", key)
                                           : fmt::format("'{}' is no key here", cluster::shown(key)));
            return std::nullopt;
        }
    }
    return out;
}

const std::vector<api::route>& api::table() {
    static const std::vector<route> all{
        {"GET", "/v1/host", role::viewer, &api::get_host},
        {"GET", "/v1/hosts", role::viewer, &api::get_hosts},
        {"GET", "/v1/clusters", role::viewer, &api::list},
        {"POST", "/v1/clusters", role::operates, &api::create},
        {"GET", "/v1/clusters/{name}", role::viewer, &api::show},
        {"PUT", "/v1/clusters/{name}", role::operates, &api::change},
        {"DELETE", "/v1/clusters/{name}", role::operates, &api::remove},
        {"POST", "/v1/clusters/{name}/scale", role::operates, &api::scale},
        {"POST", "/v1/clusters/{name}/start", role::operates, &api::start},
        {"POST", "/v1/clusters/{name}/stop", role::operates, &api::stop},
        {"GET", "/v1/clusters/{name}/ssh", role::admin, &api::ssh, true},
        {"GET", "/v1/clusters/{name}/nodes/{node}/agent", role::admin, &api::agent, true},
        {"GET", "/v1/clusters/{name}/nodes/{node}/console", role::operates, &api::console},
        {"GET", "/v1/clusters/{name}/nodes/{node}/log", role::operates, &api::log},
        {"POST", "/v1/clusters/{name}/nodes/{node}/switchover", role::operates, &api::switch_over},
        {"POST", "/v1/clusters/{name}/nodes/{node}/drill", role::operates, &api::drill},
        {"POST", "/v1/plan", role::viewer, &api::plan},
        {"GET", "/v1/live", role::viewer, &api::live},
        {"GET", "/v1/events", role::viewer, &api::events},
        {"GET", "/v1/audit", role::admin, &api::audit},
        {"POST", "/v1/portal", role::admin, &api::portal, true},
        {"GET", "/v1/session", role::viewer, &api::who_am_i},
        {"POST", "/v1/session", role::nobody, &api::log_in},
        {"DELETE", "/v1/session", role::viewer, &api::log_out},
        {"GET", "/v1/login", role::nobody, &api::ways_to_log_in},
        {"GET", login::oidc_path, role::nobody, &api::begin_oidc},
        {"GET", login::oidc_callback_path, role::nobody, &api::finish_oidc},
        {"GET", "/v1/accounts", role::admin, &api::list_accounts},
        {"PUT", "/v1/users/{account}", role::admin, &api::put_user},
        {"DELETE", "/v1/users/{account}", role::admin, &api::delete_user},
        {"PUT", "/v1/tokens/{account}", role::admin, &api::put_token},
        {"DELETE", "/v1/tokens/{account}", role::admin, &api::delete_token},
    };
    return all;
}

access::caller api::local_caller() {
    const auto* const entry = ::getpwuid(::getuid());
    return {entry ? entry->pw_name : fmt::format("{}", ::getuid()), role::admin, "this machine", true, {}};
}

access::admission api::admit(const access::knock& at) {
    const std::lock_guard lock(mutex_);
    return people_.admit(at);
}

bool api::is_alive(const access::caller& who) {
    const std::lock_guard lock(mutex_);
    return people_.is_alive(who);
}

// ---- accounts

api_answer api::change_accounts(const std::function<bool(access::accounts&, std::string&)>& edit,
                                json answer) {
    std::string why;
    switch (people_.accounts.change(edit, why)) {
    case stored::unreachable:
        return unreachable();
    case stored::conflict:
        return refuse(409, "the accounts were changed by somebody else meanwhile: look at them again");
    case stored::done:
        break;
    }
    return why.empty() ? api_answer{200, std::move(answer)} : refuse(400, why);
}

api_answer api::list_accounts(const api_request&, const place&) {
    const auto& known = people_.accounts.known();
    json users = json::array(), tokens = json::array();
    for (const auto& [name, one] : known.users)
        users.push_back({{"name", name}, {"role", to_text(one.may)}});
    for (const auto& [name, one] : known.tokens)
        tokens.push_back({{"name", name}, {"role", to_text(one.may)}, {"expires_at_s", one.expires_at_s}});
    return {200, {{"users", users}, {"tokens", tokens}}};
}

api_answer api::put_user(const api_request& request, const place& at) {
    api_answer wrong;
    const auto got = read_members(request.body, {"password", "role"}, wrong);
    if (!got)
        return wrong;
    const auto may = access::role_of(got->role);
    if (!got->role.empty() && !may)
        return refuse(400, "a role is viewer, operator or admin");
    if (!access::is_account_name(at.account))
        return refuse(400,
                      "a user's name has 1 to 32 small letters, digits, '.', '_' and '-', a letter first");
    if (!got->password.empty() &&
        (got->password.size() < access::shortest_password || got->password.size() > access::longest_password))
        return refuse(400, fmt::format("a password has {} to {} bytes", access::shortest_password,
                                       access::longest_password));
    const auto edit = [&](access::accounts& all, std::string& why) {
        const bool is_new = !all.users.contains(at.account);
        if (is_new && (got->password.empty() || !may))
            why = "a new user needs a password and a role";
        else if (is_new && all.users.size() >= access::most_accounts)
            why = fmt::format("there are {} users already, and there can't be more", access::most_accounts);
        if (!why.empty())
            return false;
        auto& one = all.users[at.account];
        if (may)
            one.may = *may;
        if (!got->password.empty())
            one.password = access::hash_password(got->password, new_secret().substr(0, access::salt_bytes));
        return true;
    };
    auto out = change_accounts(edit, {{"name", at.account}});
    if (out.status == 200)
        people_.sessions.end_all_of(at.account); // with a role or a password that counts no more
    return out;
}

api_answer api::delete_user(const api_request&, const place& at) {
    auto out = change_accounts(
        [&](access::accounts& all, std::string& why) {
            if (all.users.erase(at.account) == 0)
                why = fmt::format("there is no user '{}'", cluster::shown(at.account));
            return why.empty();
        },
        {{"done", true}});
    if (out.status == 200)
        people_.sessions.end_all_of(at.account);
    return out;
}

api_answer api::put_token(const api_request& request, const place& at) {
    api_answer wrong;
    const auto got = read_members(request.body, {"role", "days"}, wrong);
    if (!got)
        return wrong;
    const auto may = access::role_of(got->role);
    if (!may)
        return refuse(400, "a role is viewer, operator or admin");
    if (!access::is_account_name(at.account))
        return refuse(400,
                      "a token's name has 1 to 32 small letters, digits, '.', '_' and '-', a letter first");
    const auto secret = "kage_" + new_secret();
    const auto expires_at_s = seconds_now() + got->days * 86400;
    return change_accounts(
        [&](access::accounts& all, std::string& why) {
            if (all.tokens.contains(at.account))
                why = fmt::format("there is a token '{}' already: delete it first", at.account);
            else if (all.tokens.size() >= access::most_accounts)
                why = fmt::format("there are {} tokens already, and there can't be more",
                                  access::most_accounts);
            else
                all.tokens[at.account] = {*may, access::digest_of(secret), expires_at_s};
            return why.empty();
        },
        {{"name", at.account}, {"token", secret}, {"expires_at_s", expires_at_s}});
}

api_answer api::delete_token(const api_request&, const place& at) {
    return change_accounts(
        [&](access::accounts& all, std::string& why) {
            if (all.tokens.erase(at.account) == 0)
                why = fmt::format("there is no token '{}'", cluster::shown(at.account));
            return why.empty();
        },
        {{"done", true}});
}

// ---- what pages need

api_answer api::audit(const api_request&, const place&) {
    return {200, {{"entries", people_.audit.last()}, {"problem", people_.audit.problem()}}};
}

api_answer api::events(const api_request&, const place&) {
    return {200, {{"events", events_.last()}}};
}

api_answer api::live(const api_request& request, const place&) {
    return request.websocket ? api_answer{200, json::object()}
                             : refuse(426, "this is a WebSocket: open it as one");
}

api_answer api::console(const api_request& request, const place& at) {
    if (!request.websocket)
        return refuse(426, "this is a WebSocket: open it as one");
    if (const auto node = seen_node(at); node && !node->report.primary && !node->report.standby)
        return refuse(409, fmt::format("{} has no console: it is {}", at.node, node->report.state));
    return agent(request, at);
}

// Where it is, and a login for whoever may ask: the daemon's own user.
api_answer api::portal(const api_request& request, const place&) {
    std::string error;
    const auto wanted = json::parse(request.body.empty() ? "{}" : request.body, nullptr, false);
    if (!wanted.is_object())
        return refuse(400, "this is no JSON object");
    json opened;
    if (open_portal_) {
        // A server that it ends waits for its requests, and these wait for us.
        const unlocked meanwhile(mutex_);
        opened = open_portal_(wanted, error);
    }
    if (!error.empty())
        return refuse(409, error);
    opened["code"] = people_.new_code(request.who.name);
    return {200, std::move(opened)};
}

// What a declaration would do, before it is sent to be done.
api_answer api::plan(const api_request& request, const place&) {
    api_answer wrong;
    const auto declared = declared_in(request, wrong);
    if (!declared)
        return wrong;
    const auto there = store_.find(declared->name);
    if (!there)
        return unreachable();
    unsigned standbys = 0, standbys_before = 0;
    const auto needs = needs_of(*declared, standbys);
    json restarts = json::array();
    const bool is_new = !*there;
    unsigned nodes_before = 0;
    if (!is_new) {
        nodes_before = (*there)->declared.nodes;
        needs_of((*there)->declared, standbys_before);
        for (unsigned number = 1; number <= std::min(nodes_before, declared->nodes); ++number)
            if (cluster::node_description((*there)->declared, number) !=
                cluster::node_description(*declared, number))
                restarts.push_back(cluster::node_name(number));
    }
    free_and_placed left;
    bool reached = true;
    const auto why = why_no_room(
        {*declared, cluster::wish::running, {}, is_new ? "0" : (*there)->revision, {}}, reached, &left);
    if (!reached)
        return unreachable();
    return {200,
            {{"fits", why.empty()},
             {"why", why},
             {"is_new", is_new},
             {"nodes", declared->nodes},
             {"nodes_before", nodes_before},
             {"standbys", standbys},
             {"standbys_before", standbys_before},
             {"needs", to_json(needs)},
             {"free_afterwards", to_json(left.free)},
             {"placement", placement_json(left.places)},
             {"restarts", std::move(restarts)},
             {"revision", is_new ? "" : (*there)->revision}}};
}

std::optional<api::named_node> api::seen_node(const place& at) const {
    const auto number = cluster::node_number(at.node);
    const auto seen = work_.look(at.name);
    if (!number || !seen)
        return std::nullopt;
    const auto node = seen->plan.nodes.find(*number);
    if (node == seen->plan.nodes.end())
        return std::nullopt;
    return named_node{*number, node->second};
}

std::optional<api::named_node> api::declared_node(const api_request& request, const place& at,
                                                  api_answer& wrong) {
    const auto record = found(request, at.name, wrong);
    if (!record)
        return std::nullopt;
    auto node = seen_node(at);
    if (node && node->number <= record->declared.nodes)
        return node;
    wrong = refuse(404, fmt::format("'{}' has no node '{}'", at.name, cluster::shown(at.node)));
    return std::nullopt;
}

// The answer of the host where the node's VM runs; nothing: that is this one.
std::optional<api_answer> api::answer_of_its_host(const api_request& request, const place& at,
                                                  unsigned number) {
    const auto other = place_of(work_, at.name, number);
    if (!other || !peers_)
        return std::nullopt;
    if (request.is_of_a_peer)
        return refuse(409, fmt::format("{} has just moved to {}: ask again", at.node, other->name));
    return pass_on(request, *other);
}

// The supervisor that runs a node's VM now.
api_answer api::ask_primary(const api_request& request, const place& at, const char* command) {
    api_answer wrong;
    const auto node = declared_node(request, at, wrong);
    if (!node)
        return wrong;
    const auto& has = node->report;
    if (!has.primary)
        return refuse(409, fmt::format("{} does not run: it is {}", at.node, has.state));
    if (has.state != "protected")
        return refuse(409, fmt::format("{} is {}, so nobody could go on with it{}{}", at.node, has.state,
                                       has.text.empty() ? "" : ": ", has.text));
    if (auto elsewhere = answer_of_its_host(request, at, node->number))
        return *elsewhere;
    const auto name = cluster::slot_name(at.name, node->number, *has.primary);
    std::string error;
    const auto running = running_vms(error);
    const auto vm = std::ranges::find_if(running, [&](const auto& one) { return one.name == name; });
    if (vm == running.end() || vm->control_socket.empty())
        return refuse(409, fmt::format("{} has just ended", name));
    const auto said = ask_supervisor(vm->control_socket, {{"command", command}}, error, answer_ms);
    if (!said)
        return refuse(409, fmt::format("{}: {}", at.node, error));
    events_.add(at.name, fmt::format("{} of {} asked for by {}", command, at.node, request.who.name));
    work_.kick();
    return {202, *said};
}

api_answer api::switch_over(const api_request& request, const place& at) {
    return ask_primary(request, at, "switchover");
}

api_answer api::drill(const api_request& request, const place& at) {
    return ask_primary(request, at, "drill");
}

// Of a start that failed it says why, so it is there without a VM, too.
api_answer api::log(const api_request& request, const place& at) {
    api_answer wrong;
    const auto node = declared_node(request, at, wrong);
    if (!node)
        return wrong;
    if (auto elsewhere = answer_of_its_host(request, at, node->number))
        return *elsewhere;
    const auto slot = cluster::slot_letter(node->report.primary.value_or(0));
    const auto file = fmt::format("{}/{}.log", folder_.node(at.name, node->number), slot);
    std::error_code failed;
    if (!std::filesystem::exists(file, failed))
        return refuse(409, fmt::format("{} runs nowhere, and this host has not started it", at.node));
    auto lines = last_lines(file, most_log_lines);
    for (auto& line : lines)
        line.resize(std::min(line.size(), longest_log_line));
    return {200, {{"slot", std::string(1, slot)}, {"lines", std::move(lines)}}};
}

} // namespace kagemusha::control::daemon
