// SPDX-License-Identifier: GPL-2.0-or-later
// look_window: how long a thread looks for work before it sleeps. To wake a sleeping one costs 10 us and more, in a
// virtual machine several times that, and a program that waits for each small read pays for every thread on its way.
// A thread that looks takes a processor. So it looks only while work comes soon, as KVM does for processors that halt
// and QEMU's event loops for descriptors: the window opens while what comes after a sleep would have been found by
// looking, and closes when something takes longer than anybody looks.
#pragma once

#include <algorithm>
#include <chrono>

namespace kagemusha::base {

// Pure: time is an argument. One thread.
class look_window {
public:
    using nanoseconds = std::chrono::nanoseconds;
    static constexpr nanoseconds first = std::chrono::microseconds(10);

    explicit look_window(nanoseconds most) : most_(most) {}

    nanoseconds now() const { return now_; }
    // So long after the last work the next one came.
    void waited(nanoseconds time) {
        if (time > most_)
            now_ = nanoseconds(0);
        else if (time > now_)
            now_ = std::min(most_, std::max(first, 2 * now_));
    }

private:
    const nanoseconds most_;
    nanoseconds now_{0};
};

// Nothing where there are few processors: there the guest and the other threads want them.
constexpr std::chrono::nanoseconds longest_look(unsigned processors) {
    return std::chrono::microseconds(processors >= 8 ? 100 : 0);
}

} // namespace kagemusha::base
