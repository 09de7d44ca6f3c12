// SPDX-License-Identifier: GPL-2.0-or-later
// gpu_nodes: which device nodes a worker needs for its GPU. Every other GPU of the host belongs to somebody
// else, and a worker that was taken over would use it past all quotas.
//
// The GPU is known by its own selector (gpu::gpu_description::own_selector), which the device learns from the
// worker that it starts first, and which runs no code of the guest. That one alone gets the nodes of all
// GPUs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::worker {

struct gpu_nodes {
    std::vector<std::string> devices; // below /dev; some may not be there
    bool nvidia = false;              // NVIDIA's runtime is among those that will work
    std::string problem;              // "", or why the nodes of other GPUs are among them
};

// `root`: where /dev, /proc and /sys are, "" but in tests. Reads them, opens no device.
gpu_nodes nodes_of_gpu(std::string_view selector, const std::string& root = "");

} // namespace kagemusha::worker
