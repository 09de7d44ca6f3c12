// SPDX-License-Identifier: GPL-2.0-or-later
//
// A cluster as its owner declares it: how many nodes, of which size, with which part of a GPU, protected or
// not, and what their network is like. The same keys in TOML (a file) and in JSON (the API); docs/clusters.md
// has all of them. Everything is checked when it is read.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control::cluster {

// Bounds of what one declaration may ask for. Addresses are 10.77.0.(10 + N), so that N fits with room left.
inline constexpr unsigned most_nodes = 64;
inline constexpr unsigned most_cpus = 64;
inline constexpr std::uint64_t least_memory_mib = 128, most_memory_mib = 1 << 20;
inline constexpr std::size_t longest_name = 16; // "NAME.node64" is a VM's name, and in paths of sockets
inline constexpr std::size_t longest_declaration = 64 << 10;
inline constexpr std::size_t most_users = 32, most_keys = 8, longest_key = 1024;
inline constexpr std::uint32_t most_bandwidth_mbit = 100'000, most_latency_ms = 1000;
inline constexpr std::uint32_t least_ssh_port = 1024, most_ssh_port = 65535; // lower ones are the system's

struct node_shape {
    unsigned cpus = 1;
    std::uint64_t memory_mib = 512;
    bool is_protected = false;
    bool operator==(const node_shape&) const = default;
};

struct gpu_shape {
    std::string backend = "opencl";
    std::string gpu, driver;
    unsigned share_percent = 0; // 0: shares with nobody by a rule
    unsigned profile_parts = 0; // "1/4" is 4; not with a share
    std::uint64_t memory_mib = 0;
    bool operator==(const gpu_shape&) const = default;
};

struct network_shape {
    bool outside = true;                   // nodes reach what the host reaches
    std::uint32_t bandwidth_mbit = 0;      // of each node's link, each way; 0: as fast as it goes
    std::uint32_t latency_ms = 0;          // of each node's link, one way
    std::uint32_t ssh_port = 0;            // of the host that node1 runs on, for node1's ssh server; 0: none
    std::string ssh_address = "127.0.0.1"; // IPv4, of that host
    bool operator==(const network_shape&) const = default;
};

struct login_user { // who may log in to nodes by ssh
    std::string name;
    std::vector<std::string> keys; // public ones, as in authorized_keys, without options
    bool operator==(const login_user&) const = default;
};

struct declaration {
    std::string name;
    unsigned nodes = 1;
    node_shape node;                           // what each node is like
    std::map<unsigned, node_shape> exceptions; // by number: what these are like
    std::string guest = "6.12-cloud";          // kernel flavour of our image
    std::string image;                         // "mpi": with ssh, Open MPI and /shared; "": none of it
    std::string accel = "auto";                // kvm, tcg
    std::optional<gpu_shape> gpu;
    network_shape network;
    std::vector<login_user> users; // of the image `mpi`, besides root
    bool operator==(const declaration&) const = default;

    const node_shape& shape(unsigned number) const {
        const auto found = exceptions.find(number);
        return found == exceptions.end() ? node : found->second;
    }
};

// 1 to 16 small letters, digits and '-', a letter first.
bool is_cluster_name(std::string_view name);
// "node1" → 1, from 1 to most_nodes.
std::optional<unsigned> node_number(std::string_view name);
std::string node_name(unsigned number);

// Nothing, and at least one sentence in `errors`.
std::optional<declaration> parse_json(const nlohmann::json& from, std::vector<std::string>& errors);
std::optional<declaration> parse_json_text(std::string_view text, std::vector<std::string>& errors);
// JSON if it begins with '{', else TOML. For a file of whoever runs the tool, and not for what others send:
// toml++ 3.3 meets some malformed keys with assertions.
std::optional<declaration> parse_text(std::string_view text, std::vector<std::string>& errors);

// With every key, so that parse_json() gives the same one again.
nlohmann::json to_json(const declaration& from);

} // namespace kagemusha::control::cluster
