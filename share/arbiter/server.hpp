// SPDX-License-Identifier: GPL-2.0-or-later
// server: the sockets of kagemusha-gpu. One thread; every queue of a peer is the kernel's, and bounded.
#pragma once

#include <cstdint>
#include <string>

namespace kagemusha::share {

struct server_options {
    std::string socket;         // path; a lock file is beside it
    std::uint32_t linger_s = 5; // it ends so long after its last client; 0: never
    int ready_fd = -1;          // closed as soon as clients can connect
};

// Serves until SIGTERM, SIGINT or the end of its last client. The program's exit status: 0; 1 with a sentence
// on stderr; 2 when another one serves this socket, which clients can connect to by then, or
// has its lock and neither listens nor ends within seconds.
int run_server(const server_options& options);

} // namespace kagemusha::share
