// SPDX-License-Identifier: GPL-2.0-or-later
//
// `kage job …`: a program of a user in a VM whose host may die: it is begun once, and its output followed from any
// host on which the VM runs, so that files get all of it, and none twice.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>

namespace kagemusha::control::job {

// As daemon::add_cluster_commands().
std::function<std::function<int()>()> add_job_commands(CLI::App& app);

} // namespace kagemusha::control::job
