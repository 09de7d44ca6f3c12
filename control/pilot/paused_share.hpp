// SPDX-License-Identifier: GPL-2.0-or-later
//
// paused_share: how much of its time a VM stands still for checkpoints, lately. From a sum of pauses that is
// read now and then; time is an argument.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace kagemusha::control {

class paused_share {
public:
    using clock = std::chrono::steady_clock;

    // `total`: of all pauses until `now`. One that has become smaller is the sum of another QEMU.
    void read(clock::time_point now, std::chrono::microseconds total) {
        if (!begun_ || total < from_) {
            begun_ = now;
            from_ = total;
            percent_ = 0;
        } else if (now - *begun_ >= window) {
            const std::chrono::duration<double, std::micro> paused = total - from_, passed = now - *begun_;
            percent_ = 100 * (paused / passed);
            begun_ = now;
            from_ = total;
        }
    }
    // Of the last whole window; 0 before there was one.
    double percent() const { return percent_; }

    static constexpr std::chrono::seconds window{2};

private:
    std::optional<clock::time_point> begun_;
    std::chrono::microseconds from_{};
    double percent_ = 0;
};

} // namespace kagemusha::control
