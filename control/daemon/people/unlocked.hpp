// SPDX-License-Identifier: GPL-2.0-or-later
//
// The opposite of std::lock_guard: while it lives others may have the mutex, which its maker holds before and
// after.
#pragma once

#include <mutex>

namespace kagemusha::control::daemon {

class unlocked {
public:
    explicit unlocked(std::mutex& of) : of_(of) { of_.unlock(); }
    unlocked(const unlocked&) = delete;
    unlocked& operator=(const unlocked&) = delete;
    ~unlocked() { of_.lock(); }

private:
    std::mutex& of_;
};

} // namespace kagemusha::control::daemon
