// SPDX-License-Identifier: GPL-2.0-or-later
// counter: a number that the device's thread changes and any thread may read. One writer, so no locked
// instruction is needed.
#pragma once

#include <atomic>
#include <cstdint>

namespace kagemusha::core {

class counter {
public:
    void add(std::uint64_t n = 1) { set(get() + n); }
    void set(std::uint64_t n) { value_.store(n, std::memory_order_relaxed); }
    std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<std::uint64_t> value_{0};
};

} // namespace kagemusha::core
