// SPDX-License-Identifier: GPL-2.0-or-later
// fnv1a: the 64-bit FNV-1a hash of a text, the same on every host and in every release: for names and places
// derived from a text. Whoever chooses the text can choose the hash. Source: RFC 9923.
#pragma once

#include <cstdint>
#include <string_view>

namespace kagemusha {

// `from`: the hash of what came before.
constexpr std::uint64_t fnv1a(std::string_view text, std::uint64_t from = 0xcbf29ce484222325) {
    for (const char c : text)
        from = (from ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    return from;
}

} // namespace kagemusha
