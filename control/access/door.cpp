// SPDX-License-Identifier: GPL-2.0-or-later
//
// See door.hpp.
#include "control/access/door.hpp"

#include "control/access/cookie.hpp"
#include "control/access/secrets.hpp"

namespace kagemusha::control::access {

namespace {

constexpr std::string_view bearer_word = "Bearer ";

admission refuse(unsigned status, std::string why, unsigned retry_after_s = 0) {
    return {{}, status, std::move(why), retry_after_s};
}

admission too_often(const rate_limiter& by) {
    return refuse(429, "too many requests: wait a moment", by.retry_after_s());
}

} // namespace

std::string cookie_for(std::string_view id) {
    return set_cookie(cookie_name, id, same_site::strict);
}

std::string cookie_to_forget() {
    return set_cookie(cookie_name, "", same_site::strict, 0);
}

std::string cookie_value(std::string_view cookies, std::string_view name) {
    while (!cookies.empty()) {
        const auto end = std::min(cookies.find(';'), cookies.size());
        auto one = cookies.substr(0, end);
        cookies.remove_prefix(std::min(end + 1, cookies.size()));
        while (one.starts_with(' '))
            one.remove_prefix(1);
        const auto equals = one.find('=');
        if (equals != one.npos && one.substr(0, equals) == name)
            return std::string(one.substr(equals + 1));
    }
    return {};
}

admission door::may_log_in(const std::string& from, double precise_s) {
    if (logins_.allow(from, precise_s))
        return {};
    return refuse(429, "too many attempts to log in from this address: wait a while",
                  logins_.retry_after_s());
}

admission door::by_cookie(const knock& at, std::string_view id, std::int64_t now_s) {
    const auto session = sessions_.find(id, now_s);
    if (!session)
        return {};
    if (at.changes && !same_secret(at.csrf, session->csrf))
        return refuse(403, "this request lacks its page's X-CSRF-Token: load the page again");
    return {{session->user, session->may, at.from, false, sessions::key_of(id)}, 0, {}, 0};
}

admission door::admit(const knock& at, const accounts& known, const moment& when) {
    admission out;
    const bool is_own = at.origin == "https://" + at.host;
    if (at.authorization.empty() && (at.websocket ? !is_own : at.changes && !at.origin.empty() && !is_own)) {
        out = refuse(403, "this request comes from a page of another site");
    } else if (!at.authorization.empty()) {
        const auto who =
            at.authorization.starts_with(bearer_word)
                ? bearer(known, std::string_view(at.authorization).substr(bearer_word.size()), when.now_s)
                : std::nullopt;
        if (who)
            out.who = *who;
        else
            out = refuse(401, "this token is not known, or has expired");
    } else if (const auto id = session_id(at.cookies); !id.empty()) {
        out = by_cookie(at, id, when.session_s);
    }
    out.who.from = at.from;
    if (out.who.may == role::nobody)
        return strangers_.allow(at.from, when.precise_s) ? out : too_often(strangers_);
    const auto name = (out.who.session.empty() ? "token " : "user ") + out.who.name;
    if (!requests_.allow(name, when.precise_s))
        return too_often(requests_);
    if (at.changes && !changes_.allow(name, when.precise_s))
        return too_often(changes_);
    return out;
}

} // namespace kagemusha::control::access
