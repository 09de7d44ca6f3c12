// SPDX-License-Identifier: GPL-2.0-or-later
//
// The value of Set-Cookie for the cookies that we give browsers: over TLS alone, for all of our paths, and hidden from
// scripts. A name that begins with __Host- is taken from no other host.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kagemusha::control::access {

enum class same_site {
    strict, // comes along from our own pages only
    lax,    // also when a page of elsewhere leads to us
};

// `lives_s`: how long; 0: the browser drops it at once; nothing: until the browser ends.
inline std::string set_cookie(std::string_view name, std::string_view value, same_site from,
                              std::optional<unsigned> lives_s = std::nullopt) {
    std::string out = std::string(name) + "=" + std::string(value);
    if (lives_s)
        out += "; Max-Age=" + std::to_string(*lives_s);
    return out + "; Path=/; Secure; HttpOnly; SameSite=" + (from == same_site::strict ? "Strict" : "Lax");
}

} // namespace kagemusha::control::access
