// SPDX-License-Identifier: GPL-2.0-or-later
//
// See oidc_provider.hpp.
#include "control/login/oidc_provider.hpp"

#include "control/base/base64.hpp"
#include "control/base/json_text.hpp"
#include "control/login/base64url.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace kagemusha::control::login {

using json = nlohmann::json;

namespace {

bool names(const json& from, const char* key, std::string_view wanted) {
    const auto found = from.find(key);
    return found != from.end() && found->is_array() &&
           std::ranges::any_of(*found, [&](const auto& one) { return one == wanted; });
}

std::optional<json> object_of(std::string_view text, const char* what, std::string& why) {
    if (text.size() > oidc_limits::answer_bytes) {
        why = fmt::format("{} has more than {} KiB", what, oidc_limits::answer_bytes >> 10);
        return std::nullopt;
    }
    auto parsed = json::parse(text, nullptr, false);
    if (parsed.is_object())
        return parsed;
    why = fmt::format("{} is no JSON object", what);
    return std::nullopt;
}

// A number as a JWK has it: bytes, base64url.
bool is_key_text(const std::string& text) {
    return !text.empty() && text.size() <= oidc_limits::key_bytes && is_base64url(text);
}

// Some providers leave out its zeros in front, against RFC 7518, 6.2.1.2; libcjose wants all of it.
std::string whole_coordinate(const std::string& text) {
    constexpr std::size_t coordinate_bytes = 32; // of P-256
    auto bytes = from_base64url(text);
    if (bytes.size() < coordinate_bytes)
        bytes.insert(0, coordinate_bytes - bytes.size(), '\0');
    return to_base64url(bytes);
}

std::optional<provider_key> key_of(const json& from) {
    if (!from.is_object())
        return std::nullopt;
    const auto use = text_in(from, "use"), type = text_in(from, "kty"), said = text_in(from, "alg");
    provider_key out{text_in(from, "kid"), {}, {}};
    if ((!use.empty() && use != "sig") || out.id.size() > oidc_limits::name_bytes)
        return std::nullopt;
    json whole{{"kty", type}};
    std::vector<const char*> members;
    if (type == "RSA") {
        out.algorithm = "RS256";
        members = {"n", "e"};
    } else if (type == "EC" && text_in(from, "crv") == "P-256") {
        out.algorithm = "ES256";
        members = {"x", "y"};
        whole["crv"] = "P-256";
    }
    if (members.empty() || (!said.empty() && said != out.algorithm))
        return std::nullopt;
    for (const auto* const member : members) {
        whole[member] = text_in(from, member);
        if (!is_key_text(whole[member].get_ref<const std::string&>()))
            return std::nullopt;
        if (type == "EC")
            whole[member] = whole_coordinate(whole[member].get_ref<const std::string&>());
    }
    out.jwk = whole.dump();
    return out;
}

std::string form(std::initializer_list<std::pair<const char*, std::string_view>> members) {
    std::string out;
    for (const auto& [name, value] : members)
        out += fmt::format("{}{}={}", out.empty() ? "" : "&", name, url_encoded(value));
    return out;
}

} // namespace

std::optional<provider> parse_discovery(std::string_view text, const std::string& issuer, std::string& why) {
    const auto from = object_of(text, "the provider's discovery document", why);
    if (!from)
        return std::nullopt;
    if (text_in(*from, "issuer") != issuer) {
        why = "the provider's discovery document is another issuer's: `issuer` must be what it names, to the "
              "letter";
        return std::nullopt;
    }
    provider out{text_in(*from, "authorization_endpoint"), text_in(*from, "token_endpoint"),
                 text_in(*from, "jwks_uri"), true, false};
    for (const auto* const url : {&out.authorization, &out.token, &out.keys}) {
        // Its query may follow: others' addresses have one.
        if (!is_https_url(std::string_view(*url).substr(0, url->find('?'))) ||
            std::ranges::any_of(*url,
                                [](char c) { return c <= 0x20 || c >= 0x7f || c == '#' || c == '"'; })) {
            why = "the provider's discovery document lacks an https:// address of authorization_endpoint, "
                  "token_endpoint or jwks_uri";
            return std::nullopt;
        }
    }
    if (from->contains("code_challenge_methods_supported") &&
        !names(*from, "code_challenge_methods_supported", "S256")) {
        why = "the provider does not take PKCE with S256";
        return std::nullopt;
    }
    // Without the list it is client_secret_basic.
    constexpr char methods[] = "token_endpoint_auth_methods_supported";
    out.takes_basic = !from->contains(methods) || names(*from, methods, "client_secret_basic");
    const auto iss = from->find("authorization_response_iss_parameter_supported");
    out.names_itself = iss != from->end() && *iss == true;
    return out;
}

std::optional<std::vector<provider_key>> parse_keys(std::string_view text, std::string& why) {
    const auto from = object_of(text, "the provider's key set", why);
    if (!from)
        return std::nullopt;
    const auto keys = from->find("keys");
    if (keys == from->end() || !keys->is_array() || keys->size() > oidc_limits::keys) {
        why = fmt::format("the provider's key set has no list of at most {} keys", oidc_limits::keys);
        return std::nullopt;
    }
    std::vector<provider_key> out;
    for (const auto& one : *keys)
        if (auto key = key_of(one))
            out.push_back(std::move(*key));
    if (!out.empty())
        return out;
    why = "the provider's key set has no key for RS256 or ES256";
    return std::nullopt;
}

std::optional<std::string> parse_token_answer(unsigned status, std::string_view text, std::string& why) {
    constexpr std::size_t longest_error = 80;
    const auto from = object_of(text, "the provider's answer for a code", why);
    if (!from)
        return std::nullopt;
    auto token = text_in(*from, "id_token");
    if (status == 200 && !token.empty() && token.size() <= oidc_limits::token_bytes)
        return token;
    why = fmt::format("the provider gives no ID token for a code: status {} {}", status,
                      text_in(*from, "error").substr(0, longest_error));
    return std::nullopt;
}

std::string url_encoded(std::string_view text) {
    std::string out;
    for (const char c : text) {
        const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                              c == '-' || c == '.' || c == '_' || c == '~';
        out += is_plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
    return out;
}

namespace {

int digit_of(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

std::string url_decoded(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const int high = text[i] == '%' && i + 2 < text.size() ? digit_of(text[i + 1]) : -1;
        const int low = high >= 0 ? digit_of(text[i + 2]) : -1;
        if (low >= 0) {
            out += static_cast<char>(high * 16 + low);
            i += 2;
        } else {
            out += text[i] == '+' ? ' ' : text[i];
        }
    }
    return out;
}

} // namespace

std::string parameter(std::string_view query, std::string_view name) {
    std::optional<std::string> out;
    while (!query.empty()) {
        const auto end = std::min(query.find('&'), query.size());
        const auto one = query.substr(0, end);
        query.remove_prefix(std::min(end + 1, query.size()));
        const auto equals = std::min(one.find('='), one.size());
        if (one.substr(0, equals) != name)
            continue;
        if (out)
            return {};
        out = url_decoded(one.substr(std::min(equals + 1, one.size())));
    }
    return out.value_or(std::string());
}

std::string challenge_of(std::string_view verifier) {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
    unsigned size = 0;
    if (EVP_Digest(verifier.data(), verifier.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1)
        std::abort(); // no memory
    return to_base64url({reinterpret_cast<const char*>(digest.data()), size});
}

std::string authorization_url(const provider& at, const oidc_settings& ours, std::string_view state,
                              std::string_view nonce, std::string_view verifier) {
    const auto query = form({{"response_type", "code"},
                             {"client_id", ours.client_id},
                             {"redirect_uri", ours.redirect_uri()},
                             {"scope", fmt::format("{}", fmt::join(ours.scopes, " "))},
                             {"state", state},
                             {"nonce", nonce},
                             {"code_challenge", challenge_of(verifier)},
                             {"code_challenge_method", "S256"}});
    return at.authorization + (at.authorization.find('?') == std::string::npos ? "?" : "&") + query;
}

token_request request_for(const provider& at, const oidc_settings& ours, std::string_view code,
                          std::string_view verifier) {
    token_request out{at.token,
                      form({{"grant_type", "authorization_code"},
                            {"code", code},
                            {"redirect_uri", ours.redirect_uri()},
                            {"code_verifier", verifier}}),
                      {}};
    if (!ours.client_secret.empty() && at.takes_basic) {
        out.authorization =
            "Basic " + to_base64(url_encoded(ours.client_id) + ":" + url_encoded(ours.client_secret));
        return out;
    }
    out.body += "&" + form({{"client_id", ours.client_id}});
    if (!ours.client_secret.empty())
        out.body += "&" + form({{"client_secret", ours.client_secret}});
    return out;
}

} // namespace kagemusha::control::login
