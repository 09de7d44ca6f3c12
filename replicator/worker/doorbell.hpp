// SPDX-License-Identifier: GPL-2.0-or-later
// doorbell: wakes the reader of a ring in another process. A pipe, and not an event descriptor, because both
// ends of that are one open file: a hostile worker could make it blocking (F_SETFL) and have the device's
// thread wait for ever. Of a pipe the device uses the end that the worker never gets.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "base/unique_fd.hpp"

namespace kagemusha::worker {

// Both ends. One is handed to the other process; a copy of it stays here unused, so that the worker's end
// can't turn into SIGPIPE or an end of file that is readable for ever.
struct doorbell {
    unique_fd listen, ring;

    bool create() {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
            return false;
        listen.reset(ends[0]);
        ring.reset(ends[1]);
        return true;
    }
};

// A full pipe is a bell that rings already.
inline void ring_doorbell(int fd) {
    const char one = 1;
    [[maybe_unused]] const auto sent = write(fd, &one, sizeof one);
}

// Takes what rang. A hostile writer can leave more than this takes: the reader is then woken again,
// needlessly.
inline void quiet_doorbell(int fd) {
    char ignored[256];
    [[maybe_unused]] const auto got = read(fd, ignored, sizeof ignored);
}

} // namespace kagemusha::worker
