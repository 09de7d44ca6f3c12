// SPDX-License-Identifier: GPL-2.0-or-later
//
// A TCP connection whose other end is a host that may die: its end is noticed although nobody speaks (probes),
// and although what was sent is never acknowledged (TCP_USER_TIMEOUT, RFC 5482). What is sent leaves at once.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace kagemusha::control {

struct tcp_watch {
    int idle_s, each_s, times; // the first probe after so long, the next ones, and so many without an answer
    int unacknowledged_ms;
};

// A kernel that refuses one of it leaves its own default: nothing is promised of it.
inline void watch_tcp(int fd, const tcp_watch& bounds) {
    const int on = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &bounds.idle_s, sizeof bounds.idle_s);
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &bounds.each_s, sizeof bounds.each_s);
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &bounds.times, sizeof bounds.times);
    ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &bounds.unacknowledged_ms,
                 sizeof bounds.unacknowledged_ms);
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

} // namespace kagemusha::control
