// SPDX-License-Identifier: GPL-2.0-or-later
// hang_watchdog: decides that a worker hangs: it has work, and its progress has not changed for the timeout.
// Pure: time is an argument.
#ifndef KAGEMUSHA_CORE_HANG_WATCHDOG_HPP
#define KAGEMUSHA_CORE_HANG_WATCHDOG_HPP

#include <cstdint>

namespace kagemusha::core {

class hang_watchdog {
public:
    // `timeout_ms` 0: never.
    explicit hang_watchdog(std::uint64_t timeout_ms) : timeout_ms_(timeout_ms) {}

    // Whether the worker hangs. `busy`: it has work that does not wait for the guest.
    bool observe(std::uint64_t now_ms, bool busy, std::uint64_t progress) {
        if (!busy || !was_busy_ || progress != progress_) {
            was_busy_ = busy;
            progress_ = progress;
            since_ms_ = now_ms;
            return false;
        }
        return timeout_ms_ != 0 && now_ms - since_ms_ >= timeout_ms_;
    }

private:
    std::uint64_t timeout_ms_;
    bool was_busy_ = false;
    std::uint64_t progress_ = 0;
    std::uint64_t since_ms_ = 0;
};

} // namespace kagemusha::core

#endif
