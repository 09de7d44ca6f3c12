// SPDX-License-Identifier: GPL-2.0-or-later
// agreement: whether two ends that greeted each other fit together. The same rules and the same sentences on
// both sides, so that an operator reads the reason whichever log he looks at.
#pragma once

#include <cstdint>
#include <string>

#include "mirror/protocol/message.hpp"

namespace kagemusha::mirror {

inline constexpr const char* compression_capability = "zstd";
// Of a device: it executes CUDA's commands, as they are in this version of them. And it executes OpenCL's not,
// so a log of it needs a standby with the first one. With both, logs of VMs without CUDA are what they were, and
// their pairs with older releases stay possible.
inline constexpr const char* cuda_capability = "cuda-1";
inline constexpr const char* cuda_only_capability = "cuda-only";

// Of a device with a compiler whose results another one of its kind can use; the name of the GPU follows, so
// that both ends say the same if and only if their GPUs are called the same.
inline constexpr const char* built_capability = "built-programs-1 ";

// The highest version that both speak, which both then speak; 0: there is none.
std::uint32_t common_version(const hello& mine, const hello& theirs);

// The same of the dialogue of checkpoints between their QEMUs.
std::uint32_t common_checkpoint_version(const hello& mine, const hello& theirs);

// Empty: they fit. Else why not, as a sentence.
std::string disagreement(const hello& mine, const hello& theirs);

bool has_capability(const hello& h, const std::string& name);

} // namespace kagemusha::mirror
