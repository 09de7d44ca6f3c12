// SPDX-License-Identifier: GPL-2.0-or-later
// The rows of commands that only CUDA has: memory at an address. Everything else that CUDA does is in
// common.hpp (its modules are programs, its functions kernels) or has OpenCL's flags, of which it uses
// none (queues, in opencl.hpp).
#ifndef KAGEMUSHA_CODEC_COMMANDS_CUDA_HPP
#define KAGEMUSHA_CODEC_COMMANDS_CUDA_HPP

#include <tuple>

#include "codec/commands/row.hpp"

namespace kagemusha::codec::commands {

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

using cuda_rows = rows<create_arena, create_variable>;
// clang-format on

} // namespace kagemusha::codec::commands

#endif
