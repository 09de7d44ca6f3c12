// SPDX-License-Identifier: GPL-2.0-or-later
#include "messages/text.hpp"

#include <cstdint>

namespace kagemusha::messages {

namespace {

// Bytes of the printable character that `s` begins with; 0: there is none.
std::size_t character_bytes(std::string_view s) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
    const unsigned first = byte(0);
    if (first < 0x80)
        return first >= 0x20 && first != 0x7f;
    const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || s.size() < bytes)
        return 0;
    std::uint32_t point = first & (0x7fu >> bytes);
    for (std::size_t i = 1; i < bytes; ++i) {
        if ((byte(i) & 0xc0) != 0x80)
            return 0;
        point = point << 6 | (byte(i) & 0x3fu);
    }
    constexpr std::uint32_t smallest[] = {0, 0, 0xa0, 0x800, 0x10000}; // U+0080–009F are control characters
    const bool surrogate = point >= 0xd800 && point <= 0xdfff;
    return point >= smallest[bytes] && point <= 0x10ffff && !surrogate ? bytes : 0;
}

} // namespace

bool is_text(std::string_view s, std::size_t most_bytes) {
    if (s.size() > most_bytes)
        return false;
    while (!s.empty()) {
        const std::size_t bytes = character_bytes(s);
        if (bytes == 0)
            return false;
        s.remove_prefix(bytes);
    }
    return true;
}

std::string as_text(std::string_view s, std::size_t most_bytes) {
    std::string out;
    while (!s.empty()) {
        const std::size_t bytes = character_bytes(s);
        const std::string_view character = bytes == 0 ? "?" : s.substr(0, bytes);
        if (out.size() + character.size() > most_bytes)
            break;
        out += character;
        s.remove_prefix(bytes == 0 ? 1 : bytes);
    }
    return out;
}

} // namespace kagemusha::messages
