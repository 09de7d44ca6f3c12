// SPDX-License-Identifier: GPL-2.0-or-later
//
// The part of the API (api.hpp) that logs people in and out: by a password of the portal's own or of the host's
// (PAM), by a printed code, by an OpenID provider. What waits for others waits without the API's lock.
#include "control/access/secrets.hpp"
#include "control/daemon/api.hpp"
#include "control/daemon/people/request_members.hpp"
#include "control/daemon/people/unlocked.hpp"
#include "control/login/pam_login.hpp"

#include <fmt/format.h>

namespace kagemusha::control::daemon {

using access::role;
using json = nlohmann::json;

namespace {

json as_json(const access::session& of) {
    return {{"user", of.user}, {"role", to_text(of.may)}, {"csrf", of.csrf}};
}

// To a page of ours, which has a sentence for this end of a login.
api_answer back_to_page(login::oidc_end end) {
    api_answer out{303, json::object()};
    out.location = end == login::oidc_end::in ? "/" : fmt::format("/#login-{}", to_text(end));
    return out;
}

} // namespace

api_answer api::who_am_i(const api_request& request, const place&) {
    json out{{"user", request.who.name}, {"role", to_text(request.who.may)}, {"csrf", ""}};
    if (const auto session = people_.sessions.of_key(request.who.session))
        out["csrf"] = session->csrf;
    return {200, std::move(out)};
}

api_answer api::log_out(const api_request& request, const place&) {
    people_.sessions.end_key(request.who.session);
    api_answer out{200, {{"done", true}}};
    out.cookies = {access::cookie_to_forget()};
    return out;
}

api_answer api::let_in(const api_request& request, const std::string& user, role may) {
    const auto id = people_.begin_session(user, may);
    api_answer out{200, as_json(*people_.sessions.of_key(access::sessions::key_of(id)))};
    out.cookies = {access::cookie_for(id)};
    out.is = {user, may, request.who.from, false, {}};
    return out;
}

api_answer api::log_in(const api_request& request, const place&) {
    const auto begun = std::chrono::steady_clock::now();
    api_answer wrong;
    auto got = read_members(request.body, {"user", "password", "code"}, wrong);
    if (!got)
        return wrong;
    if (const auto heard = people_.may_log_in(request.who.from); heard.status != 0)
        return refuse(heard.status, heard.why);
    if (!got->code.empty()) {
        if (const auto whose = people_.use_code(got->code))
            return let_in(request, *whose, role::admin);
        return refuse(401, "this login is not valid any more: `kage portal` prints another one");
    }
    auto out = log_in_by_password(request, got->user, got->password);
    access::forget(got->password);
    if (out.status != 200 && ways_.pam)
        out.hold = std::max(std::chrono::milliseconds(0),
                            std::chrono::duration_cast<std::chrono::milliseconds>(
                                begun + refusal_takes - std::chrono::steady_clock::now()));
    return out;
}

// A name that the portal has is the portal's: its password alone counts.
api_answer api::log_in_by_password(const api_request& request, const std::string& user,
                                   const std::string& password) {
    const auto& users = people_.accounts.known().users;
    const auto found = users.find(user);
    const bool is_known = found != users.end();
    const auto account = is_known ? found->second : access::user{};
    if (is_known || !ways_.pam || request.who.is_local) {
        // An unknown user takes as long as a known one.
        if (access::is_password(password, account.password) && is_known)
            return let_in(request, user, account.may);
    } else {
        login::pam_answer said;
        {
            const unlocked meanwhile(mutex_);
            said = login::ask_pam(ways_.tool, ways_.pam->service, user, password, request.who.from);
        }
        using kind = login::pam_answer::kind;
        const auto may = login::role_by(ways_.pam->roles, said.groups);
        if (said.what == kind::accepted && may != role::nobody)
            return let_in(request, "pam:" + said.user, may);
        const bool is_asked = login::is_pam_name(user); // what can't be a name is in no log
        if (said.what == kind::accepted)
            said.why = "in none of the groups that have a role here";
        ways_.log(fmt::format("PAM, '{}' from {}: {}", is_asked ? user : "?", request.who.from, said.why));
        if (said.what == kind::failed)
            return refuse(503, "the host's PAM gives no answer: the daemon's log says why");
        if (said.what == kind::account_refused)
            return refuse(403, "the host does not let this account in now: it may have expired, or need a "
                               "new password");
        if (said.what == kind::accepted)
            return refuse(403, "this account is in none of the groups that may use this portal");
    }
    return refuse(401, "this user and this password do not fit");
}

// What the page for logging in shows.
api_answer api::ways_to_log_in(const api_request&, const place&) {
    return {200, {{"pam", ways_.pam.has_value()}, {"oidc", ways_.oidc ? ways_.oidc->settings().label : ""}}};
}

api_answer api::begin_oidc(const api_request& request, const place&) {
    if (!ways_.oidc || request.websocket || request.who.is_local)
        return refuse(404, "there is no OpenID provider for this portal");
    if (const auto heard = people_.may_log_in(request.who.from); heard.status != 0)
        return refuse(heard.status, heard.why);
    login::oidc_login::departure left;
    {
        const unlocked meanwhile(mutex_);
        left = ways_.oidc->begin(access::cookie_value(request.cookies, login::visit_cookie), seconds_now());
    }
    if (left.location.empty()) {
        ways_.log("OpenID Connect: " + left.why);
        return back_to_page(login::oidc_end::wrong);
    }
    api_answer out{303, json::object()};
    out.location = left.location;
    out.cookies = {left.cookie};
    return out;
}

// The browser comes back.
api_answer api::finish_oidc(const api_request& request, const place&) {
    if (!ways_.oidc || request.websocket || request.who.is_local)
        return refuse(404, "there is no OpenID provider for this portal");
    const auto mark = std::min(request.target.find('?'), request.target.size() - 1);
    login::oidc_login::arrival came;
    {
        const unlocked meanwhile(mutex_);
        came = ways_.oidc->finish(std::string_view(request.target).substr(mark + 1),
                                  access::cookie_value(request.cookies, login::visit_cookie), seconds_now());
    }
    auto out = back_to_page(came.end);
    const auto user = "oidc:" + came.who.name;
    if (came.end == login::oidc_end::in) {
        auto in = let_in(request, user, came.who.may);
        out.cookies = std::move(in.cookies);
        out.is = std::move(in.is);
    } else {
        ways_.log(fmt::format("OpenID Connect, from {}: {}", request.who.from, came.why));
    }
    out.cookies.push_back(login::visit_cookie_to_forget());
    return out;
}

} // namespace kagemusha::control::daemon
