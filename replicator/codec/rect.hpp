// SPDX-License-Identifier: GPL-2.0-or-later
// rect: where a rectangle with pitches begins and ends in linear memory. One place, because the decoder, the
// validator and the executor must agree.
#pragma once

#include <cstdint>

#include "base/checked.hpp"
#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::codec {

// Three sizes or coordinates as the wire format has them.
using wire_triple = __u64[3];

// From the first byte of the rectangle to behind its last. region[0] is in bytes; no side is 0.
constexpr base::checked_u64 rect_bytes(const wire_triple& region, std::uint64_t row_pitch,
                                       std::uint64_t slice_pitch) {
    return base::checked_u64(region[2] - 1) * slice_pitch + base::checked_u64(region[1] - 1) * row_pitch +
           region[0];
}

// From the beginning of the memory to behind the rectangle's last byte.
constexpr base::checked_u64 rect_end(const wire_triple& origin, const wire_triple& region,
                                     std::uint64_t row_pitch, std::uint64_t slice_pitch) {
    return base::checked_u64(origin[2]) * slice_pitch + base::checked_u64(origin[1]) * row_pitch + origin[0] +
           rect_bytes(region, row_pitch, slice_pitch);
}

} // namespace kagemusha::codec
