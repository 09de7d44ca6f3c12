// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a container runtime does for a container with a GPU of ours, as the Container Device Interface (CDI 0.5.0)
// spells it: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md. Pure.
#pragma once

#include "kubernetes/core/inventory.hpp"

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <vector>

namespace kagemusha::kubernetes {

// Device nodes and mounts of one GPU; `environment` as KEY, VALUE.
nlohmann::json container_edits(const found_gpu& gpu, const node_paths& paths,
                               const std::map<std::string, std::string>& environment = {});

// A specification with a device for each GPU that can be allocated, which knows no share: that is in the
// environment of the container. Without any GPU it would be invalid: null.
nlohmann::json gpu_specification(const std::vector<known_gpu>& gpus, const node_paths& paths);

// "kagemusha.io/gpu=gpu-HASH"
std::string cdi_name(const found_gpu& gpu);

} // namespace kagemusha::kubernetes
