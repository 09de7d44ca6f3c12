// SPDX-License-Identifier: GPL-2.0-or-later
// quiet_thread: a thread that gets no signals; those are the process's other threads'. So a peer that is gone is
// none either, but an error of the call (EPIPE).
#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace kagemusha::net {

template <class Run>
std::thread quiet_thread(Run&& run) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    std::thread out(std::forward<Run>(run)); // has the mask of who makes it
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return out;
}

} // namespace kagemusha::net
