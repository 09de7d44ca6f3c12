// SPDX-License-Identifier: GPL-2.0-or-later
// inbox: what one thread tells another one that waits in poll(): a queue and an event descriptor. What goes
// in is bounded by who puts it in (each sender says by what).
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace kagemusha::pair {

template <class T>
class inbox {
public:
    inbox() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
    ~inbox() {
        if (fd_ >= 0)
            close(fd_);
    }
    inbox(const inbox&) = delete;
    inbox& operator=(const inbox&) = delete;

    bool ok() const { return fd_ >= 0; }
    int fd() const { return fd_; } // readable while there is something

    void push(T value) {
        bool first;
        {
            const std::lock_guard lock(mutex_);
            first = items_.empty();
            items_.push_back(std::move(value));
        }
        if (first) {
            const std::uint64_t one = 1;
            [[maybe_unused]] const auto written = write(fd_, &one, sizeof one);
        }
    }

    void take(std::vector<T>& out) {
        out.clear();
        std::uint64_t ignored;
        [[maybe_unused]] const auto got = read(fd_, &ignored, sizeof ignored);
        const std::lock_guard lock(mutex_);
        std::swap(out, items_);
    }

private:
    const int fd_;
    std::mutex mutex_;
    std::vector<T> items_;
};

} // namespace kagemusha::pair
