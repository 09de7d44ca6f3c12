// SPDX-License-Identifier: GPL-2.0-or-later
//
// An ID token: whose signature it has (libcjose), whether it was made for this login of this portal now, and what
// it says of a person. Everything in it is a stranger's until the signature fits, and checked then all the same.
//
// Pure: time is an argument. Sources: OpenID Connect Core 1.0, 3.1.3.7; RFC 7515.
#pragma once

#include "control/login/oidc_provider.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kagemusha::control::login {

enum class signature { fits, unknown_key, wrong };

// RS256 and ES256 alone, by a key of `keys` that is for that. unknown_key: the provider may have a newer set.
signature check_signature(std::string_view token, const std::vector<provider_key>& keys,
                          nlohmann::json& claims, std::string& why);

struct expected_claims {
    std::string issuer, client_id, nonce;
    std::int64_t now_s = 0; // since 1970
    static constexpr std::int64_t clocks_differ_s = 60;
};
// "" or why this token is none for this login.
std::string why_not(const nlohmann::json& claims, const expected_claims& expected);

struct person {
    std::string name;
    access::role may = access::role::nobody;
};
// Nothing and a sentence: it has no name that can be written into a log.
std::optional<person> person_of(const nlohmann::json& claims, const oidc_settings& ours, std::string& why);

} // namespace kagemusha::control::login
