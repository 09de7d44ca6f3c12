// SPDX-License-Identifier: GPL-2.0-or-later
//
// The callback thread starts at its first use and lives as long as the process.
#include "callback_thread.hpp"

#include "connection.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace kagemusha::opencl {
namespace {

struct callback_thread {
    const std::uint64_t generation = fork_generation();
    std::mutex mutex;
    std::condition_variable filled;
    std::deque<std::function<void()>> waiting;

    [[noreturn]] void run() {
        for (;;) {
            std::function<void()> next;
            {
                std::unique_lock held(mutex);
                filled.wait(held, [this] { return !waiting.empty(); });
                next = std::move(waiting.front());
                waiting.pop_front();
            }
            next();
        }
    }
};

// A child of a fork has no such thread and starts its own.
callback_thread& current_thread() {
    static auto* const mutex = new std::mutex;
    static callback_thread* current = nullptr;
    const std::lock_guard held(*mutex);
    if (!current || current->generation != fork_generation()) {
        current = new callback_thread;
        std::thread([thread = current] { thread->run(); }).detach();
    }
    return *current;
}

} // namespace

void run_in_callback_thread(std::function<void()> work) {
    callback_thread& thread = current_thread();
    const std::lock_guard held(thread.mutex);
    thread.waiting.push_back(std::move(work));
    thread.filled.notify_one();
}

} // namespace kagemusha::opencl
