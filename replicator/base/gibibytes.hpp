// SPDX-License-Identifier: GPL-2.0-or-later
// gibibytes: an amount of memory as people read it, "7.5 GiB".
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace kagemusha {

inline std::string gibibytes(std::uint64_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f GiB", static_cast<double>(bytes) / (std::uint64_t{1} << 30));
    return text;
}

} // namespace kagemusha
