// SPDX-License-Identifier: GPL-2.0-or-later
// send_pace: when a batch that is not full goes out all the same. A program that launches every 20 us, as a
// training does, fills a batch of many commands in a millisecond, and the GPU may have nothing to do meanwhile.
// One that launches as fast as it can fills it before it is old. What sending costs is measured, because under
// emulation it is a hundred times dearer: waiting eight times as long, it takes a ninth of the time at most.
#pragma once

#include <algorithm>
#include <chrono>

namespace kagemusha::opencl {

// Between these a batch's age is chosen.
struct batch_age {
    std::chrono::nanoseconds least = std::chrono::microseconds(20), most = std::chrono::milliseconds(2);
};

// Time is an argument. One thread at a time.
class send_pace {
public:
    using clock = std::chrono::steady_clock;

    explicit send_pace(const batch_age& age) : age_(age) {}

    // The first command of a batch.
    void began(clock::time_point now) { began_ = now; }
    bool is_old(clock::time_point now) const { return now - began_ >= longest_wait(); }
    // A batch was sent, which took the program so long.
    void sent(std::chrono::nanoseconds took) { cost_ += (took - cost_) / 8; }

    std::chrono::nanoseconds longest_wait() const { return std::clamp(8 * cost_, age_.least, age_.most); }

private:
    const batch_age age_;
    clock::time_point began_{};
    std::chrono::nanoseconds cost_{0}; // a moving mean
};

} // namespace kagemusha::opencl
