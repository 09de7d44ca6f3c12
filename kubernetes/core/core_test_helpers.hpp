// SPDX-License-Identifier: GPL-2.0-or-later
//
// GPUs for the tests of this folder.
#pragma once

#include "kubernetes/core/allocation.hpp"

#include <string>
#include <vector>

namespace kagemusha::kubernetes {

inline found_gpu gpu_numbered(int number) {
    return {.id = "gpu-000000000000000" + std::to_string(number),
            .name = "Card " + std::to_string(number),
            .selector = "pci:0000:0" + std::to_string(number) + ":00.0",
            .memory_bytes = 8ull << 30,
            .nodes = {"/dev/dri/renderD" + std::to_string(128 + number)},
            .numa = 0};
}

inline found_gpu instance_numbered(int number, const std::string& profile) {
    return {.id = "gpu-111111111111111" + std::to_string(number),
            .name = "Card 0 MIG " + profile,
            .selector = "MIG-00000000-0000-4000-8000-00000000000" + std::to_string(number),
            .memory_bytes = 10ull << 30,
            .nodes = {"/dev/nvidiactl", "/dev/nvidia0"},
            .numa = 0,
            .profile = profile,
            .parent = "pci:0000:17:00.0"};
}

// All of them can be allocated.
inline inventory node_with(int gpus, const std::vector<found_gpu>& more = {}) {
    std::vector<found_gpu> listed;
    for (int i = 0; i < gpus; ++i)
        listed.push_back(gpu_numbered(i));
    listed.insert(listed.end(), more.begin(), more.end());
    inventory out;
    out.looked(listed);
    for (const auto& gpu : listed)
        out.asked(gpu.id, true);
    return out;
}

inline std::vector<std::string> units(int gpu, std::uint32_t first, std::uint32_t count) {
    std::vector<std::string> out;
    for (std::uint32_t unit = first; unit < first + count; ++unit)
        out.push_back(unit_id(gpu_numbered(gpu).id, unit));
    return out;
}

} // namespace kagemusha::kubernetes
