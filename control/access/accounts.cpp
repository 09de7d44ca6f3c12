// SPDX-License-Identifier: GPL-2.0-or-later
//
// See accounts.hpp.
#include "control/access/accounts.hpp"

#include "control/access/secrets.hpp"

namespace kagemusha::control::access {

using json = nlohmann::json;

namespace {

constexpr int format = 1;
constexpr std::size_t longest_name = 32;

} // namespace

bool is_account_name(std::string_view name) {
    return !name.empty() && name.size() <= longest_name && name[0] >= 'a' && name[0] <= 'z' &&
           name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789._-") == name.npos;
}

json to_json(const accounts& from) {
    json users = json::object(), tokens = json::object();
    for (const auto& [name, one] : from.users)
        users[name] = {{"role", to_text(one.may)}, {"password", one.password}};
    for (const auto& [name, one] : from.tokens)
        tokens[name] = {
            {"role", to_text(one.may)}, {"digest", one.digest}, {"expires_at_s", one.expires_at_s}};
    return {{"format", format}, {"users", users}, {"tokens", tokens}};
}

std::optional<accounts> parse_accounts(const json& from) {
    try {
        accounts out;
        if (from.at("format") != format || from.at("users").size() > most_accounts ||
            from.at("tokens").size() > most_accounts)
            return std::nullopt;
        for (const auto& [name, one] : from.at("users").items()) {
            const auto may = role_of(one.at("role").get<std::string>());
            if (!may || !is_account_name(name))
                return std::nullopt;
            out.users[name] = {*may, one.at("password").get<std::string>()};
        }
        for (const auto& [name, one] : from.at("tokens").items()) {
            const auto may = role_of(one.at("role").get<std::string>());
            if (!may || !is_account_name(name))
                return std::nullopt;
            out.tokens[name] = {*may, one.at("digest").get<std::string>(),
                                one.at("expires_at_s").get<std::int64_t>()};
        }
        return out;
    } catch (const json::exception&) {
        return std::nullopt;
    }
}

std::optional<caller> bearer(const accounts& of, std::string_view secret, std::int64_t now_s) {
    const auto digest = digest_of(secret);
    for (const auto& [name, one] : of.tokens)
        if (same_secret(one.digest, digest) && now_s < one.expires_at_s)
            return caller{name, one.may, {}, false, {}};
    return std::nullopt;
}

} // namespace kagemusha::control::access
