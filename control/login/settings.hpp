// SPDX-License-Identifier: GPL-2.0-or-later
//
// How people of elsewhere log in at the portal: the host's own users by PAM, an organisation's by OpenID Connect,
// and which of their groups has which role. One file, docs/portal.md has its keys:
//
//   [pam]                                    [oidc]
//   service = "kagemusha"                    issuer = "https://sso.example"
//   admins = ["sudo"]                        client-id = "kagemusha"
//                                            portal = "https://gpu.example:7443"
//                                            operators = ["gpu-users"]
#pragma once

#include "control/access/role.hpp"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kagemusha::control::login {

// Names of groups (PAM), values of a claim (OIDC). Who is in none of them may nothing.
struct role_rules {
    std::vector<std::string> viewers, operators, admins;
    bool are_empty() const { return viewers.empty() && operators.empty() && admins.empty(); }
};
// The highest that one of them has.
access::role role_by(const role_rules& rules, const std::vector<std::string>& groups);

struct pam_settings {
    std::string service = "kagemusha"; // a file of /etc/pam.d
    role_rules roles;
};

struct oidc_settings {
    std::string issuer, client_id;
    std::string client_secret; // what the file has; "": a public client, with PKCE alone
    std::string portal;        // its origin as browsers see it: https://HOST[:PORT]
    std::string label = "OpenID Connect";
    std::string ca_file; // "": the system's
    std::string role_claim = "groups", name_claim = "preferred_username";
    std::vector<std::string> scopes{"openid", "profile"};
    role_rules roles;
    std::string redirect_uri() const;
};
inline constexpr char oidc_path[] = "/v1/login/oidc";
inline constexpr char oidc_callback_path[] = "/v1/login/oidc/callback";

struct settings {
    std::optional<pam_settings> pam;
    std::optional<oidc_settings> oidc;
};

// "https://HOST[:PORT]" and maybe a path, without user, query, fragment and blanks.
bool is_https_url(std::string_view url);

// Pure. `read`: the text of the file with the client's secret, or nothing and a sentence.
using secret_reader = std::optional<std::string> (*)(const std::string& path, std::string& why);
settings parse_settings(std::string_view text, const std::string& file, secret_reader read,
                        std::vector<std::string>& errors);

// Of a file that only its owner, root or this user, can change. No file: nothing is set, which is no error. With
// an error nothing is set, so that half a file lets nobody in.
settings load_settings(const std::string& file, std::vector<std::string>& errors);

} // namespace kagemusha::control::login
