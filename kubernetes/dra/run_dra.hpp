// SPDX-License-Identifier: GPL-2.0-or-later
//
// `kagemusha-k8s dra`: the driver of Dynamic Resource Allocation on this node, until a signal ends it.
#pragma once

#include "kubernetes/core/slices.hpp"
#include "kubernetes/dra/api_server.hpp"
#include "kubernetes/node/watched_node.hpp"

#include <string>

namespace kagemusha::kubernetes {

struct dra_options {
    node_options node;
    api_server_options server;
    std::string node_name;
    slicing how = slicing::shares;
    bool standby_conditions = false;          // devices have binding conditions (core/standby.hpp)
    std::string kubelet = "/var/lib/kubelet"; // its folder
    std::string cdi_folder = "/var/run/cdi";
};

// The program's exit status.
int run_dra(const dra_options& options);

} // namespace kagemusha::kubernetes
