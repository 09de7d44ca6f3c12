// SPDX-License-Identifier: GPL-2.0-or-later
//
// `kage cluster …`: the command line of the daemon's API.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>

namespace kagemusha::control::daemon {

// Adds `daemon` and `cluster` with all that is below it. After the words were parsed: what to call, whose
// result is the tool's exit status; nothing when neither was named.
std::function<std::function<int()>()> add_cluster_commands(CLI::App& app);

} // namespace kagemusha::control::daemon
