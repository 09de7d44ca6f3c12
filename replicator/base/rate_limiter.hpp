// SPDX-License-Identifier: GPL-2.0-or-later
// rate_limiter: a token bucket for log lines that a guest can cause. Pure: time is an argument.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace kagemusha::base {

class rate_limiter {
public:
    // `burst` lines at once, then one every `interval_ms`.
    rate_limiter(std::uint32_t burst, std::uint64_t interval_ms)
        : burst_(burst), interval_ms_(interval_ms), tokens_(burst) {}

    // Whether the line may be written now. A line that may not is counted.
    bool allow(std::uint64_t now_ms) {
        if (now_ms > last_ms_) {
            const std::uint64_t gained = (now_ms - last_ms_) / interval_ms_;
            last_ms_ += gained * interval_ms_;
            tokens_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(burst_, tokens_ + gained));
        }
        if (tokens_ == 0) {
            ++suppressed_;
            return false;
        }
        --tokens_;
        return true;
    }

    // Lines that were not written since the last call; the next line that is written tells them.
    std::uint64_t take_suppressed() { return std::exchange(suppressed_, 0); }

private:
    std::uint32_t burst_;
    std::uint64_t interval_ms_;
    std::uint32_t tokens_;
    std::uint64_t last_ms_ = 0;
    std::uint64_t suppressed_ = 0;
};

} // namespace kagemusha::base
