// SPDX-License-Identifier: GPL-2.0-or-later
// launch_size: what can be wrong with the dimensions, offsets and sizes of a launch.
#pragma once

#include <array>

#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::codec {

// The last only with a local size.
inline constexpr std::array<const char*, 4> launch_size_errors = {
    "a launch has less than 1 or more than 3 dimensions",
    "an unused dimension of a launch is not 0, 1, 1",
    "offset + global size of a launch overflow",
    "a local size of 0",
};
// One of these sentences, or null.
const char* launch_size_error(const vgpu_cmd_launch& launch);

} // namespace kagemusha::codec
