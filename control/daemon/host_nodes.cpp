// SPDX-License-Identifier: GPL-2.0-or-later
//
// See host_nodes.hpp.
#include "control/daemon/host_nodes.hpp"

#include "control/access/secrets.hpp"
#include "control/base/assets.hpp"
#include "control/base/installation.hpp"
#include "control/base/json_text.hpp"
#include "control/base/log_file.hpp"
#include "control/base/whole_file.hpp"
#include "control/cluster/node_files.hpp"
#include "control/daemon/logins.hpp"
#include "control/lan/addresses.hpp"
#include "control/lan/lan.hpp"
#include "control/lan/trunks.hpp"
#include "control/share/granted_share.hpp"
#include "control/supervise/control_socket.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <sys/stat.h>

namespace kagemusha::control::daemon {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using cluster::step_kind;
using json = nlohmann::json;

namespace {

constexpr auto between_shares = std::chrono::seconds(1);
constexpr int answer_ms = 2000;     // a supervisor answers at once, or stands still
constexpr auto longest_pause = 60s; // between two starts of a node that ends again and again
constexpr auto network_pause = 2s;  // between two starts of a network that ends again and again
constexpr auto protect_pause = 15s; // a standby that was named has so long to become one
constexpr auto long_enough = 60s;   // who ran so long is no failed start

// The last line that a person would read: what is wrong, without our program's name before it.
std::string last_words(const std::string& log) {
    for (const auto& lines = last_lines(log, 1); const auto& line : lines)
        return line.starts_with("kage: ") ? line.substr(6) : line;
    return {};
}

// What supervisors that were killed, or lost their power, have left there: sockets, what QEMU might see, and their
// turns to take over.
std::vector<std::string> left_in_runtime_directory(const std::string& cluster, unsigned number) {
    std::vector<std::string> out;
    std::string why;
    const auto directory = runtime_directory(why);
    if (directory.empty())
        return out;
    for (std::size_t slot = 0; slot < cluster::slots; ++slot) {
        const auto name = cluster::slot_name(cluster, number, slot);
        out.push_back(directory + "/takeovers/" + name);
        std::error_code error;
        for (const auto& entry : fs::directory_iterator(directory, error))
            if (entry.path().filename().string().starts_with(name + "."))
                out.push_back(entry.path());
    }
    return out;
}

} // namespace

std::string node_secret(const cluster_record& record, unsigned number) {
    return access::digest_of(record.secret + "/" + cluster::vm_name(record.declared.name, number));
}

// What ended since: a start that failed says why in its log.
void host_nodes::reap() {
    for (auto one = children_.begin(); one != children_.end();) {
        const auto ended = one->second.process.wait_for(std::chrono::milliseconds(0));
        if (!ended) {
            ++one;
            continue;
        }
        if (*ended != 0)
            attempts_[one->second.of].failure = fmt::format(
                "its {} ended with {}: {} ({})", one->second.of == one->first ? "process" : "supervisor",
                how_it_ended(*ended), last_words(one->second.log), one->second.log);
        one = children_.erase(one);
    }
}

std::string host_nodes::look() {
    std::string error;
    running_ = running_vms(error);
    reap();
    look_at_shares();
    return error;
}

void host_nodes::look_at_shares() {
    const auto began = clock::now();
    if (began < look_at_shares_)
        return;
    auto now = read_shared_gpus(false);
    set_shared_rates(now, shares_);
    shares_ = std::move(now);
    // An arbiter that stands still is waited for; nodes come first.
    look_at_shares_ = clock::now() + std::max<clock::duration>(between_shares, 10 * (clock::now() - began));
}

double host_nodes::gpu_percent_of(const std::string& slot) const {
    const auto shown = name_in_place(slot, "");
    for (const auto& gpu : shares_)
        for (const auto& one : gpu.vms)
            if (shown == one.row.vm)
                return 100 * one.got;
    return cluster::slot_gauges::no_gpu_share;
}

const registered_vm* host_nodes::running(const std::string& name) const {
    const auto found = std::find_if(running_.begin(), running_.end(),
                                    [&](const registered_vm& vm) { return vm.name == name; });
    return found == running_.end() ? nullptr : &*found;
}

cluster::slot_seen host_nodes::observe_slot(const std::string& name) {
    cluster::slot_seen out;
    const auto* vm = running(name);
    if (!vm) {
        out.busy = children_.contains(name);
        return out;
    }
    out.registered = true;
    std::string error;
    const auto status = vm->control_socket.empty()
                            ? std::nullopt
                            : ask_supervisor(vm->control_socket, {{"command", "status"}}, error, answer_ms);
    if (!status)
        return out;
    out.role = text_in(*status, "role");
    out.state = text_in(*status, "state");
    for (const char* key : {"waiting_for", "degraded", "standby_problem", "warning"})
        if (out.problem.empty())
            out.problem = text_in(*status, key);
    const auto paused = status->find("paused_percent");
    out.gauges = {number_in(*status, "checkpoint_age_ms"),
                  number_in(*status, "pause_us"),
                  number_in(*status, "epoch_us"),
                  number_in(*status, "checkpoints"),
                  number_in(*status, "takeovers"),
                  paused != status->end() && paused->is_number() ? paused->get<double>() : 0,
                  number_in(*status, "gpu_behind_ms"),
                  gpu_percent_of(name)};
    return out;
}

cluster::cluster_seen host_nodes::observe(const cluster_record& record) {
    const auto& name = record.declared.name;
    cluster::cluster_seen out;
    std::error_code error;
    out.has_files = fs::exists(folder_.cluster(name), error);
    std::string why;
    if (const auto status = fs::exists(lan::control_path(folder_.network(name)), error)
                                ? ask_supervisor(lan::control_path(folder_.network(name)),
                                                 {{"command", "status"}}, why, answer_ms)
                                : std::nullopt) {
        out.network = true;
        out.network_has = text_in(*status, "configuration");
        out.network_problem = text_in(*status, "problem");
        out.trunks = status->value("trunks", json()).dump();
        const auto port = status->value("trunk_port", json());
        out.trunk_port = port.is_number_unsigned() ? port.get<std::uint16_t>() : 0;
    }
    const auto now = clock::now();
    for (unsigned number = 1; number <= cluster::most_nodes; ++number) {
        const auto folder = folder_.node(name, number);
        const auto vm = cluster::vm_name(name, number);
        cluster::node_seen node;
        node.has_files = fs::exists(folder, error);
        for (std::size_t slot = 0; slot < cluster::slots; ++slot)
            node.slot[slot] = observe_slot(cluster::slot_name(name, number, slot));
        const bool there = node.slot[0].is_there() || node.slot[1].is_there();
        if (!node.has_files && !there) {
            if (number > record.declared.nodes)
                attempts_.erase(vm);
            if (!attempts_.contains(vm))
                continue;
        }
        if (there)
            node.runs_with = read_whole_file(folder + "/started").value_or("");
        auto& tried = attempts_[vm];
        if (there && tried.count > 0 && now > tried.last + long_enough) {
            tried.count = 0;
            tried.failure.clear();
        }
        const auto pause =
            tried.count == 0
                ? 0s
                : std::min<clock::duration>(1s * (1u << std::min(tried.count, 6u)), longest_pause);
        node.may_start = tried.count == 0 || now > tried.last + pause;
        node.may_protect = now > tried.protect + protect_pause;
        node.failure = tried.failure;
        out.nodes.emplace(number, std::move(node));
    }
    return out;
}

std::vector<std::string> host_nodes::with_files() const {
    std::vector<std::string> out;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder_.clusters(), error))
        if (const auto name = entry.path().filename().string(); cluster::is_cluster_name(name))
            out.push_back(name);
    return out;
}

std::string host_nodes::perform(const cluster::step& step, const cluster_record& record,
                                const neighbours& around) {
    const auto& name = record.declared.name;
    std::string error;
    switch (step.kind) {
    case step_kind::start_network:
        return start_network(record);
    case step_kind::configure_network:
        ask_supervisor(
            lan::control_path(folder_.network(name)),
            {{"command", "configure"}, {"configuration", cluster::network_description(record.declared)}},
            error, answer_ms);
        return error;
    case step_kind::stop_network:
        ask_supervisor(lan::control_path(folder_.network(name)), {{"command", "stop"}}, error, answer_ms);
        return error;
    case step_kind::start_primary:
        return start(step, record, false, around);
    case step_kind::start_standby:
        return start(step, record, true, around);
    case step_kind::protect:
        return protect(step, record, around);
    case step_kind::stop_slot:
        return stop(step, record);
    case step_kind::remove_node:
        return remove_node(record, step.node);
    case step_kind::remove_cluster: {
        std::error_code failed;
        fs::remove_all(folder_.cluster(name), failed);
        attempts_.erase(folder_.network(name));
        for (unsigned number = 1; number <= cluster::most_nodes; ++number)
            attempts_.erase(cluster::vm_name(name, number));
        return failed ? fmt::format("cannot remove {}: {}", folder_.cluster(name), failed.message())
                      : std::string();
    }
    }
    return {};
}

std::string host_nodes::launch(const std::string& name, const std::string& of,
                               const std::vector<std::string>& command, const std::string& log) {
    std::string error;
    auto child = start_detached(command, log, error);
    if (!child)
        return error;
    children_.insert_or_assign(name, started{std::move(*child), log, of});
    return {};
}

std::string host_nodes::start_network(const cluster_record& record) {
    const auto folder = folder_.network(record.declared.name);
    auto& tried = attempts_[folder];
    const auto now = clock::now();
    if (children_.contains(folder) || now < tried.last + network_pause)
        return tried.failure; // it has not answered yet, or failed a moment ago
    tried.last = now;
    tried.failure.clear();
    std::error_code error;
    fs::create_directories(folder, error);
    ::chmod(folder.c_str(), S_IRWXU);
    return launch(folder, folder,
                  {tool_, lan::lan_word, folder, cluster::network_description(record.declared)},
                  folder + "/log");
}

// Where the supervisor in this slot listens as a standby. "": its host is not known.
std::string host_nodes::slot_address(const cluster_record& record, unsigned number, std::size_t slot,
                                     const neighbours& around) const {
    if (!fleet_)
        return cluster::slot_address(folder_.node(record.declared.name, number), slot);
    const auto node = around.places.find(number);
    if (node == around.places.end())
        return {};
    // One that has no place yet gets it later: until then nobody listens where it is said to be.
    const auto& place = node->second.slot[slot] ? node->second.slot[slot] : node->second.slot[1 - slot];
    if (!place)
        return {};
    if (place->host == fleet_->name)
        return fleet_->at(place->port);
    const auto host = around.hosts.find(place->host);
    return host == around.hosts.end() ? std::string() : host_and_port(host->second.address, place->port);
}

std::string host_nodes::connect(const cluster_record& record, const cluster::cluster_seen& own,
                                const std::map<std::string, std::uint16_t>& ports, const neighbours& around) {
    const auto& name = record.declared.name;
    if (!fleet_ || !own.network)
        return {};
    if (auto why = make_cluster_keys(folder_.keys_of(name), record.ca, fleet_->name, {}); !why.empty())
        return why;
    lan::trunk_configuration wanted{
        fleet_->name, fleet_->address, folder_.keys_of(name) + "/" + fleet_->name, {}};
    for (const auto& [host, port] : ports)
        if (const auto found = around.hosts.find(host); found != around.hosts.end() && host != fleet_->name)
            wanted.peers.push_back({host, found->second.address, port});
    const auto text = lan::to_json(wanted);
    std::string error;
    if (text.dump() != own.trunks)
        ask_supervisor(lan::control_path(folder_.network(name)), {{"command", "connect"}, {"trunks", text}},
                       error, answer_ms);
    return error;
}

std::string host_nodes::write_files(const cluster_record& record, unsigned number,
                                    const std::string& standby) {
    const auto& name = record.declared.name;
    const auto folder = folder_.node(name, number);
    const auto agent = find_built("kagemusha-node-agent");
    if (agent.empty())
        return not_there("kagemusha-node-agent");
    cluster::node_places places;
    places.folder = folder;
    places.switch_socket = lan::switch_socket(folder_.network(name));
    places.agent = agent;
    places.address = lan::dotted(lan::node_address(number));
    places.mac = lan::node_mac(name, number);
    places.prefix = lan::node_prefix();
    places.first_address = lan::first_node;
    places.gateway = lan::dotted(lan::gateway_address);
    places.name_server = lan::dotted(lan::name_server_address);
    if (fleet_ && record.declared.shape(number).is_protected) {
        const auto vm = cluster::vm_name(name, number);
        const auto keys = folder_.keys_of(name);
        if (auto why = make_cluster_keys(keys, record.ca, fleet_->name, vm); !why.empty())
            return why;
        places.standby = standby;
        places.keys = keys + "/" + fleet_->name;
        places.etcd = fleet_->endpoints;
        places.etcd_keys = fleet_->tls;
    }
    std::error_code error;
    fs::create_directories(folder, error);
    if (error)
        return fmt::format("cannot make {}: {}", folder, error.message());
    const std::pair<const char*, std::string> files[] = {
        {"/vm.toml", cluster::vm_toml(record.declared, number, places)},
        {"/job.sh", cluster::node_job(record.declared, number, places)},
        {"/secret", node_secret(record, number) + "\n"},
        {"/started", cluster::node_description(record.declared, number)}};
    for (const auto& [file, text] : files)
        if (auto why = write_whole_file(folder + file, text); !why.empty())
            return why;
    return record.declared.image.empty() ? std::string() : write_node_logins(record, number, folder);
}

std::string host_nodes::start(const cluster::step& step, const cluster_record& record, bool standby,
                              const neighbours& around) {
    const auto& name = record.declared.name;
    const auto folder = folder_.node(name, step.node);
    auto& tried = attempts_[cluster::vm_name(name, step.node)];
    ++tried.count;
    tried.last = clock::now();
    const auto slot = cluster::slot_name(name, step.node, step.slot);
    const auto own = slot_address(record, step.node, step.slot, around);
    const auto other = slot_address(record, step.node, 1 - step.slot, around);
    std::vector<std::string> command{
        tool_, standby ? "standby" : "run", folder + "/vm.toml", "--name", slot, "--json"};
    // What runs beside it here was started from the files that are there.
    const bool has_files = standby && running(cluster::slot_name(name, step.node, 1 - step.slot));
    const auto& listens = standby ? own : other;
    if (const auto why = listens.empty() ? fmt::format("the host of {}'s other slot is not known now",
                                                       cluster::node_name(step.node))
                         : has_files     ? std::string()
                                         : write_files(record, step.node, listens);
        !why.empty()) {
        tried.failure = why;
        return why;
    }
    if (standby) {
        command.insert(command.end(), {"--listen", own});
    } else {
        // Nobody runs in either slot, so what the arbiter's record says of a standby is over.
        command.emplace_back("--force-new");
        if (record.declared.shape(step.node).is_protected)
            command.insert(command.end(), {"--standby", other});
    }
    const auto log = fmt::format("{}/{}.log", folder, cluster::slot_letter(step.slot));
    tried.failure = launch(slot, cluster::vm_name(name, step.node), command, log);
    return tried.failure;
}

std::string host_nodes::protect(const cluster::step& step, const cluster_record& record,
                                const neighbours& around) {
    const auto& name = record.declared.name;
    const auto* primary = running(cluster::slot_name(name, step.node, 1 - step.slot));
    if (!primary)
        return {};
    attempts_[cluster::vm_name(name, step.node)].protect = clock::now();
    std::string error;
    ask_supervisor(primary->control_socket,
                   {{"command", "protect"}, {"standby", slot_address(record, step.node, step.slot, around)}},
                   error, answer_ms);
    return error;
}

std::string host_nodes::stop(const cluster::step& step, const cluster_record& record) {
    const auto* vm = running(cluster::slot_name(record.declared.name, step.node, step.slot));
    std::string error;
    if (vm)
        ask_supervisor(vm->control_socket, {{"command", "stop"}}, error, answer_ms);
    return error;
}

std::string host_nodes::remove_node(const cluster_record& record, unsigned number) {
    const auto& name = record.declared.name;
    std::error_code error;
    for (const auto& path : left_in_runtime_directory(name, number))
        fs::remove_all(path, error);
    fs::remove_all(folder_.node(name, number), error);
    if (fleet_)
        fs::remove_all(
            fmt::format("{}/{}/vm/{}", folder_.keys_of(name), fleet_->name, cluster::vm_name(name, number)),
            error);
    attempts_.erase(cluster::vm_name(name, number));
    return error ? fmt::format("cannot remove {}: {}", folder_.node(name, number), error.message())
                 : std::string();
}

} // namespace kagemusha::control::daemon
