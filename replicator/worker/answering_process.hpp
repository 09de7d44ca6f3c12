// SPDX-License-Identifier: GPL-2.0-or-later
// answering_process: asks the genuine CUDA driver for a guest's program (docs/adr/0028). It has the program's
// process id, in a PID namespace of its own, a thread with the same pthread_self(), and the driver's library at
// the same addresses on each host.
#pragma once

#include <cstdint>
#include <string>

#include "worker/answering_protocol.hpp"
#include "worker/sandbox.hpp"

namespace kagemusha::worker {

// Makes the process and returns its namespace's first process, which ends with it, to the caller; the ids are
// those of `first`. `connection` is taken over by it. `box` is one that has entered its namespaces. -1: not
// with errno.
int start_answering_process(int connection, const answering_request& first, const std::string& driver,
                            sandbox& box, std::uint64_t max_bytes);

} // namespace kagemusha::worker
