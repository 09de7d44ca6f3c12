// SPDX-License-Identifier: GPL-2.0-or-later
//
// See host_clock.hpp.
#include "control/base/host_clock.hpp"

#include <fstream>

#ifdef __x86_64__
#include <x86intrin.h>

#include <chrono>
#include <thread>
#endif

namespace kagemusha::control {

std::string boot_id() {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string id;
    std::getline(file, id);
    return id.substr(0, 36);
}

#ifdef __x86_64__

namespace {

struct reading {
    std::chrono::steady_clock::time_point time;
    std::uint64_t ticks;
};

// Of several tries the one in which both were read closest together: between the two calls the thread may
// have lost its processor.
reading read_both() {
    reading best{};
    auto shortest = std::chrono::steady_clock::duration::max();
    for (int i = 0; i < 8; ++i) {
        const auto before = std::chrono::steady_clock::now();
        const std::uint64_t ticks = __rdtsc();
        const auto took = std::chrono::steady_clock::now() - before;
        if (took < shortest) {
            shortest = took;
            best = {before + took / 2, ticks};
        }
    }
    return best;
}

} // namespace

std::uint32_t host_tsc_khz() {
    const reading first = read_both();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const reading second = read_both();
    const std::chrono::duration<double, std::milli> elapsed = second.time - first.time;
    return static_cast<std::uint32_t>(static_cast<double>(second.ticks - first.ticks) / elapsed.count());
}

#else

std::uint32_t host_tsc_khz() {
    return 0;
}

#endif

} // namespace kagemusha::control
