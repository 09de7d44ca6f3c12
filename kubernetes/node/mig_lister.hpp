// SPDX-License-Identifier: GPL-2.0-or-later
//
// The MIG instances of this node's NVIDIA GPUs, as `kagemusha gpus mig` lists them. An instance is a GPU of its own for
// pods; the GPU that it is a part of is none any more.
#pragma once

#include "kubernetes/core/gpu.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::kubernetes {

struct cut_gpu {
    std::string selector; // of the GPU that was cut
    std::string name;
    struct instance {
        std::string uuid, profile;
        std::uint32_t id = 0; // the driver's
        std::uint64_t memory_bytes = 0;
    };
    std::vector<instance> instances; // that can be used
};

// The GPUs in MIG mode. Nothing and a sentence: it is no answer of `kagemusha gpus mig --json`. Pure.
std::optional<std::vector<cut_gpu>> parse_mig(std::string_view json, std::string& error);

// Waits for `timeout_ms` at most. The library is $KAGEMUSHA_NVML, or the system's.
std::optional<std::vector<cut_gpu>> list_mig(const std::string& program, int timeout_ms, std::string& error);

// The node's GPUs with the instances in the place of those that were cut. `root`: "" but in tests.
std::vector<found_gpu> with_instances(std::vector<found_gpu> gpus, const std::vector<cut_gpu>& cut,
                                      const std::string& root = "");

} // namespace kagemusha::kubernetes
