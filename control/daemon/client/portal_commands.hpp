// SPDX-License-Identifier: GPL-2.0-or-later
//
// `kage portal …`: opens the portal, starting the daemon if none runs, and says who may use it.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>

namespace kagemusha::control::daemon {

// As add_cluster_commands().
std::function<std::function<int()>()> add_portal_commands(CLI::App& app);

} // namespace kagemusha::control::daemon
