// SPDX-License-Identifier: GPL-2.0-or-later
//
// The members of a request about people: an object with texts and numbers, all of which are known.
#pragma once

#include "control/daemon/api.hpp"

#include <optional>
#include <string_view>
#include <vector>

namespace kagemusha::control::daemon {

struct request_members {
    std::string user, password, code, role;
    std::int64_t days = 90;
};

// Those of `allowed`; nothing: `wrong` says why not.
std::optional<request_members> read_members(const std::string& body,
                                            const std::vector<std::string_view>& allowed, api_answer& wrong);

} // namespace kagemusha::control::daemon
