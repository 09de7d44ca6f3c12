// SPDX-License-Identifier: GPL-2.0-or-later
//
// See declaration.hpp.
#include "control/cluster/declaration.hpp"

#include "control/cluster/json_keys.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

namespace kagemusha::control::cluster {

using json = nlohmann::json;

namespace {

constexpr std::size_t deepest = 16; // levels of a declaration, which needs three

void read_shape(json_keys& keys, node_shape& shape) {
    keys.number("cpus", shape.cpus, 1, most_cpus);
    keys.mebibytes("memory", shape.memory_mib, least_memory_mib, most_memory_mib);
    keys.flag("protected", shape.is_protected);
}

void read_gpu(const json& from, gpu_shape& gpu, std::vector<std::string>& errors) {
    json_keys keys(from, "[gpu]", errors);
    keys.choice("backend", gpu.backend, {"opencl", "cuda", "null"});
    keys.text("gpu", gpu.gpu, 100);
    keys.text("driver", gpu.driver, 200);
    keys.number("share", gpu.share_percent, 1, 100);
    keys.mebibytes("memory", gpu.memory_mib, 1, most_memory_mib);
    std::string profile;
    keys.text("profile", profile, 4);
    if (profile.empty())
        return;
    const auto parts = profile.substr(std::min<std::size_t>(2, profile.size()));
    const bool digits = !parts.empty() && parts.find_first_not_of("0123456789") == std::string::npos;
    if (!profile.starts_with("1/") || !digits || std::stoul(parts) < 1 || std::stoul(parts) > 16)
        keys.wrong("profile", "a part of the GPU from \"1/1\" to \"1/16\"");
    else if (gpu.share_percent != 0 || gpu.memory_mib != 0)
        keys.complain("[gpu] has 'profile' and 'share' or 'memory': a profile says both, give one of them");
    else
        gpu.profile_parts = static_cast<unsigned>(std::stoul(parts));
}

bool is_ipv4(std::string_view text) {
    unsigned parts = 0;
    for (bool more = true; more; ++parts) {
        const auto dot = text.find('.');
        const auto digits = text.substr(0, dot);
        const bool fits = !digits.empty() && digits.size() <= 3 && (digits[0] != '0' || digits == "0") &&
                          digits.find_first_not_of("0123456789") == digits.npos &&
                          (digits.size() < 3 || digits <= "255");
        if (!fits)
            return false;
        more = dot != text.npos;
        text.remove_prefix(more ? dot + 1 : text.size());
    }
    return parts == 4;
}

void read_network(const json& from, network_shape& network, std::vector<std::string>& errors) {
    json_keys keys(from, "[network]", errors);
    keys.flag("outside", network.outside);
    keys.number("bandwidth-mbit", network.bandwidth_mbit, 1, most_bandwidth_mbit);
    keys.number("latency-ms", network.latency_ms, 0, most_latency_ms);
    keys.number("ssh-port", network.ssh_port, least_ssh_port, most_ssh_port);
    keys.text("ssh-address", network.ssh_address, 15);
    if (!is_ipv4(network.ssh_address))
        keys.wrong("ssh-address",
                   "an IPv4 address of the host, as \"127.0.0.1\", or \"0.0.0.0\": all of them");
    if (network.ssh_port != 0 && !network.outside)
        keys.complain("[network] has 'ssh-port' and 'outside' = false: node1 answers by the way outside");
}

// [[node]]: what one of them has otherwise.
void read_exceptions(const json& from, declaration& out, std::vector<std::string>& errors) {
    if (!from.is_array() || from.size() > most_nodes) {
        errors.push_back(fmt::format("'node' must be a list of at most {} tables: [[node]]", most_nodes));
        return;
    }
    for (const auto& one : from) {
        json_keys keys(one, "[[node]]", errors);
        std::string name;
        keys.text("name", name, longest_name);
        auto shape = out.node;
        read_shape(keys, shape);
        const auto number = node_number(name);
        if (!number || *number > out.nodes)
            keys.complain(
                fmt::format("'{}' is no node of this cluster: 'name' of [[node]] is node1 to node{}",
                            shown(name), out.nodes));
        else if (!out.exceptions.emplace(*number, shape).second)
            keys.complain(fmt::format("{} has two tables [[node]]", name));
    }
}

bool is_user_name(std::string_view name) {
    return is_cluster_name(name) && name != "root" && name != "sshd" && name != "nobody";
}

// "ssh-ed25519 AAAA… comment". Options before the type could forbid what MPI needs, and are refused.
bool is_public_key(std::string_view key) {
    constexpr std::string_view base64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
    const auto space = key.find(' ');
    const auto type = key.substr(0, space);
    if (space == key.npos || key.size() > longest_key ||
        !(type.starts_with("ssh-") || type.starts_with("ecdsa-sha2-") || type.starts_with("sk-")))
        return false;
    const auto rest = key.substr(space + 1);
    const auto data = rest.substr(0, rest.find(' '));
    return data.size() >= 16 && data.find_first_not_of(base64) == data.npos &&
           std::all_of(key.begin(), key.end(), [](unsigned char c) { return c >= 0x20 && c < 0x7f; });
}

// [[users]]
void read_users(const json& from, declaration& out, std::vector<std::string>& errors) {
    if (!from.is_array() || from.size() > most_users) {
        errors.push_back(fmt::format("'users' must be a list of at most {} tables: [[users]]", most_users));
        return;
    }
    for (const auto& one : from) {
        json_keys keys(one, "[[users]]", errors);
        login_user user;
        keys.text("name", user.name, longest_name);
        const auto* list = keys.find("keys");
        const bool fits = list && list->is_array() && !list->empty() && list->size() <= most_keys &&
                          std::all_of(list->begin(), list->end(), [](const json& key) {
                              return key.is_string() && is_public_key(key.get_ref<const std::string&>());
                          });
        if (!is_user_name(user.name))
            keys.complain(fmt::format("'{}' is no name for a user: 1 to {} small letters, digits and '-', a "
                                      "letter first, and not root, sshd or nobody",
                                      shown(user.name), longest_name));
        else if (std::any_of(out.users.begin(), out.users.end(),
                             [&](const login_user& other) { return other.name == user.name; }))
            keys.complain(fmt::format("'{}' has two tables [[users]]", user.name));
        else if (!fits)
            keys.wrong("keys", fmt::format("a list of 1 to {} public keys, each as ssh-keygen writes it: "
                                           "\"ssh-ed25519 AAAA… name\"",
                                           most_keys));
        else {
            user.keys = list->get<std::vector<std::string>>();
            out.users.push_back(std::move(user));
        }
    }
}

std::uint32_t depth_of(const toml::node& node) {
    std::uint32_t deep = 0;
    if (const auto* table = node.as_table())
        for (const auto& [key, value] : *table)
            deep = std::max(deep, depth_of(value));
    if (const auto* array = node.as_array())
        for (const auto& value : *array)
            deep = std::max(deep, depth_of(value));
    return deep + 1;
}

json as_json(const toml::node& node) {
    if (const auto* table = node.as_table()) {
        json out = json::object();
        for (const auto& [key, value] : *table)
            out[std::string(key.str())] = as_json(value);
        return out;
    }
    if (const auto* array = node.as_array()) {
        json out = json::array();
        for (const auto& value : *array)
            out.push_back(as_json(value));
        return out;
    }
    if (const auto text = node.value_exact<std::string>())
        return *text;
    if (const auto number = node.value_exact<std::int64_t>())
        return *number < 0 ? json(*number) : json(static_cast<std::uint64_t>(*number));
    if (const auto number = node.value_exact<double>())
        return *number;
    if (const auto flag = node.value_exact<bool>())
        return *flag;
    return nullptr; // a date: no key has one
}

std::optional<json> toml_as_json(std::string_view text, std::vector<std::string>& errors) {
    try {
        const auto table = toml::parse(text);
        if (depth_of(table) <= deepest)
            return as_json(table);
        errors.emplace_back("the declaration has tables in tables in tables");
    } catch (const toml::parse_error& error) {
        errors.push_back(fmt::format("line {}: {}", error.source().begin.line, error.description()));
    }
    return std::nullopt;
}

} // namespace

bool is_cluster_name(std::string_view name) {
    constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyz";
    return !name.empty() && name.size() <= longest_name && letters.find(name[0]) != letters.npos &&
           name.back() != '-' && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == name.npos;
}

std::optional<unsigned> node_number(std::string_view name) {
    constexpr std::string_view prefix = "node";
    const auto digits = name.substr(std::min(prefix.size(), name.size()));
    if (!name.starts_with(prefix) || digits.empty() || digits.size() > 2 || digits[0] == '0' ||
        digits.find_first_not_of("0123456789") != digits.npos)
        return std::nullopt;
    unsigned number = 0;
    for (const char c : digits)
        number = number * 10 + static_cast<unsigned>(c - '0');
    return number <= most_nodes ? std::optional(number) : std::nullopt;
}

std::string node_name(unsigned number) {
    return fmt::format("node{}", number);
}

std::optional<declaration> parse_json(const json& from, std::vector<std::string>& errors) {
    const auto before = errors.size();
    declaration out;
    {
        json_keys keys(from, "a cluster", errors);
        std::string name;
        keys.text("name", name, 100);
        if (!is_cluster_name(name))
            keys.complain(fmt::format("'{}' is no name for a cluster: 1 to {} small letters, digits and '-', "
                                      "a letter first",
                                      shown(name), longest_name));
        out.name = name;
        keys.number("nodes", out.nodes, 1, most_nodes);
        read_shape(keys, out.node);
        keys.choice("guest", out.guest, {"6.1-cloud", "6.1-amd64", "6.12-cloud", "6.12-amd64"});
        keys.choice("image", out.image, {"", "mpi"});
        keys.choice("accel", out.accel, {"auto", "kvm", "tcg"});
        if (const auto* gpu = keys.find("gpu"))
            read_gpu(*gpu, out.gpu.emplace(), errors);
        if (const auto* network = keys.find("network"))
            read_network(*network, out.network, errors);
        if (const auto* users = keys.find("users"))
            read_users(*users, out, errors);
        if (!out.users.empty() && out.image != "mpi")
            keys.complain("[[users]] log in by ssh, which only 'image' = \"mpi\" has");
        if (out.network.ssh_port != 0 && out.image != "mpi")
            keys.complain("'ssh-port' leads to an ssh server, which only 'image' = \"mpi\" has");
        // 6.1 has FUSE as a module, which the image has not.
        if (out.image == "mpi" && out.guest.starts_with("6.1-"))
            keys.complain("'image' = \"mpi\" needs 'guest' = \"6.12-cloud\" or \"6.12-amd64\"");
        if (const auto* node = keys.find("node"))
            read_exceptions(*node, out, errors);
    }
    if (errors.size() != before)
        return std::nullopt;
    return out;
}

std::optional<declaration> parse_text(std::string_view text, std::vector<std::string>& errors) {
    const auto begin = text.find_first_not_of(" \t\r\n");
    if (begin != text.npos && text[begin] == '{')
        return parse_json_text(text, errors);
    const auto from = toml_as_json(text, errors);
    return from ? parse_json(*from, errors) : std::nullopt;
}

std::optional<declaration> parse_json_text(std::string_view text, std::vector<std::string>& errors) {
    if (text.size() > longest_declaration) {
        errors.push_back(fmt::format("a declaration has at most {} KiB", longest_declaration >> 10));
        return std::nullopt;
    }
    // Whether it nests too deeply is known while it is read, and not when its destructor has no stack left.
    bool too_deep = false;
    const auto from = json::parse(
        text,
        [&](int depth, json::parse_event_t, json&) {
            too_deep = too_deep || depth > static_cast<int>(deepest);
            return !too_deep;
        },
        false);
    if (from.is_discarded() || too_deep) {
        errors.emplace_back("this is no JSON");
        return std::nullopt;
    }
    return parse_json(from, errors);
}

json to_json(const declaration& from) {
    const auto shape = [](const node_shape& s) {
        return json{{"cpus", s.cpus}, {"memory", s.memory_mib}, {"protected", s.is_protected}};
    };
    json out = shape(from.node);
    out.update({{"name", from.name}, {"nodes", from.nodes}, {"guest", from.guest}, {"accel", from.accel}});
    if (!from.image.empty())
        out["image"] = from.image;
    for (const auto& user : from.users)
        out["users"].push_back({{"name", user.name}, {"keys", user.keys}});
    if (from.gpu) {
        const auto& g = *from.gpu;
        json gpu{{"backend", g.backend}, {"gpu", g.gpu}, {"driver", g.driver}};
        if (g.share_percent != 0)
            gpu["share"] = g.share_percent;
        if (g.profile_parts != 0)
            gpu["profile"] = fmt::format("1/{}", g.profile_parts);
        if (g.memory_mib != 0)
            gpu["memory"] = g.memory_mib;
        out["gpu"] = std::move(gpu);
    }
    json network{{"outside", from.network.outside}, {"latency-ms", from.network.latency_ms}};
    if (from.network.bandwidth_mbit != 0)
        network["bandwidth-mbit"] = from.network.bandwidth_mbit;
    if (from.network.ssh_port != 0)
        network.update({{"ssh-port", from.network.ssh_port}, {"ssh-address", from.network.ssh_address}});
    out["network"] = std::move(network);
    if (!from.exceptions.empty()) {
        json nodes = json::array();
        for (const auto& [number, s] : from.exceptions) {
            nodes.push_back(shape(s));
            nodes.back()["name"] = node_name(number);
        }
        out["node"] = std::move(nodes);
    }
    return out;
}

} // namespace kagemusha::control::cluster
