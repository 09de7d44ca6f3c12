// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a node is started from, as texts: the VM's description (docs/vm.md) and the job of its guest. Pure.
#pragma once

#include "control/cluster/declaration.hpp"

#include <string>
#include <vector>

namespace kagemusha::control::cluster {

// No path has a comma, a colon or a quote: the daemon refuses such a folder (daemon/state_folder.hpp).
struct node_places {
    std::string folder;         // of this node; relative paths in the description begin there
    std::string switch_socket;  // of its cluster's network
    std::string agent;          // the program for the guest
    std::string address, mac;   // of its card
    std::string prefix;         // addresses of all nodes: "10.77.0."
    unsigned first_address = 0; // + N
    std::string gateway, name_server;
    std::string standby = {}; // where its standby listens; "": beside it, on this host
    // Of a standby on another host.
    std::string keys = {};              // of this host, for this VM
    std::vector<std::string> etcd = {}; // the arbiter's endpoints
    std::string etcd_keys = {};
};

// The VM's name: "lab.node1".
std::string vm_name(const std::string& cluster, unsigned number);
// The name of one of its two supervisors: "lab.node1.a".
std::string slot_name(const std::string& cluster, unsigned number, std::size_t slot);
// Where the supervisor in this slot listens as a standby.
std::string slot_address(const std::string& folder, std::size_t slot);

std::string vm_toml(const declaration& declared, unsigned number, const node_places& places);
std::string node_job(const declaration& declared, unsigned number, const node_places& places);

// One host's part of placement: a profile is a part of its GPU.
std::uint64_t gpu_percent(const declaration& declared);

} // namespace kagemusha::control::cluster
