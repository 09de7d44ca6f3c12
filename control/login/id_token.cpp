// SPDX-License-Identifier: GPL-2.0-or-later
//
// See id_token.hpp.
#include "control/login/id_token.hpp"

#include "control/access/secrets.hpp"
#include "control/base/json_text.hpp"
#include "control/login/base64url.hpp"

#include <cjose/cjose.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

namespace kagemusha::control::login {

using json = nlohmann::json;

namespace {

constexpr std::size_t least_rsa_bits = 2048;

using jws_type = std::unique_ptr<cjose_jws_t, void (*)(cjose_jws_t*)>;
using jwk_type = std::unique_ptr<cjose_jwk_t, bool (*)(cjose_jwk_t*)>;

signature wrong(std::string& why, const char* what) {
    why = fmt::format("the ID token {}", what);
    return signature::wrong;
}

std::string header_text(cjose_jws_t* token, const char* name) {
    cjose_err error{};
    const auto* const text = cjose_header_get(cjose_jws_get_protected(token), name, &error);
    return text ? text : "";
}

bool header_has(cjose_jws_t* token, const char* name) {
    cjose_err error{};
    char* const raw = cjose_header_get_raw(cjose_jws_get_protected(token), name, &error);
    const bool has = raw != nullptr;
    cjose_get_dealloc()(raw);
    return has;
}

bool is_shape_of_jws(std::string_view token) {
    if (token.size() > oidc_limits::token_bytes || std::ranges::count(token, '.') != 2)
        return false;
    for (std::size_t i = 0; i < 3; ++i) {
        const auto end = std::min(token.find('.'), token.size());
        if (end == 0 || !is_base64url(token.substr(0, end)))
            return false;
        token.remove_prefix(std::min(end + 1, token.size()));
    }
    return true;
}

const provider_key* key_for(const std::vector<provider_key>& keys, const std::string& algorithm,
                            const std::string& id) {
    const provider_key* out = nullptr;
    for (const auto& one : keys) {
        if (one.algorithm != algorithm || (!id.empty() && one.id != id))
            continue;
        if (out)
            return nullptr; // two that fit: which one is a guess
        out = &one;
    }
    return out;
}

// A number of seconds: not one that overflows when something is added.
std::optional<std::int64_t> seconds_in(const json& claims, const char* name) {
    constexpr double most = 1e12;
    const auto found = claims.find(name);
    if (found == claims.end() || !found->is_number())
        return std::nullopt;
    const auto value = found->get<double>();
    return std::isfinite(value) && value >= 0 && value <= most
               ? std::optional(static_cast<std::int64_t>(value))
               : std::nullopt;
}

// Of one that is for several clients, ours must be the one that asked.
bool is_for(const json& claims, const std::string& client_id) {
    const auto audience = claims.find("aud");
    if (audience == claims.end())
        return false;
    const bool is_one = audience->is_string(), is_list = audience->is_array();
    const auto ours = [&](const json& one) {
        return one.is_string() && one.get_ref<const std::string&>() == client_id;
    };
    const bool is_named = (is_one && ours(*audience)) || (is_list && std::ranges::any_of(*audience, ours));
    const bool names_asker = claims.contains("azp");
    const bool asked = text_in(claims, "azp") == client_id;
    return is_named && (names_asker ? asked : is_one || audience->size() == 1);
}

bool is_name(std::string_view name) {
    return !name.empty() && name.size() <= oidc_limits::name_bytes &&
           name.find_first_not_of(
               "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@|/:+=-") == name.npos;
}

// "groups", and "realm_access.roles" if no claim has the whole name: a member of a member.
const json* claim(const json& claims, const std::string& name) {
    if (const auto whole = claims.find(name); whole != claims.end())
        return &*whole;
    const json* at = &claims;
    for (std::string_view left = name; !left.empty();) {
        const auto end = std::min(left.find('.'), left.size());
        const auto next = at->is_object() ? at->find(std::string(left.substr(0, end))) : at->end();
        if (!at->is_object() || next == at->end())
            return nullptr;
        at = &*next;
        left.remove_prefix(std::min(end + 1, left.size()));
    }
    return at;
}

} // namespace

signature check_signature(std::string_view token, const std::vector<provider_key>& keys, json& claims,
                          std::string& why) {
    if (!is_shape_of_jws(token))
        return wrong(why, "is no signed token of three parts");
    cjose_err error{};
    const jws_type parsed(cjose_jws_import(token.data(), token.size(), &error), cjose_jws_release);
    if (!parsed)
        return wrong(why, "can't be read");
    const auto algorithm = header_text(parsed.get(), "alg"), id = header_text(parsed.get(), "kid");
    if (algorithm != "RS256" && algorithm != "ES256")
        return wrong(why, "is signed neither with RS256 nor with ES256");
    if (header_has(parsed.get(), "crit"))
        return wrong(why, "has extensions that must be understood, and are not");
    const auto* const key = key_for(keys, algorithm, id);
    if (!key) {
        wrong(why, "is signed by a key that the provider's set does not have");
        return signature::unknown_key;
    }
    const jwk_type jwk(cjose_jwk_import(key->jwk.data(), key->jwk.size(), &error), cjose_jwk_release);
    if (!jwk || (algorithm == "RS256" && cjose_jwk_get_keysize(jwk.get(), &error) < least_rsa_bits))
        return wrong(why, "is signed by a key that can't be used: RSA needs 2048 bits");
    if (!cjose_jws_verify(parsed.get(), jwk.get(), &error))
        return wrong(why, "has a signature that does not fit");
    std::uint8_t* bytes = nullptr; // the token's
    std::size_t size = 0;
    if (!cjose_jws_get_plaintext(parsed.get(), &bytes, &size, &error))
        return wrong(why, "can't be read");
    claims = json::parse(bytes, bytes + size, nullptr, false);
    return claims.is_object() ? signature::fits : wrong(why, "holds no JSON object");
}

std::string why_not(const json& claims, const expected_claims& expected) {
    const auto expires = seconds_in(claims, "exp"), made = seconds_in(claims, "iat");
    const auto latest = expected.now_s + expected_claims::clocks_differ_s;
    if (text_in(claims, "iss") != expected.issuer)
        return "the ID token is another issuer's";
    if (!is_for(claims, expected.client_id))
        return "the ID token was made for another client";
    if (!expires || *expires + expected_claims::clocks_differ_s <= expected.now_s)
        return "the ID token has expired";
    if (!made || *made > latest)
        return "the ID token is of the future: do the clocks agree?";
    if (claims.contains("nbf") && seconds_in(claims, "nbf").value_or(latest + 1) > latest)
        return "the ID token does not count yet: do the clocks agree?";
    if (expected.nonce.empty() || !access::same_secret(text_in(claims, "nonce"), expected.nonce))
        return "the ID token was made for another login";
    if (text_in(claims, "sub").empty())
        return "the ID token names nobody";
    return {};
}

std::optional<person> person_of(const json& claims, const oidc_settings& ours, std::string& why) {
    person out{text_in(claims, ours.name_claim.c_str()), access::role::nobody};
    if (!is_name(out.name))
        out.name = text_in(claims, "sub");
    if (!is_name(out.name)) {
        why = fmt::format("neither '{}' nor 'sub' is a name of at most {} letters, digits and ._@|/:+=-",
                          ours.name_claim, oidc_limits::name_bytes);
        return std::nullopt;
    }
    std::vector<std::string> groups;
    const auto add = [&](const json& one) {
        if (one.is_string() && groups.size() < oidc_limits::groups &&
            one.get_ref<const std::string&>().size() <= oidc_limits::group_bytes)
            groups.push_back(one.get<std::string>());
    };
    if (const auto* const named = claim(claims, ours.role_claim)) {
        if (named->is_array())
            std::ranges::for_each(*named, add);
        else
            add(*named);
    }
    out.may = role_by(ours.roles, groups);
    return out;
}

} // namespace kagemusha::control::login
