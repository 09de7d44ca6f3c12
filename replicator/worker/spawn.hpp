// SPDX-License-Identifier: GPL-2.0-or-later
// spawn: starts a worker's process out of a large program with many threads (QEMU).
//
// QEMU ends its devices in an exit handler that it registered before they made anything, so it runs after the
// destructors of everything static that they made; and its other threads go on until then. So nothing static
// of this folder has a destructor (exit_test.cpp).
#pragma once

#include <string>
#include <vector>

#include "base/unique_fd.hpp"

namespace kagemusha::worker {

struct spawned_process {
    unique_fd pidfd;
    int pid = -1;
};

// Starts `path` with descriptor 0 and 1 on /dev/null, 2 = `error_output`, setup_fd = `setup`, no other
// descriptor, no blocked signals, default signal actions, a session of its own (a terminal's Ctrl-C ends the
// VM, which ends its workers), and only those variables of the environment that GPU runtimes are configured
// with. An invalid pidfd and a sentence in `error` on failure. Where this process was started with a launcher
// (launcher.hpp), that one starts its own program instead of `path`.
spawned_process spawn_worker(const std::string& path, const std::string& title, int setup, int error_output,
                             std::string& error);

// What a worker gets of this process's environment, for execve(); points into it.
std::vector<char*> worker_environment();

} // namespace kagemusha::worker
