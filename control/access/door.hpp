// SPDX-License-Identifier: GPL-2.0-or-later
//
// door: who sends a request over the network, from what its headers say, and whether it is heard at all. What
// its role may do is decided where the request goes.
//
//   * a token (Authorization: Bearer …) is a program's; a browser sends none by itself;
//   * a cookie is a browser's. It comes along with whatever page of whatever site asks, so a change needs the
//     session's CSRF token beside it, and an Origin, if there is one, must be our own;
//   * everybody is limited: strangers by their address, others by their name.
//
// Pure: times are arguments; sessions and accounts are the caller's.
#pragma once

#include "control/access/accounts.hpp"
#include "control/access/rate_limiter.hpp"
#include "control/access/sessions.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace kagemusha::control::access {

// __Host-: browsers take it over TLS alone, from no other host, for all paths.
inline constexpr char cookie_name[] = "__Host-kagemusha";
std::string cookie_for(std::string_view id); // the value of Set-Cookie
std::string cookie_to_forget();              // the same, and the browser drops it
// Of a Cookie header; "": it has none of this name.
std::string cookie_value(std::string_view cookies, std::string_view name);
inline std::string session_id(std::string_view cookies) {
    return cookie_value(cookies, cookie_name);
}

struct knock {
    bool changes = true;    // it is no GET and no HEAD
    bool websocket = false; // browsers let any page open one: the origin must be there
    std::string from;       // an address
    std::string cookies, authorization, origin, host, csrf; // headers
};

struct admission {
    caller who;          // nobody: not logged in, which is no refusal yet
    unsigned status = 0; // of a refusal; 0: it is heard
    std::string why;
    unsigned retry_after_s = 0;
};

struct moment {
    std::int64_t session_s = 0; // of the clock that sessions have, which does not go back
    std::int64_t now_s = 0;     // since 1970: tokens expire then
    double precise_s = 0;       // for rates
};

struct door_limits {
    static constexpr rate_limiter::rule strangers{300, 100}, requests{5000, 5000}, changes{60, 10},
        logins{10, 0.1};
};

class door {
public:
    explicit door(sessions& of) : sessions_(of) {}
    admission admit(const knock& at, const accounts& known, const moment& when);
    // Before a password or a code is looked at.
    admission may_log_in(const std::string& from, double precise_s);

private:
    admission by_cookie(const knock& at, std::string_view id, std::int64_t now_s);
    sessions& sessions_;
    rate_limiter strangers_{door_limits::strangers}, requests_{door_limits::requests},
        changes_{door_limits::changes}, logins_{door_limits::logins};
};

} // namespace kagemusha::control::access
