// SPDX-License-Identifier: GPL-2.0-or-later
//
// See oidc_login.hpp.
#include "control/login/oidc_login.hpp"

#include "control/access/secrets.hpp"

#include <fmt/format.h>

namespace kagemusha::control::login {

namespace {

constexpr std::size_t secret_text = 64; // of environment::random, in a cookie

// A word of the provider's, in the log.
std::string shown(std::string_view text) {
    constexpr std::size_t longest = 60;
    std::string out;
    for (const char c : text.substr(0, longest))
        out += c >= 0x20 && c < 0x7f ? c : '?';
    return out;
}

bool is_secret(std::string_view text) {
    return text.size() == secret_text && text.find_first_not_of("0123456789abcdef") == text.npos;
}

} // namespace

const char* to_text(oidc_end end) {
    switch (end) {
    case oidc_end::in:
        return "in";
    case oidc_end::stale:
        return "stale";
    case oidc_end::refused:
        return "refused";
    case oidc_end::nobody:
        return "nobody";
    case oidc_end::wrong:
        return "wrong";
    }
    return "";
}

oidc_login::oidc_login(oidc_settings ours, environment around)
    : ours_(std::move(ours)), around_(std::move(around)) {}

std::optional<std::string> oidc_login::fetch(const std::string& url, std::string& why) {
    auto got = around_.ask({url, ours_.ca_file}, why);
    if (got && got->status == 200)
        return std::move(got->body);
    if (got)
        why = fmt::format("{} answers with status {}", url, got->status);
    return std::nullopt;
}

std::optional<provider> oidc_login::find_provider(std::int64_t now_s, std::string& why) {
    {
        const std::lock_guard lock(mutex_);
        if (provider_ && now_s < asked_at_s_ + known_s)
            return provider_;
        if (!problem_.empty() && now_s < asked_at_s_ + not_again_s) {
            why = problem_;
            return std::nullopt;
        }
    }
    auto base = ours_.issuer;
    if (base.ends_with('/'))
        base.pop_back();
    const auto text = fetch(base + "/.well-known/openid-configuration", why);
    auto found = text ? parse_discovery(*text, ours_.issuer, why) : std::nullopt;
    const std::lock_guard lock(mutex_);
    asked_at_s_ = now_s;
    problem_ = found ? std::string() : why;
    provider_ = found;
    return found;
}

std::optional<std::vector<provider_key>> oidc_login::find_keys(const provider& at, bool anew,
                                                               std::string& why) {
    {
        const std::lock_guard lock(mutex_);
        if (!anew && !keys_.empty())
            return keys_;
    }
    const auto text = fetch(at.keys, why);
    auto found = text ? parse_keys(*text, why) : std::nullopt;
    if (found) {
        const std::lock_guard lock(mutex_);
        keys_ = *found;
    }
    return found;
}

oidc_login::departure oidc_login::begin(std::string browser, std::int64_t now_s) {
    departure out;
    const auto at = find_provider(now_s, out.why);
    if (!at)
        return out;
    if (!is_secret(browser))
        browser = around_.random();
    const auto state = around_.random();
    const visit what{around_.random(), around_.random()};
    out.location = authorization_url(*at, ours_, state, what.nonce, what.verifier);
    out.cookie = visit_cookie_for(browser);
    const std::lock_guard lock(mutex_);
    visits_.leave(state, browser, what, now_s);
    return out;
}

// The claims of a token that its provider has signed.
std::optional<nlohmann::json> oidc_login::redeem(const provider& at, std::string_view code, const visit& from,
                                                 std::string& why) {
    const auto wanted = request_for(at, ours_, code, from.verifier);
    const auto said = around_.ask({wanted.url, ours_.ca_file, true, wanted.body, wanted.authorization}, why);
    const auto token = said ? parse_token_answer(said->status, said->body, why) : std::nullopt;
    if (!token)
        return std::nullopt;
    for (const bool anew : {false, true}) { // it may sign with a new key since we asked for them
        const auto keys = find_keys(at, anew, why);
        if (!keys)
            return std::nullopt;
        nlohmann::json claims;
        const auto found = check_signature(*token, *keys, claims, why);
        if (found == signature::fits)
            return claims;
        if (found == signature::wrong)
            return std::nullopt;
    }
    return std::nullopt;
}

oidc_login::arrival oidc_login::finish(std::string_view query, std::string_view browser, std::int64_t now_s) {
    const auto over = [](oidc_end how, std::string why) { return arrival{how, {}, std::move(why)}; };
    std::optional<visit> from;
    {
        const std::lock_guard lock(mutex_);
        from = visits_.come_back(parameter(query, "state"), browser, now_s);
    }
    if (!from)
        return over(oidc_end::stale, "this login was not begun by this browser, or too long ago");
    std::string why;
    const auto at = find_provider(now_s, why);
    if (!at)
        return over(oidc_end::wrong, why);
    const auto named = parameter(query, "iss");
    if (named.empty() ? at->names_itself : named != ours_.issuer)
        return over(oidc_end::wrong, "this is another provider's answer");
    const auto code = parameter(query, "code"), error = parameter(query, "error");
    if (!error.empty() || code.empty() || code.size() > oidc_limits::code_bytes)
        return over(oidc_end::refused, fmt::format("the provider gives no code: '{}'", shown(error)));
    const auto claims = redeem(*at, code, *from, why);
    if (!claims)
        return over(oidc_end::wrong, why);
    why = why_not(*claims, {ours_.issuer, ours_.client_id, from->nonce, now_s});
    if (!why.empty())
        return over(oidc_end::wrong, why);
    auto who = person_of(*claims, ours_, why);
    if (!who)
        return over(oidc_end::wrong, why);
    if (who->may == access::role::nobody)
        return {oidc_end::nobody, *who,
                fmt::format("'{}' has no role here: '{}' names none of our groups", who->name,
                            shown(ours_.role_claim))};
    return {oidc_end::in, std::move(*who), {}};
}

} // namespace kagemusha::control::login
