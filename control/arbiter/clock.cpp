// SPDX-License-Identifier: GPL-2.0-or-later
//
// See arbiter.hpp.
#include "control/arbiter/arbiter.hpp"

#include <ctime>

namespace kagemusha::control {

std::uint64_t boot_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_BOOTTIME, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

std::uint64_t boot_ms() {
    return boot_ns() / 1'000'000u;
}

} // namespace kagemusha::control
