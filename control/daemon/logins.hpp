// SPDX-License-Identifier: GPL-2.0-or-later
//
// The ssh keys of a cluster of the image `mpi`: of its nodes, of their users, and of the cluster's owner on this
// host. All are made of the cluster's secret (control/keys/ssh_keys.hpp).
#pragma once

#include "control/daemon/cluster_store.hpp"

#include <string>

namespace kagemusha::control::daemon {

// What a node's payload has of it, into FOLDER/ssh. "" or a sentence.
std::string write_node_logins(const cluster_record& record, unsigned number, const std::string& folder);

// FOLDER/ssh/config, with which `ssh -F` reaches all nodes through `TOOL cluster exec`, and what it names. "" or a
// sentence.
std::string write_owner_logins(const cluster_record& record, const std::string& folder,
                               const std::string& tool);
std::string owner_config(const std::string& folder);

} // namespace kagemusha::control::daemon
