// SPDX-License-Identifier: GPL-2.0-or-later
// image_format: bytes per element and the shape of an image, from OpenCL's numbers.
#pragma once

#include <cstdint>

#include "base/checked.hpp"
#include "codec/rect.hpp"
#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::codec {

// Bytes of one element, 0 for a combination that OpenCL 3.0 does not define.
std::uint32_t image_element_bytes(std::uint32_t channel_order, std::uint32_t channel_type);

// The sides of an image as origin and region of transfers count them: an array's layers are its last used
// side. Unused sides are 1.
struct image_extent {
    __u64 side[3];
};
image_extent image_extent_of(const vgpu_cmd_create_image& image);

// Bytes that linear memory must have to hold `region` (in elements) with these pitches; slice_pitch may be 0
// when there is one slice.
constexpr base::checked_u64 image_linear_bytes(const wire_triple& region, std::uint32_t element_bytes,
                                               std::uint64_t row_pitch, std::uint64_t slice_pitch) {
    return base::checked_u64(region[2] - 1) * slice_pitch + base::checked_u64(region[1] - 1) * row_pitch +
           base::checked_u64(region[0]) * element_bytes;
}

} // namespace kagemusha::codec
