// SPDX-License-Identifier: GPL-2.0-or-later
//
// See http_message.hpp.
#include "control/portal/http_message.hpp"

#include <boost/beast/websocket/rfc6455.hpp>

namespace kagemusha::control::portal {

namespace {

// Nothing of another site, nothing inline, in nobody's frame. xterm.js sets styles.
constexpr char content_policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

} // namespace

http::response<http::string_body> to_response(reply from, bool head, bool keep_alive) {
    http::response<http::string_body> out{static_cast<http::status>(from.status), 11};
    out.set(http::field::content_type, from.type);
    out.set(http::field::cache_control, "no-store");
    out.set("Content-Security-Policy", content_policy);
    out.set("X-Content-Type-Options", "nosniff");
    out.set("Referrer-Policy", "no-referrer");
    out.set("Cross-Origin-Opener-Policy", "same-origin");
    for (const auto& [name, value] : from.headers)
        if (name == "Set-Cookie")
            out.insert(name, value); // there may be several
        else
            out.set(name, value);
    out.keep_alive(keep_alive);
    out.body() = std::move(from.body);
    out.prepare_payload();
    if (head)
        out.body().clear(); // its length stays
    return out;
}

request to_request(http::request<http::string_body>& got, const std::string& from) {
    request out;
    out.method = std::string(got.method_string());
    out.target = std::string(got.target());
    out.from = from;
    out.websocket = boost::beast::websocket::is_upgrade(got);
    const std::pair<const char*, std::string request::*> headers[] = {
        {"If-Match", &request::if_match}, {"If-None-Match", &request::if_none_match},
        {"Cookie", &request::cookies},    {"Authorization", &request::authorization},
        {"Origin", &request::origin},     {"Host", &request::host},
        {"X-CSRF-Token", &request::csrf}, {"Content-Type", &request::content_type}};
    for (const auto& [name, member] : headers)
        out.*member = std::string(got[name]);
    out.body = std::move(got.body());
    return out;
}

} // namespace kagemusha::control::portal
