// SPDX-License-Identifier: GPL-2.0-or-later
//
// From the ids that the kubelet names to a share of one GPU, and what a container with that share gets. A unit's
// id is "gpu-HASH-NN"; which units a pod has means nothing, only how many of which GPU. A MIG instance is one unit, and
// its id is the GPU's, "gpu-HASH". Pure.
#pragma once

#include "kubernetes/core/inventory.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::kubernetes {

// A name, or a sentence, of others as a part of a sentence of ours: short, and printable.
std::string shown(std::string_view text);
std::string shown_sentence(std::string_view text);

std::string unit_id(std::string_view gpu, std::uint32_t unit);
// The resource that a GPU's units are of.
std::string resource_of(const found_gpu& gpu);
// Ids of all units of a GPU.
std::vector<std::string> units_of(const found_gpu& gpu);
// The GPU of a unit; nothing: it is no id of ours.
std::optional<std::string> gpu_of_unit(std::string_view id);

struct grant {
    found_gpu gpu;
    std::uint32_t percent = 0;
    std::uint64_t memory_mib = 0; // its part of the GPU's memory; 0: not known
};

// Nothing and a sentence in `refusal`: for the event that the pod's owner reads.
std::optional<grant> allocate(const inventory& gpus, const std::vector<std::string>& ids,
                              std::string& refusal);

// Of `available` the `size` units that the kubelet should take: all of one GPU, of the fullest that has so many.
// Empty: no GPU has.
std::vector<std::string> prefer(const std::vector<std::string>& available,
                                const std::vector<std::string>& must_include, std::uint32_t size);

// What `kagemusha run` reads (control/share/granted_share.hpp).
std::map<std::string, std::string> environment_of(const grant& given);

} // namespace kagemusha::kubernetes
