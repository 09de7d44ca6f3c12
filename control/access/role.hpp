// SPDX-License-Identifier: GPL-2.0-or-later
//
// What somebody may do through the API: look, run clusters, or decide who else may. Each role may do what those
// before it may.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kagemusha::control::access {

enum class role { nobody, viewer, operates, admin };

inline const char* to_text(role what) {
    switch (what) {
    case role::nobody:
        return "nobody";
    case role::viewer:
        return "viewer";
    case role::operates:
        return "operator";
    case role::admin:
        return "admin";
    }
    return "";
}

// Of those that somebody can be given.
inline std::optional<role> role_of(std::string_view text) {
    for (const auto one : {role::viewer, role::operates, role::admin})
        if (text == to_text(one))
            return one;
    return std::nullopt;
}

// Who asks.
struct caller {
    std::string name;
    role may = role::nobody;
    std::string from;      // an address, or "this machine": for the audit log
    bool is_local = false; // at the Unix socket, as the daemon's own user
    std::string session{}; // its key in the table of sessions; "": it has none (a token, the Unix socket)
};

} // namespace kagemusha::control::access
