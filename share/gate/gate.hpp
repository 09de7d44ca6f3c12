// SPDX-License-Identifier: GPL-2.0-or-later
// gate: where a worker asks before it hands a task (the commands of one request) to the GPU, and reports its
// end. What the arbiter decides is in a page that both have mapped, so that a task that may begin costs no
// system call.
//
// The arbiter's death, or its silence while this worker waits, opens the gate: the worker goes on without
// being scheduled. So does a page that makes no sense.
//
// Loose tasks. A command in flight may wait for a user event, which the guest sets with a request that comes
// later in the same stream: it would never end if this one waited for it. With an unset user event in the
// session, and no task's end for stall_ns, those in flight are not counted any more: the GPU is given back,
// and what they use of it later is charged.
//
// Threads: begin() by the executor's thread; end() by any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "proto/share/share_protocol.h"
#include "share/core/window.hpp"

namespace kagemusha::share {

class gate {
public:
    using log_line = std::function<void(const std::string&)>;

    // The page and the socket outlive the gate. The socket is made non-blocking for writing.
    gate(share_page& page, int socket, log_line log);

    // Before the first command of a task is handed over. Returns when it may be. `may_need_guest`: a command
    // in flight may wait for something that only a later request of the guest brings.
    void begin(bool may_need_guest);
    // All of its commands have ended.
    void end();

    // Grows while begin() waits for the arbiter: signs of life for who watches this worker.
    std::uint64_t waits() const { return waits_.load(std::memory_order_relaxed); }
    // It goes on without the arbiter.
    bool open() const { return open_.load(std::memory_order_relaxed); }

private:
    using lock = std::unique_lock<std::mutex>;

    void wait_for_window(lock& held, bool may_need_guest);
    void wait_for_grant(lock& held, bool may_need_guest);
    bool take();
    bool is_silent();
    void hear(lock& held, std::uint64_t patience_ns);
    void loosen();
    void uncount(std::uint32_t tasks);
    void give_back();
    void say(share_message_kind kind);
    void fall_open(const char* why);

    share_page& page_;
    const int socket_;
    const log_line log_;
    std::atomic<std::uint64_t> waits_ = 0;
    std::atomic<bool> open_ = false;

    std::mutex mutex_; // guards what follows, and is never held across a system call that waits
    std::condition_variable ended_;
    window window_;
    std::uint32_t in_flight_ = 0, loose_ = 0; // loose ones are in flight, and not in the page's word
    std::uint64_t ends_ = 0, busy_since_ns_ = 0;
    bool exact_timer_ = false;
    bool beginning_ = false; // a task waits for the window: the GPU is not given back for want of work
    std::uint64_t alive_seen_ = 0, alive_at_ns_ = 0;
};

} // namespace kagemusha::share
