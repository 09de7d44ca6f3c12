// SPDX-License-Identifier: GPL-2.0-or-later
//
// See quantity.hpp.
#include "kubernetes/core/quantity.hpp"

#include <charconv>

namespace kagemusha::kubernetes {

std::optional<std::uint64_t> parse_quantity(std::string_view text) {
    std::uint64_t number = 0;
    const auto* const end = text.data() + text.size();
    const auto [rest, failed] = std::from_chars(text.data(), end, number);
    if (failed != std::errc{})
        return std::nullopt;
    std::string_view suffix(rest, static_cast<std::size_t>(end - rest));
    if (suffix.empty())
        return number;
    std::uint64_t base = 1000;
    if (suffix.size() == 2 && suffix[1] == 'i') {
        base = 1024;
        suffix.remove_suffix(1);
    }
    constexpr std::string_view letters = "KMGTPE";
    const char letter = base == 1000 && suffix == "k" ? 'K' : base == 1000 && suffix == "K" ? '?' : suffix[0];
    const auto power = letters.find(letter);
    if (suffix.size() != 1 || power == std::string_view::npos)
        return std::nullopt;
    for (std::size_t i = 0; i <= power; ++i)
        if (__builtin_mul_overflow(number, base, &number))
            return std::nullopt;
    return number;
}

} // namespace kagemusha::kubernetes
