// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a node of the image `mpi` is told at its start, as files of its payload: who may log in, which keys other
// nodes have, where MPI starts processes, and /shared. Pure; the daemon makes the keys.
#pragma once

#include "control/cluster/declaration.hpp"

#include <map>
#include <string>
#include <vector>

namespace kagemusha::control::cluster {

struct login_key {
    std::string public_key, private_key; // a line; a file
};

struct node_logins {
    std::string host_key;                   // private; of this node
    std::vector<std::string> host_public;   // of node1, node2, … up to most_nodes
    std::map<std::string, login_key> users; // root, and all whom the declaration names
};

// Names in a folder, with what is in them. `setup` is the script that puts them where they belong.
std::map<std::string, std::string> login_files(const declaration& declared, const node_logins& logins,
                                               const std::string& address_prefix, unsigned first_address);

// "node1,10.77.0.11 ssh-ed25519 …" for each node.
std::string known_hosts(const std::vector<std::string>& host_public, const std::string& address_prefix,
                        unsigned first_address);

// "node1 slots=2" for each node: as Open MPI reads it.
std::string hostfile(const declaration& declared);

} // namespace kagemusha::control::cluster
