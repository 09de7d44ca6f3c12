// SPDX-License-Identifier: GPL-2.0-or-later
//
// `kagemusha-k8s device-plugin`: serves the kubelet until a signal ends it.
#pragma once

#include "kubernetes/node/watched_node.hpp"
#include "kubernetes/plugin/device_plugin.hpp"

#include <string>

namespace kagemusha::kubernetes {

struct device_plugin_options {
    node_options node;
    injection how = injection::cdi;
    std::string folder = "/var/lib/kubelet/device-plugins"; // of the kubelet
};

// The program's exit status.
int run_device_plugin(const device_plugin_options& options);

} // namespace kagemusha::kubernetes
