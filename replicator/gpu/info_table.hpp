// SPDX-License-Identifier: GPL-2.0-or-later
// info_table: which queries the host answers, and what type the answer has. A name that is not here is
// refused: names whose answer is a handle or a pointer (it would mean nothing in the guest), and names nobody
// has looked at.
#pragma once

#include <cstdint>
#include <span>

#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::gpu {

enum class info_type : std::uint8_t {
    u32,   // cl_uint, cl_bool, cl_int, enumerations
    u64,   // cl_ulong, bit fields, properties
    size,  // size_t; 64 bits on every host and guest that we run on
    text,  // ends with 0
    sizes, // size_t[]
    bytes, // structures and other arrays
};

struct info_entry {
    std::uint32_t name;
    info_type type;
    bool optional = false; // of an extension: a host without it answers CL_INVALID_VALUE itself
};

// Names of a subject; empty for IMAGE_FORMATS and TIMERS, which are not named.
std::span<const info_entry> info_names(vgpu_info_subject subject);

// nullptr: refused.
const info_entry* find_info(vgpu_info_subject subject, std::uint32_t name);

} // namespace kagemusha::gpu
