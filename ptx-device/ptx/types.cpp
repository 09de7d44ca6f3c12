// SPDX-License-Identifier: GPL-2.0-or-later
// types: see types.hpp.
#include "types.hpp"

#include <array>
#include <utility>

namespace kagemusha::ptx {

namespace {

struct type_row {
    std::string_view name;
    std::uint32_t size;
    char kind; // b, u, s, f, p
};

// In the order of the enumeration.
constexpr std::array<type_row, 19> rows{{
    {"b8", 1, 'b'},     {"b16", 2, 'b'}, {"b32", 4, 'b'}, {"b64", 8, 'b'},   {"u8", 1, 'u'},
    {"u16", 2, 'u'},    {"u32", 4, 'u'}, {"u64", 8, 'u'}, {"s8", 1, 's'},    {"s16", 2, 's'},
    {"s32", 4, 's'},    {"s64", 8, 's'}, {"f16", 2, 'f'}, {"f16x2", 4, 'f'}, {"bf16", 2, 'f'},
    {"bf16x2", 4, 'f'}, {"f32", 4, 'f'}, {"f64", 8, 'f'}, {"pred", 1, 'p'},
}};

const type_row& row(type t) {
    return rows[static_cast<std::size_t>(t)];
}

constexpr std::array<std::pair<std::string_view, space>, 7> spaces{{
    {"reg", space::reg},
    {"generic", space::generic},
    {"global", space::global},
    {"shared", space::shared},
    {"local", space::local},
    {"const", space::constant},
    {"param", space::param},
}};

} // namespace

std::optional<type> type_of_name(std::string_view name) {
    for (std::size_t i = 0; i < rows.size(); i++)
        if (rows[i].name == name)
            return static_cast<type>(i);
    return std::nullopt;
}

std::string_view name_of(type t) {
    return row(t).name;
}

std::optional<space> space_of_name(std::string_view name) {
    // The scope of a window: a block's own shared memory, an entry's own parameters.
    if (name == "shared::cta")
        return space::shared;
    if (name == "param::entry" || name == "param::func")
        return space::param;
    for (const auto& [text, s] : spaces)
        if (text == name)
            return s;
    return std::nullopt;
}

std::string_view name_of(space s) {
    return spaces[static_cast<std::size_t>(s)].first;
}

std::uint32_t size_of(type t) {
    return row(t).size;
}
bool is_float(type t) {
    return row(t).kind == 'f';
}
bool is_signed(type t) {
    return row(t).kind == 's';
}
bool is_bits(type t) {
    return row(t).kind == 'b';
}

bool takes(type wanted, type given) {
    if (wanted == given)
        return true;
    if (wanted == type::pred || given == type::pred || size_of(wanted) != size_of(given))
        return false;
    return is_bits(wanted) || is_bits(given) || is_float(wanted) == is_float(given);
}

} // namespace kagemusha::ptx
