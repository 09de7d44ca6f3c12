// SPDX-License-Identifier: GPL-2.0-or-later
// fd_message: one message on a connected Unix socket, with descriptors beside it (SCM_RIGHTS). Who receives
// one believes nothing of it: how long it is and how many descriptors came is the caller's to check.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <vector>

#include "base/unique_fd.hpp"

namespace kagemusha::worker {

inline constexpr std::size_t max_message_fds = 128;

// `fds`: at most max_message_fds; they stay the caller's. `flags`: of sendmsg. The bytes that were sent, -1
// and errno on failure. An interrupted call is made again, and a peer that is gone raises no signal.
ssize_t send_with_fds(int socket, std::span<const std::byte> message, std::span<const int> fds,
                      int flags = 0);

struct received_message {
    ssize_t bytes = 0; // 0: the peer closed the connection; -1: errno says why
    int flags = 0;     // MSG_TRUNC: it was longer than `message`; MSG_CTRUNC: there were more descriptors
    std::vector<unique_fd> fds; // all that came, close-on-exec
};
// The kernel closes what comes beyond `max_fds` (at most max_message_fds).
received_message receive_with_fds(int socket, std::span<std::byte> message, std::size_t max_fds);

} // namespace kagemusha::worker
