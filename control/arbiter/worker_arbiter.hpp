// SPDX-License-Identifier: GPL-2.0-or-later
//
// An arbiter that takes its time: requests wait in a bounded queue for a thread of its own.
#pragma once

#include "control/arbiter/arbiter.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace kagemusha::control {

class worker_arbiter : public arbiter {
public:
    void ask(const ha::arbiter_request& request) final;

protected:
    explicit worker_arbiter(arbiter_answers answer) : answer_(std::move(answer)) {}
    void start(); // by the constructor of the class that decides
    void stop();  // by its destructor; what is queued is still done
    // On the thread.
    virtual ha::arbiter_answer decide(const ha::arbiter_request& request) = 0;
    bool is_wanted(); // another request waits, or all is to end

private:
    // A supervisor has one request under way, and at its end two more. Beyond it something is wrong.
    static constexpr std::size_t most_queued = 16;
    void work();

    arbiter_answers answer_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<ha::arbiter_request> queue_;
    bool stopping_ = false;
    std::thread thread_;
};

} // namespace kagemusha::control
