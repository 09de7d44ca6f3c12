// SPDX-License-Identifier: GPL-2.0-or-later
//
// See fleet_store.hpp.
#include "control/daemon/fleet/fleet_store.hpp"

#include "control/base/base64.hpp"
#include "control/base/json_text.hpp"

#include <fmt/format.h>

#include <pthread.h>

#include <algorithm>

namespace kagemusha::control::daemon {

using json = nlohmann::json;

namespace {

constexpr std::string_view prefix = "kagemusha/fleet/";
constexpr char behind_prefix[] = "kagemusha/fleet0";
constexpr char leader_key[] = "kagemusha/fleet/leader";
constexpr int format = 1; // of a host's entry and of places
constexpr int page = 64;
constexpr std::size_t longest_answer = 16 << 20; // of a page: each value has at most a quarter of a MiB

json put(const std::string& key, const std::string& value, const std::string& lease) {
    json what{{"key", to_base64(key)}, {"value", to_base64(value)}};
    if (!lease.empty())
        what["lease"] = lease;
    return {{"request_put", std::move(what)}};
}

json is_revision(const char* target, const char* field, const std::string& key, const std::string& value) {
    return {{"key", to_base64(key)}, {"target", target}, {"result", "EQUAL"}, {field, value}};
}

std::uint16_t port(const json& from, const char* key) {
    return static_cast<std::uint16_t>(std::min<std::uint64_t>(number_in(from, key), 65535));
}

} // namespace

std::string places_key(const std::string& cluster) {
    return std::string(prefix) + "places/" + cluster;
}

json to_json(const host_entry& from) {
    return {{"format", format},
            {"release", from.release},
            {"shown", from.shown},
            {"start", from.start},
            {"address", from.address},
            {"port", from.port},
            {"trunk_port", from.trunk_port},
            {"first_port", from.first_port},
            {"cpus", from.offer.offers.cpus},
            {"memory_mib", from.offer.offers.memory_mib},
            {"gpu_percent", from.offer.offers.gpu_percent}};
}

host_entry parse_host(const std::string& name, const std::string& text) {
    host_entry out;
    out.offer.name = name;
    const auto from = json::parse(text, nullptr, false);
    if (!from.is_object()) {
        out.is_understood = false;
        return out;
    }
    out.release = text_in(from, "release");
    out.shown = text_in(from, "shown");
    out.is_understood = from.value("format", json()) == format;
    if (!out.is_understood)
        return out;
    out.start = text_in(from, "start");
    out.address = text_in(from, "address");
    out.port = port(from, "port");
    out.trunk_port = port(from, "trunk_port");
    out.first_port = port(from, "first_port");
    out.offer.offers = {number_in(from, "cpus"), number_in(from, "memory_mib"),
                        number_in(from, "gpu_percent")};
    return out;
}

// ---- the lease

host_lease::host_lease(const etcd_process& etcd, std::uint32_t lease_ms)
    : etcd_(etcd), lease_ms_(lease_ms), thread_([this] { run(); }) {}

host_lease::~host_lease() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

std::string host_lease::id() const {
    const std::lock_guard lock(mutex_);
    return id_;
}

void host_lease::lost(const std::string& id) {
    const std::lock_guard lock(mutex_);
    if (id_ == id)
        id_.clear();
    changed_.notify_all();
}

void host_lease::run() {
    ::pthread_setname_np(::pthread_self(), "lease");
    std::unique_ptr<etcd_client> client;
    std::string endpoint;
    std::unique_lock lock(mutex_);
    while (!stop_) {
        const auto had = id_;
        lock.unlock();
        const auto described = etcd_.described();
        std::string now;
        if (described && (!client || endpoint != described->endpoints[0])) {
            endpoint = described->endpoints[0];
            client = std::make_unique<etcd_client>(*described);
        }
        if (described && had.empty()) {
            const auto granted =
                client->ask("/v3/lease/grant", {{"TTL", std::to_string((lease_ms_ + 999) / 1000)}});
            now = granted ? text_in(*granted, "ID") : std::string();
        } else if (described) {
            const auto kept = client->ask("/v3/lease/keepalive", {{"ID", had}});
            const auto ttl =
                kept && kept->contains("result") ? text_in((*kept)["result"], "TTL") : std::string();
            now = !kept || (!ttl.empty() && ttl != "0") ? had : std::string(); // unknown: it may still count
        }
        lock.lock();
        if (id_ == had)
            id_ = now;
        // After it ran out another one is wanted at once.
        const auto pause =
            id_.empty() ? std::chrono::milliseconds(300) : std::chrono::milliseconds(lease_ms_ / 4);
        changed_.wait_for(lock, pause, [&] { return stop_ || (id_.empty() && !now.empty()); });
    }
}

// ---- everything else

etcd_client::answer fleet_store::ask(const char* path, const json& body) {
    const auto described = etcd_.described();
    if (!described) {
        problem_ = "etcd has not started yet";
        return std::nullopt;
    }
    if (!client_ || endpoint_ != described->endpoints[0]) {
        endpoint_ = described->endpoints[0];
        client_ = std::make_unique<etcd_client>(*described, longest_answer);
    }
    auto answer = client_->ask(path, body);
    if (!answer)
        problem_ = client_->problem();
    return answer;
}

bool fleet_store::take(const std::string& key, const std::string& value, const json& entry,
                       fleet_state& into) {
    const auto rest = std::string_view(key).substr(prefix.size());
    const auto below = [&](std::string_view folder) {
        return rest.starts_with(folder) ? std::string(rest.substr(folder.size())) : std::string();
    };
    if (key == leader_key) {
        into.leader = value;
        into.leader_revision = entry.at("create_revision").get<std::string>();
    } else if (const auto host = below("hosts/"); !host.empty()) {
        into.hosts.emplace(host, parse_host(host, value));
    } else if (const auto name = below("places/"); !name.empty()) {
        const auto from = json::parse(value, nullptr, false);
        auto places = from.is_object() && from.value("format", json()) == format
                          ? cluster::parse_assignment(from.value("nodes", json()))
                          : std::nullopt;
        if (!places)
            return false;
        into.clusters[name] = {std::move(*places), entry.at("mod_revision").get<std::string>()};
    } else if (const auto who = below("seen/"); !who.empty()) {
        const auto slash = who.find('/');
        auto seen = cluster::parse_seen(json::parse(value, nullptr, false));
        if (slash != who.npos && seen) // else of another release: nobody knows what it sees
            into.views[who.substr(slash + 1)].emplace(who.substr(0, slash), std::move(*seen));
    }
    return true;
}

std::optional<fleet_state> fleet_store::read() {
    fleet_state out;
    std::string from(prefix);
    for (;;) {
        const auto answer =
            ask("/v3/kv/range",
                {{"key", to_base64(from)}, {"range_end", to_base64(behind_prefix)}, {"limit", page}});
        if (!answer)
            return std::nullopt;
        try {
            std::string last;
            out.etcd_id = answer->at("header").at("cluster_id").get<std::string>();
            for (const auto& one : answer->value("kvs", json::array())) {
                last = from_base64(one.at("key").get<std::string>());
                if (!take(last, from_base64(one.at("value").get<std::string>()), one, out)) {
                    problem_ = "etcd has places of another release: this daemon leaves everything alone";
                    return std::nullopt;
                }
            }
            if (last.empty() || !answer->value("more", false))
                return out;
            from = last + '\0';
        } catch (const json::exception&) {
            problem_ = "etcd's answer can't be used";
            return std::nullopt;
        }
    }
}

stored fleet_store::put_with_lease(const std::string& key, const std::string& value, const std::string& lease,
                                   json compare) {
    const auto answer = ask(
        "/v3/kv/txn", {{"compare", std::move(compare)}, {"success", json::array({put(key, value, lease)})}});
    if (!answer)
        return stored::unreachable;
    return answer->value("succeeded", json(false)) == json(true) ? stored::done : stored::conflict;
}

stored fleet_store::join(const host_entry& self, const std::string& lease) {
    const auto key = std::string(prefix) + "hosts/" + self.offer.name;
    const auto text = as_json_text(to_json(self));
    auto done =
        put_with_lease(key, text, lease, json::array({is_revision("CREATE", "create_revision", key, "0")}));
    if (done != stored::conflict)
        return done;
    // There is one: ours, of this daemon or of the one before, or another host's.
    const auto answer = ask("/v3/kv/range", {{"key", to_base64(key)}});
    if (!answer)
        return stored::unreachable;
    try {
        const auto kvs = answer->value("kvs", json::array());
        if (kvs.empty())
            return stored::unreachable; // it has just gone: again in a moment
        const auto there = parse_host(self.offer.name, from_base64(kvs.at(0).at("value").get<std::string>()));
        const bool is_ours = there.address == self.address && there.port == self.port;
        if (!is_ours)
            return stored::conflict;
        return put_with_lease(key, text, lease,
                              json::array({is_revision("MOD", "mod_revision", key,
                                                       kvs.at(0).at("mod_revision").get<std::string>())}));
    } catch (const json::exception&) {
        problem_ = "etcd's answer can't be used";
        return stored::unreachable;
    }
}

void fleet_store::stand(const std::string& self, const std::string& lease) {
    put_with_lease(leader_key, self, lease,
                   json::array({is_revision("CREATE", "create_revision", leader_key, "0")}));
}

stored fleet_store::place(const std::string& cluster, const cluster::assignment& places,
                          const fleet_state& state) {
    const auto key = places_key(cluster);
    const auto found = state.clusters.find(cluster);
    return put_with_lease(
        key, as_json_text({{"format", format}, {"nodes", cluster::to_json(places)}}), {},
        json::array({is_revision("CREATE", "create_revision", leader_key, state.leader_revision),
                     is_revision("MOD", "mod_revision", key,
                                 found == state.clusters.end() ? "0" : found->second.revision)}));
}

stored fleet_store::publish(const std::string& self, const std::string& lease, const std::string& cluster,
                            const cluster::cluster_seen& seen) {
    return put_with_lease(std::string(prefix) + "seen/" + self + "/" + cluster,
                          as_json_text(cluster::to_json(seen)), lease, json::array());
}

void fleet_store::retract(const std::string& self, const std::string& cluster) {
    ask("/v3/kv/deleterange", {{"key", to_base64(std::string(prefix) + "seen/" + self + "/" + cluster)}});
}

} // namespace kagemusha::control::daemon
