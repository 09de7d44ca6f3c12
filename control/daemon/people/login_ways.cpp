// SPDX-License-Identifier: GPL-2.0-or-later
//
// See login_ways.hpp.
#include "control/daemon/people/login_ways.hpp"

#include "control/daemon/people/people.hpp"

namespace kagemusha::control::daemon {

login_ways make_login_ways(const std::string& file, std::string tool,
                           std::function<void(const std::string& text)> log) {
    std::vector<std::string> errors;
    auto found = login::load_settings(file, errors);
    for (const auto& error : errors)
        log(error);
    if (!errors.empty())
        log("so nobody logs in by PAM or OpenID Connect; accounts of the portal count");
    login_ways out;
    out.pam = std::move(found.pam);
    if (found.oidc)
        out.oidc = std::make_unique<login::oidc_login>(
            std::move(*found.oidc), login::oidc_login::environment{new_secret, login::ask_https});
    out.tool = std::move(tool);
    out.log = std::move(log);
    return out;
}

} // namespace kagemusha::control::daemon
