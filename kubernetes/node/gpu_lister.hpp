// SPDX-License-Identifier: GPL-2.0-or-later
//
// The GPUs of this node, as kagemusha-gpus lists them in a process of its own: drivers hang and crash.
#pragma once

#include "kubernetes/core/gpu.hpp"

#include <optional>
#include <string>
#include <vector>

namespace kagemusha::kubernetes {

// Waits for `timeout_ms` at most. Nothing and a sentence: no GPU, or no answer.
std::optional<std::vector<found_gpu>> list_gpus(const std::string& program, int timeout_ms,
                                                std::string& error);

// Of those below /dev that the node has: what a container with this GPU needs. `root`: "" but in tests.
std::vector<std::string> device_nodes_of(const std::string& selector, const std::string& root = "");

// Of the memory beside a GPU; -1: none is known.
int numa_node_of(const std::string& selector);

} // namespace kagemusha::kubernetes
