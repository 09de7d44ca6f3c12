// SPDX-License-Identifier: GPL-2.0-or-later
// reaper: takes the exit status of worker processes, without ever waiting for one. A worker whose owner has
// gone before it did is kept here until it ends, so that it does not stay as a zombie.
//
// Threads: any.
#pragma once

#include <signal.h>

#include <cstddef>

#include "base/unique_fd.hpp"

namespace kagemusha::worker {

// True: every thread of the process is gone, and `end` says how it ended (its si_pid is not 0).
bool reap_process(int pidfd, siginfo_t& end);

// A killed process that nobody waits for any more.
void reap_later(unique_fd pidfd);

// Reaps what has ended meanwhile; how many are left.
std::size_t sweep_reaped();

} // namespace kagemusha::worker
