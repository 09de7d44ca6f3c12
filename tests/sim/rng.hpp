// SPDX-License-Identifier: GPL-2.0-or-later
// The simulator's only source of chance: the same numbers on every machine from the same seed.
#pragma once

#include <cstdint>

namespace kagemusha::sim {

inline std::uint64_t mixed(std::uint64_t x) { // splitmix64
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

inline std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
    return mixed(a ^ mixed(b));
}

class rng {
public:
    explicit rng(std::uint64_t seed) : state_(mixed(seed)) {}
    std::uint64_t next() {
        state_ += 0x9e3779b97f4a7c15;
        std::uint64_t x = state_;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
        x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
        return x ^ (x >> 31);
    }
    // Below n, which is not 0.
    std::uint32_t below(std::uint32_t n) {
        return static_cast<std::uint32_t>(
            (static_cast<std::uint64_t>(static_cast<std::uint32_t>(next())) * n) >> 32);
    }
    std::uint32_t between(std::uint32_t least, std::uint32_t most) { return least + below(most - least + 1); }
    bool chance(std::uint32_t per_10000) { return below(10000) < per_10000; }

private:
    std::uint64_t state_;
};

} // namespace kagemusha::sim
