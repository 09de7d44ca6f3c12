// SPDX-License-Identifier: GPL-2.0-or-later
//
// See worker_arbiter.hpp.
#include "control/arbiter/worker_arbiter.hpp"

#include <csignal>

namespace kagemusha::control {

void worker_arbiter::start() {
    // Signals are the main thread's.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    thread_ = std::thread([this] { work(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void worker_arbiter::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable())
        thread_.join();
}

void worker_arbiter::ask(const ha::arbiter_request& request) {
    {
        const std::lock_guard lock(mutex_);
        if (queue_.size() < most_queued) {
            queue_.push_back(request);
            changed_.notify_all();
            return;
        }
    }
    answer_({ha::arbiter_answer::verdict::unreachable, request.number, 0, 0, "the arbiter does not keep up"});
}

bool worker_arbiter::is_wanted() {
    const std::lock_guard lock(mutex_);
    return stopping_ || !queue_.empty();
}

void worker_arbiter::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (queue_.empty())
            return;
        const auto request = queue_.front();
        queue_.pop_front();
        lock.unlock();
        auto answer = decide(request);
        answer.number = request.number;
        answer_(std::move(answer));
        lock.lock();
    }
}

} // namespace kagemusha::control
