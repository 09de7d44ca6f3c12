// SPDX-License-Identifier: GPL-2.0-or-later
//
// Assignments and what hosts see, as etcd has them: assignment.hpp. What another daemon wrote is read with its
// bounds checked: it may be of another release.
#include "control/cluster/assignment.hpp"

#include <algorithm>

namespace kagemusha::control::cluster {

using json = nlohmann::json;

namespace {

constexpr std::size_t longest_text = 1000; // of a sentence of a supervisor's

// Of a node's description, which is compared as a whole. (base/json_text.hpp has the like; this folder is pure and does
// not include base.)
std::string whole_text(const json& from, const char* key) {
    const auto found = from.find(key);
    return found != from.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::string text(const json& from, const char* key) {
    return whole_text(from, key).substr(0, longest_text);
}

bool flag(const json& from, const char* key) {
    const auto found = from.find(key);
    return found != from.end() && found->is_boolean() && found->get<bool>();
}

std::uint64_t count(const json& from, const char* key) {
    const auto found = from.find(key);
    return found != from.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

json to_json(const slot_seen& s) {
    json out{{"busy", s.busy},
             {"registered", s.registered},
             {"role", s.role},
             {"state", s.state},
             {"problem", s.problem.substr(0, longest_text)}};
    if (s.role != "primary")
        return out;
    const auto& g = s.gauges;
    out["gauges"] = {{"age", g.checkpoint_age_ms}, {"pause", g.pause_us},      {"epoch", g.epoch_us},
                     {"count", g.checkpoints},     {"takeovers", g.takeovers}, {"paused", g.paused_percent},
                     {"behind", g.gpu_behind_ms},  {"gpu", g.gpu_percent}};
    return out;
}

slot_seen slot_of(const json& from) {
    slot_seen out;
    out.busy = flag(from, "busy");
    out.registered = flag(from, "registered");
    out.role = text(from, "role");
    out.state = text(from, "state");
    out.problem = text(from, "problem");
    const auto gauges = from.find("gauges");
    if (gauges != from.end() && gauges->is_object()) {
        const auto part = [&](const char* key, double otherwise) {
            const auto found = gauges->find(key);
            return found != gauges->end() && found->is_number() ? found->get<double>() : otherwise;
        };
        out.gauges = {count(*gauges, "age"),       count(*gauges, "pause"),
                      count(*gauges, "epoch"),     count(*gauges, "count"),
                      count(*gauges, "takeovers"), part("paused", 0),
                      count(*gauges, "behind"),    part("gpu", slot_gauges::no_gpu_share)};
    }
    return out;
}

} // namespace

json to_json(const resources& from) {
    return {{"cpus", from.cpus}, {"memory_mib", from.memory_mib}, {"gpu_percent", from.gpu_percent}};
}

json to_json(const assignment& from) {
    json out = json::object();
    for (const auto& [number, node] : from) {
        json places = json::array();
        for (const auto& place : node.slot)
            places.push_back(place ? json{{"host", place->host}, {"port", place->port}} : json());
        out[node_name(number)] = std::move(places);
    }
    return out;
}

std::optional<assignment> parse_assignment(const json& from) {
    if (!from.is_object())
        return std::nullopt;
    assignment out;
    for (const auto& [name, places] : from.items()) {
        const auto number = node_number(name);
        if (!number || !places.is_array() || places.size() != slots)
            return std::nullopt;
        auto& node = out[*number];
        for (std::size_t i = 0; i < slots; ++i) {
            const auto& place = places[i];
            if (place.is_null())
                continue;
            if (!place.is_object() || text(place, "host").empty() || count(place, "port") > 65535)
                return std::nullopt;
            node.slot[i] = {text(place, "host"), static_cast<std::uint16_t>(count(place, "port"))};
        }
    }
    return out;
}

json to_json(const cluster_seen& from) {
    json nodes = json::object();
    for (const auto& [number, node] : from.nodes)
        nodes[node_name(number)] = {{"slots", {to_json(node.slot[0]), to_json(node.slot[1])}},
                                    {"files", node.has_files},
                                    {"runs_with", node.runs_with},
                                    {"failure", node.failure.substr(0, longest_text)}};
    return {{"network", from.network},
            {"network_problem", from.network_problem.substr(0, longest_text)},
            {"files", from.has_files},
            {"trunk_port", from.trunk_port},
            {"nodes", std::move(nodes)}};
}

std::optional<cluster_seen> parse_seen(const json& from) {
    const auto nodes = from.is_object() ? from.find("nodes") : from.end();
    if (!from.is_object() || nodes == from.end() || !nodes->is_object())
        return std::nullopt;
    cluster_seen out;
    out.network = flag(from, "network");
    out.network_problem = text(from, "network_problem");
    out.has_files = flag(from, "files");
    out.trunk_port = static_cast<std::uint16_t>(std::min<std::uint64_t>(count(from, "trunk_port"), 65535));
    for (const auto& [name, one] : nodes->items()) {
        const auto number = node_number(name);
        const auto two = one.is_object() ? one.find("slots") : one.end();
        if (!number || !one.is_object() || two == one.end() || !two->is_array() || two->size() != slots ||
            !(*two)[0].is_object() || !(*two)[1].is_object())
            return std::nullopt;
        node_seen node;
        for (std::size_t i = 0; i < slots; ++i)
            node.slot[i] = slot_of((*two)[i]);
        node.has_files = flag(one, "files");
        node.runs_with = whole_text(one, "runs_with");
        node.failure = text(one, "failure");
        out.nodes.emplace(*number, std::move(node));
    }
    return out;
}

} // namespace kagemusha::control::cluster
