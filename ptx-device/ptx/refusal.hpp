// SPDX-License-Identifier: GPL-2.0-or-later
// refusal: what the front end says about a text that it does not take: the line, and a sentence.
//
// Inside the front end a refusal is thrown, because it ends whatever was being read. The functions that other
// folders call (parse, build) catch it and return it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace kagemusha::ptx {

struct refusal {
    std::uint32_t line = 0; // from 1; 0: the module as a whole
    std::string what;

    std::string text() const { return line != 0 ? "line " + std::to_string(line) + ": " + what : what; }
};

// A result, or why there is none.
template <class T>
struct result {
    T value{};
    bool ok = false;
    refusal why;
};

[[noreturn]] inline void refuse(std::uint32_t line, std::string what) {
    throw refusal{line, std::move(what)};
}

// Words of a text that nobody checked, for a sentence: printable and short.
inline std::string quoted(std::string_view text) {
    std::string out = "'";
    for (char c : text.substr(0, 60))
        out += c >= ' ' && c <= '~' ? c : '?';
    return out + (text.size() > 60 ? "…'" : "'");
}

} // namespace kagemusha::ptx
