// SPDX-License-Identifier: GPL-2.0-or-later
//
// The process that is a cluster's private network: `kagemusha --cluster-network FOLDER CONFIGURATION`. QEMUs
// connect to FOLDER/switch/socket (-netdev stream); FOLDER/exec/nodeN reaches the agent of node N;
// `ssh-port` of this host, while node1 runs here, reaches node1's ssh server; FOLDER/control is its own socket
// (supervise/control_socket.hpp):
//
//   {"command": "status"}                           → {"configuration": "…", "ports": 2, "problem": "…", …}
//   {"command": "configure", "configuration": "…"}  → {"done": true}
//   {"command": "connect", "trunks": {…}}           → {"done": true}: links to other hosts (trunks.hpp)
//   {"command": "stop"}
//
// It is no child that its daemon's death would end: VMs go on talking to each other. It ends when it is told,
// and finds at its start whether another one has this folder: FOLDER/lock.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace kagemusha::control::lan {

inline constexpr char lan_word[] = "--cluster-network";

struct configuration {
    std::string name; // of the cluster
    unsigned nodes = 0;
    bool outside = true;
    std::uint32_t bandwidth_mbit = 0, latency_ms = 0;
    std::string ssh_address; // of this host
    std::uint16_t ssh_port = 0;
};
// Of cluster::network_description(). Nothing: it is none.
std::optional<configuration> parse_configuration(const std::string& text);

std::string switch_socket(const std::string& folder);
std::string exec_socket(const std::string& folder, unsigned node);
std::string control_path(const std::string& folder);

[[noreturn]] void lan_main(const char* folder, const char* configuration);

} // namespace kagemusha::control::lan
