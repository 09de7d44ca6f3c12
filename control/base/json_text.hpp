// SPDX-License-Identifier: GPL-2.0-or-later
//
// JSON as text, whatever bytes its strings have: those that are not UTF-8 (a line of QEMU's log, an answer of
// etcd's, a file's name) are replaced. nlohmann's dump() throws there, and nobody catches it: a supervisor
// that ends takes its VM with it.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

namespace kagemusha::control {

// `indent` as of dump(): -1 is one line.
inline std::string as_json_text(const nlohmann::json& value, int indent = -1) {
    return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

// A text that an object may have; "" if it has none there, or something else. Of what is no object, too.
inline std::string text_in(const nlohmann::json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// A number that it may have; 0 if it has none there, a negative or broken one, or something else.
inline std::uint64_t number_in(const nlohmann::json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

// A line of a plain log: control characters (U+0000–001F, U+007F–009F), which a terminal would obey, are '?'.
inline std::string as_log_line(std::string text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto byte = static_cast<unsigned char>(text[i]);
        const bool after_c2 = i > 0 && static_cast<unsigned char>(text[i - 1]) == 0xc2;
        if (byte < 0x20 || byte == 0x7f || (after_c2 && byte >= 0x80 && byte < 0xa0))
            text[i] = '?';
    }
    return text;
}

} // namespace kagemusha::control
