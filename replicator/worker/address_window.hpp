// SPDX-License-Identifier: GPL-2.0-or-later
// address_window: makes the next library that is opened lie directly below a certain address, however this
// process's addresses are randomised.
//
// Linux maps from the top down. When everything above an address is taken, the next mapping ends there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::worker {

struct address_range {
    std::uint64_t begin, end;
    friend bool operator==(const address_range&, const address_range&) = default;
};

// What is free in [base, top), by the text of /proc/PID/maps; without `stack_room` bytes below the stack, which
// grows. Pure.
std::vector<address_range> free_ranges(std::string_view maps, std::uint64_t base, std::uint64_t top,
                                       std::uint64_t stack_room);

// A driver's library, and what it maps, end there: far below where Linux puts a program and its stack, so that
// a guest's program has this free, and far above what a driver reserves for GPUs.
inline constexpr std::uint64_t driver_end = 0x6f0000000000;

// Takes everything from `base` up. "" or why not.
std::string close_addresses_above(std::uint64_t base);

} // namespace kagemusha::worker
