// SPDX-License-Identifier: GPL-2.0-or-later
//
// inbox: what other threads want done on the supervisor's main thread, which polls its descriptor.
#pragma once

#include "control/base/process.hpp"

#include <cstdint>
#include <functional>
#include <mutex>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace kagemusha::control {

class inbox {
public:
    inbox() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
    int fd() const { return wake_.get(); }
    void put(std::function<void()> task) {
        {
            const std::lock_guard lock(mutex_);
            tasks_.push_back(std::move(task));
        }
        const std::uint64_t one = 1;
        (void)!::write(wake_.get(), &one, sizeof one);
    }
    void run() {
        std::uint64_t count = 0;
        (void)!::read(wake_.get(), &count, sizeof count);
        std::vector<std::function<void()>> tasks;
        {
            const std::lock_guard lock(mutex_);
            tasks.swap(tasks_);
        }
        for (auto& task : tasks)
            task();
    }

private:
    unique_fd wake_;
    std::mutex mutex_;
    std::vector<std::function<void()>> tasks_; // each follows an event of QEMU, the link or the arbiter
};

} // namespace kagemusha::control
