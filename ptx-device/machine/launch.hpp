// SPDX-License-Identifier: GPL-2.0-or-later
// launch: runs a kernel of a program over a grid of blocks, in the calling thread.
//
// Deterministic: the same program, arguments and memory give the same result. Blocks run one after another;
// warps of a block take turns of a fixed number of instructions. A cooperative launch has all blocks take
// turns.
#pragma once

#include "heap.hpp"
#include "memory_map.hpp"
#include "program.hpp"
#include "texture.hpp"

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace kagemusha::machine {

enum class fault_kind : std::uint8_t {
    none,
    illegal_address,
    misaligned,
    trap,
    assertion,
    stack,    // calls or local memory beyond the device's
    bad_call, // an address that is no function, or one with other parameters
    deadlock, // every thread waits at a barrier
    too_long, // beyond `max_steps`
};

struct outcome {
    fault_kind fault = fault_kind::none;
    std::string function; // where
    std::uint32_t line = 0;
    std::uint64_t address = 0;
    std::string message; // of an assertion
};

struct launch_request {
    const program* code = nullptr;
    const function* kernel = nullptr;
    std::uint32_t grid[3] = {1, 1, 1};
    std::uint32_t threads[3] = {1, 1, 1};
    std::uint32_t dynamic_shared = 0;
    std::span<const std::uint8_t> params; // kernel->entry_param_bytes
    const memory_map* memory = nullptr;
    const texture_table* textures = nullptr; // null: none
    device_heap* heap = nullptr;             // null: malloc gives nothing
    bool cooperative = false;
    std::uint64_t max_steps = 0;                 // of all warps together; 0: no limit
    std::function<void(std::string_view)> print; // what printf writes; may be empty
};

outcome run_grid(const launch_request& request);

} // namespace kagemusha::machine
