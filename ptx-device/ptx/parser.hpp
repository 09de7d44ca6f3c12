// SPDX-License-Identifier: GPL-2.0-or-later
// parser: a PTX module's text, PTX 6 to 8 and what older versions have in common with them, as syntax.
#pragma once

#include "refusal.hpp"
#include "syntax.hpp"

#include <string_view>

namespace kagemusha::ptx {

// Bounds of a text from a stranger: what one module may ask of memory before anything of it runs.
struct limits {
    static constexpr std::size_t text = 256u << 20;       // bytes of a module
    static constexpr std::uint64_t variable = 4ull << 30; // bytes of one
    static constexpr std::uint32_t numbered = 1u << 20;   // of one `.reg %r<n>`
    static constexpr std::size_t params = 4096;           // of one function
    static constexpr std::uint64_t param_bytes = 32764;   // of one kernel, as in PTX 8.1
};

// The module that `text` is; the result views it. Any bytes are safe to give.
result<module> parse(std::string_view text);

} // namespace kagemusha::ptx
