// SPDX-License-Identifier: GPL-2.0-or-later
// hang_watchdog: decides that a worker hangs. It has work of the guest, and
//   - its progress has not changed for one timeout; or
//   - it has ended none of that work for another, longer one. The progress is the worker's own word, and a
//     worker that a kernel has taken over may say what it likes. What has ended is what the device was told
//     and has checked: an answer to a request, an event that was in flight. A program may enqueue hours of
//     commands without an event and wait for the last one, so this timeout is much longer.
// Pure: time is an argument.
#pragma once

#include <cstdint>

namespace kagemusha::core {

enum class hang : std::uint8_t { none, no_progress, nothing_ended };

class hang_watchdog {
public:
    // A timeout of 0: never.
    hang_watchdog(std::uint64_t progress_timeout_ms, std::uint64_t end_timeout_ms)
        : progress_(progress_timeout_ms), ended_(end_timeout_ms) {}

    // `busy`: it has work that does not wait for the guest; `held`: nor for the host, which counts for the
    // progress only.
    hang observe(std::uint64_t now_ms, bool busy, bool held, std::uint64_t progress, std::uint64_t ended) {
        const bool stands = progress_.observe(now_ms, busy && !held, progress);
        const bool ends_nothing = ended_.observe(now_ms, busy, ended);
        return stands ? hang::no_progress : ends_nothing ? hang::nothing_ended : hang::none;
    }

private:
    // Whether `value` has not changed for the timeout while `busy`.
    class unchanged {
    public:
        explicit unchanged(std::uint64_t timeout_ms) : timeout_ms_(timeout_ms) {}
        bool observe(std::uint64_t now_ms, bool busy, std::uint64_t value) {
            if (!busy || !was_busy_ || value != value_) {
                was_busy_ = busy;
                value_ = value;
                since_ms_ = now_ms;
                return false;
            }
            return timeout_ms_ != 0 && now_ms - since_ms_ >= timeout_ms_;
        }

    private:
        std::uint64_t timeout_ms_;
        bool was_busy_ = false;
        std::uint64_t value_ = 0;
        std::uint64_t since_ms_ = 0;
    };

    unchanged progress_, ended_;
};

} // namespace kagemusha::core
