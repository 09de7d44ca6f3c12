// SPDX-License-Identifier: GPL-2.0-or-later
//
// Keys and values in the GPU's memory: an open hash table that kernels read and change, a batch of requests at a
// time. Plain OpenCL, as any program would have it. One thread.
#pragma once

#include "protocol.hpp"
#include "suite/gpu.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace service {

constexpr std::size_t largest_batch = 128; // requests

class table {
public:
    // For `keys` keys, each of which is there: key:000000000000 has "value of 000000000000" and so on. There is
    // room for as many again.
    explicit table(std::uint32_t keys);

    // What each of these requests finds or leaves: get, set, increase, in this order. At most largest_batch.
    std::vector<std::optional<std::string>> execute(const std::vector<const request*>& batch);

private:
    struct item {
        unsigned char key[32], value[64];
    };
    void run(bool changes, std::size_t count);

    suite::gpu gpu_;
    std::uint32_t slots_;
    suite::buffer slots_memory_, items_memory_, values_memory_;
    std::vector<suite::kernel> kernels_; // look, change
    std::vector<item> items_;
    std::vector<unsigned char> values_;
};

} // namespace service
