// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a guest with a GPU needs beside QEMU: the driver of its own side (OpenCL's ICD, or CUDA's libcuda),
// and on the host the library that the backend `cuda` loads.
#pragma once

#include "control/base/assets.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kagemusha::control {

// The words of scripts/make-payload for the guest's side of this backend.
std::vector<std::string> guest_driver_words(const assets& parts, const std::string& backend);

// The library that workers of the backend `cuda` load. "": the system's libcuda.so.1. "ptx": our device that
// computes on the processor. Else its path. std::nullopt: it is said on stderr what is wrong.
std::optional<std::string> find_host_driver(const std::string& backend, const std::string& wanted);

// The device's property `options` with this library added. False: `properties` has one of its own already.
bool add_host_driver(std::vector<std::pair<std::string, std::string>>& properties, const std::string& driver);

// Of QEMU with our device: where libraries are, the driver's folder included (workers see these folders and
// no other), and the worker.
std::vector<std::pair<std::string, std::string>> gpu_environment(const assets& parts,
                                                                 const std::string& driver);

} // namespace kagemusha::control
