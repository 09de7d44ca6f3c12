// SPDX-License-Identifier: GPL-2.0-or-later
//
// Bytes as small hexadecimal digits.
#pragma once

#include <string>
#include <string_view>

namespace kagemusha {

inline std::string hexadecimal(std::string_view bytes) {
    constexpr char digits[] = "0123456789abcdef";
    std::string out;
    for (const unsigned char byte : bytes)
        out.append({digits[byte >> 4], digits[byte & 15]});
    return out;
}

} // namespace kagemusha
