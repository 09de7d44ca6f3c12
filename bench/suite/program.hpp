// SPDX-License-Identifier: GPL-2.0-or-later
//
// A program of the suite: input is made once, then the same work is done as often as is asked for, then the
// result is compared with what the CPU computes. Work that is repeated begins from the same input, unless its
// check counts along.
#pragma once

#include "suite/gpu.hpp"

#include <memory>
#include <span>
#include <string>

namespace suite {

class work {
public:
    virtual ~work() = default;
    virtual void once() = 0;         // enqueues, and waits for it
    virtual std::string check() = 0; // "" or what is wrong with the result
};

// For program::make.
template <typename T>
std::unique_ptr<work> made(const gpu& device, std::size_t scale) {
    return std::make_unique<T>(device, scale);
}

struct program {
    const char* name;
    const char* kind; // what bounds it: compute, transfer, launch, mapped
    const char* what; // one line for people
    // `scale`: 1 fits a CPU as device; more makes the input larger, for real GPUs, and gives the GPU more of
    // it to do before it is waited for.
    std::unique_ptr<work> (*make)(const gpu& device, std::size_t scale);
};

std::span<const program> linear_programs();
std::span<const program> grid_programs();
std::span<const program> irregular_programs();
std::span<const program> loop_programs();

} // namespace suite
