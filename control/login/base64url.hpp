// SPDX-License-Identifier: GPL-2.0-or-later
//
// Base64url without padding, as JSON Web Tokens have it (RFC 4648).
#pragma once

#include "control/base/base64.hpp"

#include <string>
#include <string_view>

namespace kagemusha::control::login {

inline std::string to_base64url(std::string_view bytes) {
    auto out = to_base64(bytes);
    while (out.ends_with('='))
        out.pop_back();
    for (char& c : out)
        c = c == '+' ? '-' : c == '/' ? '_' : c;
    return out;
}

// Of what is_base64url().
inline std::string from_base64url(std::string text) {
    for (char& c : text)
        c = c == '-' ? '+' : c == '_' ? '/' : c;
    text.resize((text.size() + 3) / 4 * 4, '=');
    return from_base64(text);
}

inline bool is_base64url(std::string_view text) {
    return text.size() % 4 != 1 &&
           text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") ==
               text.npos;
}

} // namespace kagemusha::control::login
