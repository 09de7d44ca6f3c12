// SPDX-License-Identifier: GPL-2.0-or-later
// NVIDIA's Multi-Process Service on this host. Workers do not use it: a fault of one of its clients can end the work
// of all (docs/sharing.md), and VMs are to be kept apart. People are told that it is there.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace kagemusha::control {

// The directory of a control daemon that runs. `configured`: $CUDA_MPS_PIPE_DIRECTORY, or null.
std::optional<std::filesystem::path> find_mps(const char* configured);

// What `kage gpus` adds to its list; "": no daemon runs.
std::string mps_text(const std::optional<std::filesystem::path>& directory);
std::string mps_text_of_host();

} // namespace kagemusha::control
