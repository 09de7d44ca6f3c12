// SPDX-License-Identifier: GPL-2.0-or-later
//
// Where people of elsewhere are asked about: the host's PAM, an OpenID provider, or neither; and the log, which has
// what a stranger is not told. Made once, at the daemon's start (control/login/settings.hpp has the file).
#pragma once

#include "control/login/oidc_login.hpp"
#include "control/login/settings.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace kagemusha::control::daemon {

struct login_ways {
    std::optional<login::pam_settings> pam;
    std::unique_ptr<login::oidc_login> oidc;
    std::string tool; // our own program, for PAM's process
    std::function<void(const std::string& text)> log;
};

// With PAM a refusal is known after this time, whoever refused: local accounts are told from others by no clock.
inline constexpr auto refusal_takes = std::chrono::milliseconds(2000);

// Of settings in this file; problems are logged, and then there is none of these ways.
login_ways make_login_ways(const std::string& file, std::string tool,
                           std::function<void(const std::string& text)> log);

} // namespace kagemusha::control::daemon
