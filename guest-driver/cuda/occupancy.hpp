// SPDX-License-Identifier: GPL-2.0-or-later
//
// How many blocks of a function a multiprocessor can hold, by the formula of NVIDIA's occupancy calculator: what
// its threads, registers, shared memory and its list of blocks have room for, each in units in which the hardware
// hands them out. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kagemusha::cuda {

struct multiprocessor {
    unsigned capability = 80; // 10 × major + minor
    std::uint64_t threads = 2048, blocks = 32, registers = 65536, shared_bytes = 0;
    std::uint64_t reserved_shared_bytes = 0; // of each block, the system's own
};

struct block_needs {
    std::uint64_t threads = 0, registers_per_thread = 0, shared_bytes = 0;
};

constexpr std::uint64_t rounded_up(std::uint64_t value, std::uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

// 0: not one fits.
constexpr std::uint64_t blocks_that_fit(const multiprocessor& in, const block_needs& of) {
    constexpr std::uint64_t warp = 32, register_unit = 256, schedulers = 4;
    if (of.threads == 0)
        return 0;
    const std::uint64_t warps = rounded_up(of.threads, warp) / warp;
    std::uint64_t most = std::min(in.blocks, in.threads / warp / warps);
    if (of.registers_per_thread > 0) {
        // Each scheduler has its part of the registers, and a warp is one scheduler's.
        const std::uint64_t each = rounded_up(of.registers_per_thread * warp, register_unit);
        most = std::min(most, in.registers / schedulers / each * schedulers / warps);
    }
    const std::uint64_t shared_unit = in.capability >= 80 ? 128 : 256;
    const std::uint64_t shared = rounded_up(of.shared_bytes + in.reserved_shared_bytes, shared_unit);
    if (of.shared_bytes + in.reserved_shared_bytes > 0)
        most = std::min(most, in.shared_bytes / shared);
    return most;
}

// Of each of so many blocks; 0 if not even that.
constexpr std::uint64_t shared_bytes_for(const multiprocessor& in, std::uint64_t blocks) {
    const std::uint64_t shared_unit = in.capability >= 80 ? 128 : 256;
    const std::uint64_t each = blocks == 0 ? 0 : in.shared_bytes / blocks / shared_unit * shared_unit;
    return each - std::min(each, in.reserved_shared_bytes);
}

} // namespace kagemusha::cuda
