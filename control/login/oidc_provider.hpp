// SPDX-License-Identifier: GPL-2.0-or-later
//
// What an OpenID provider says of itself: where it is asked (its discovery document), with which keys it signs (a
// JSON Web Key Set), and what it answers for a code. All of it is a stranger's: sizes, counts and kinds are checked
// before anything is kept, and what has no use here is not read.
//
// Pure. Sources: OpenID Connect Discovery 1.0, RFC 6749, RFC 7517.
#pragma once

#include "control/login/settings.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control::login {

struct oidc_limits {
    static constexpr std::size_t answer_bytes = 256 << 10; // of any answer of a provider's
    static constexpr std::size_t keys = 64, key_bytes = 2048;
    static constexpr std::size_t token_bytes = 32 << 10;
    static constexpr std::size_t code_bytes = 4096;
    static constexpr std::size_t name_bytes = 128, groups = 1024, group_bytes = 256;
};

struct provider {
    std::string authorization, token, keys; // https:// addresses
    bool takes_basic = true;                // the client's secret in a header, else in the body
    bool names_itself = false;              // as `iss` beside a code (RFC 9207)
};
// Nothing and a sentence in `why`.
std::optional<provider> parse_discovery(std::string_view text, const std::string& issuer, std::string& why);

// A public key for RS256 or ES256: no other one is kept.
struct provider_key {
    std::string id; // its kid; "": none
    std::string algorithm;
    std::string jwk; // the members that make the key, as JSON
};
std::optional<std::vector<provider_key>> parse_keys(std::string_view text, std::string& why);

// The ID token in the answer for a code.
std::optional<std::string> parse_token_answer(unsigned status, std::string_view text, std::string& why);

// ---- requests

std::string url_encoded(std::string_view text);
// Of a query or a form; "": it is not there, or there twice.
std::string parameter(std::string_view query, std::string_view name);
std::string challenge_of(std::string_view verifier); // PKCE, S256

std::string authorization_url(const provider& at, const oidc_settings& ours, std::string_view state,
                              std::string_view nonce, std::string_view verifier);
struct token_request {
    std::string url, body, authorization; // a header; "": none
};
token_request request_for(const provider& at, const oidc_settings& ours, std::string_view code,
                          std::string_view verifier);

} // namespace kagemusha::control::login
