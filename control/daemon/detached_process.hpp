// SPDX-License-Identifier: GPL-2.0-or-later
//
// Processes without a terminal: what they say goes into a log. A detached one outlives the daemon, which notices its
// end while it lives.
#pragma once

#include "control/base/process.hpp"

#include <optional>
#include <string>
#include <vector>

namespace kagemusha::control::daemon {

// Output and errors go into `log`, which is emptied; there is no input. Nothing and a sentence in `error`.
std::optional<child_process> start_logged(spawn_request request, const std::string& log, std::string& error);
std::optional<child_process> start_detached(const std::vector<std::string>& command, const std::string& log,
                                            std::string& error);

} // namespace kagemusha::control::daemon
