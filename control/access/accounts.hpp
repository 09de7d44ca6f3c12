// SPDX-License-Identifier: GPL-2.0-or-later
//
// Who may use the API over the network: users with a password, and tokens for programs, each with a role. A
// value: one JSON document, as etcd keeps it.
#pragma once

#include "control/access/role.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace kagemusha::control::access {

inline constexpr std::size_t most_accounts = 100; // of users, and of tokens: one answer of etcd holds them

struct user {
    role may = role::viewer;
    std::string password; // hash_password()
    bool operator==(const user&) const = default;
};

struct token {
    role may = role::viewer;
    std::string digest; // digest_of() what its owner has
    std::int64_t expires_at_s = 0;
    bool operator==(const token&) const = default;
};

struct accounts {
    std::map<std::string, user> users;
    std::map<std::string, token> tokens;
    bool operator==(const accounts&) const = default;
};

// 1 to 32 small letters, digits, '.', '_' and '-', a letter first.
bool is_account_name(std::string_view name);

nlohmann::json to_json(const accounts& from);
// Nothing: it is none of this release, or damaged.
std::optional<accounts> parse_accounts(const nlohmann::json& from);

// Who has this token now.
std::optional<caller> bearer(const accounts& of, std::string_view secret, std::int64_t now_s);

} // namespace kagemusha::control::access
