// SPDX-License-Identifier: GPL-2.0-or-later
// The rows of commands that only CUDA has. There is one: memory at an address. Everything else that CUDA does
// is in common.hpp (its modules are programs, its functions kernels) or has OpenCL's flags, of which it uses
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

using cuda_rows = rows<create_arena>;
// clang-format on

} // namespace kagemusha::codec::commands

#endif
