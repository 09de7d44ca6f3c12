// SPDX-License-Identifier: GPL-2.0-or-later
// The rows of commands that only CUDA has: memory at an address, and textures. Everything else that CUDA does
// is in common.hpp (its modules are programs, its functions kernels) or has OpenCL's flags, of which it uses
// none (queues, in opencl.hpp).
#pragma once

#include <tuple>

#include "base/checked.hpp"
#include "codec/commands/row.hpp"
#include "codec/image_format.hpp"

namespace kagemusha::codec::commands {

// What CREATE_TEXTURE says about the memory that it shows.
constexpr std::uint32_t texture_flags = 0x33, last_addressing_mode = 3; // CUDA's
constexpr bool shows_buffer(const vgpu_cmd_create_texture& c) {
    return c.kind <= VGPU_TEXTURE_ROWS;
}
constexpr bool shows_image(const vgpu_cmd_create_texture& c) {
    const bool plain = (c.flags | c.filter | c.addressing[0] | c.addressing[1] | c.addressing[2]) == 0;
    return (c.offset | c.bytes | c.channel_order | c.channel_type) == 0 &&
           (c.kind != VGPU_TEXTURE_SURFACE || plain);
}
inline bool rows_fit(const vgpu_cmd_create_texture& c) {
    const base::checked_u64 row =
        base::checked_u64(c.width) * image_element_bytes(c.channel_order, c.channel_type);
    if (c.width == 0 || c.height == 0 || !row.within(c.row_pitch))
        return false;
    const base::checked_u64 bytes = base::checked_u64(c.height - 1) * c.row_pitch + row;
    return bytes.ok() && *bytes.value() == c.bytes;
}

// clang-format off: one part per line
struct create_arena : call<VGPU_CMD_CREATE_ARENA, op_create_arena> {
    static constexpr const char* name = "CREATE_ARENA";
    static constexpr auto parts = std::tuple(
        creates(object::buffer, &wire::id),
        uses(object::context, &wire::context),
        between(&wire::bytes, VGPU_ARENA_ALIGNMENT, VGPU_ARENA_RANGE_BYTES,
                "an arena is empty or larger than the range of arenas"),
        between(&wire::address, VGPU_ARENA_BASE, VGPU_ARENA_BASE + VGPU_ARENA_RANGE_BYTES - VGPU_ARENA_ALIGNMENT,
                "an arena is not in the range of arenas"),
        rule("an arena ends behind the range of arenas",
             [](const wire& c) { return c.address - VGPU_ARENA_BASE <= VGPU_ARENA_RANGE_BYTES - c.bytes; }),
        rule("address or length of an arena is not a multiple of VGPU_ARENA_ALIGNMENT",
             [](const wire& c) { return (c.address | c.bytes) % VGPU_ARENA_ALIGNMENT == 0; }));
    static void sample(wire& c) {
        c.address = VGPU_ARENA_BASE + VGPU_ARENA_RANGE_BYTES - VGPU_ARENA_ALIGNMENT; // any more ends behind
        c.bytes = VGPU_ARENA_ALIGNMENT;
    }
};

// Address 0: the guest knows of the variable, and the driver gives no address of it.
struct create_variable : call<VGPU_CMD_CREATE_VARIABLE, op_create_variable> {
    static constexpr const char* name = "CREATE_VARIABLE";
    static constexpr auto parts = std::tuple(
        creates(object::buffer, &wire::id),
        uses(object::program, &wire::program),
        pad(&wire::pad),
        between(&wire::bytes, 1, VGPU_ARENA_RANGE_BYTES, "a variable is empty or larger than the range of arenas"),
        not_zero(&wire::name_bytes, "a variable without a name"),
        text(&op::name, &wire::name_bytes, VGPU_MAX_NAME_BYTES));
    static void sample(wire& c) {
        c.address = 4096;
        c.bytes = 64;
    }
};

// FIND_TEXTURE, CREATE_TEXTURE. How the memory of a texture must look is a rule of its kind: a buffer is shown in
// part and has a format, an image is shown whole and has its own.
template <class... First>
constexpr auto texture_parts(First... first) {
    using wire = vgpu_cmd_create_texture;
    return std::tuple(
        first...,
        uses(object::context, &wire::context),
        uses(object::memory, &wire::memory),
        between(&wire::kind, VGPU_TEXTURE_LINEAR, VGPU_TEXTURE_ARRAY, "an unknown kind of texture"),
        flags(&wire::flags, texture_flags),
        at_most(&wire::filter, 1, "an unknown filter of a texture"),
        rule("an unknown addressing mode of a texture",
             [](const wire& c) { return c.addressing[0] <= last_addressing_mode &&
                                        c.addressing[1] <= last_addressing_mode &&
                                        c.addressing[2] <= last_addressing_mode; }),
        rule("a texture of an image has a format or a part of its own, or a surface says how to read it",
             [](const wire& c) { return shows_buffer(c) || shows_image(c); }),
        rule("a texture of a buffer shows nothing, or in an unknown format",
             [](const wire& c) { return !shows_buffer(c) || (c.bytes != 0 &&
                                        image_element_bytes(c.channel_order, c.channel_type) != 0); }),
        rule("only a texture of rows has width, height and pitch",
             [](const wire& c) { return c.kind == VGPU_TEXTURE_ROWS || (c.width | c.height | c.row_pitch) == 0; }),
        rule("the rows of a texture are not as many bytes as it shows",
             [](const wire& c) { return c.kind != VGPU_TEXTURE_ROWS || rows_fit(c); }),
        range(&wire::memory, &wire::offset, &wire::bytes, "offset + length of a texture overflow"));
}
constexpr void sample_texture(vgpu_cmd_create_texture& c) {
    c.kind = VGPU_TEXTURE_ROWS;
    c.channel_order = 0x10B0; // CL_R
    c.channel_type = 0x10DA;  // CL_UNSIGNED_INT8
    c.width = c.row_pitch = c.bytes = 4;
    c.height = 1;
}

struct find_texture : call<VGPU_CMD_FIND_TEXTURE, op_find_texture> {
    static constexpr const char* name = "FIND_TEXTURE";
    static constexpr auto parts = texture_parts(
        at_most(&wire::id, 0, "a texture that is looked for has an id"),
        at_most(&wire::number, 0, "a texture that is looked for has a number"),
        payload_out(&op::result, &wire::result),
        rule("the room for a texture's number is not 8 bytes",
             [](const wire& c) { return c.result.bytes == sizeof(__u64); }));
    static void sample(wire& c) {
        sample_texture(c);
        c.result.bytes = sizeof(__u64);
    }
};

struct create_texture : call<VGPU_CMD_CREATE_TEXTURE, op_create_texture> {
    static constexpr const char* name = "CREATE_TEXTURE";
    static constexpr auto parts = texture_parts(
        creates(object::sampler, &wire::id),
        rule("a texture that is created has room for its number",
             [](const wire& c) { return c.result.bytes == 0 && c.result.index == VGPU_PAYLOAD_NONE &&
                                        c.result.pad == 0; }));
    static void sample(wire& c) {
        sample_texture(c);
        c.number = 1;
        c.result.index = VGPU_PAYLOAD_NONE;
    }
};

using cuda_rows = rows<create_arena, create_variable, find_texture, create_texture>;
// clang-format on

} // namespace kagemusha::codec::commands
