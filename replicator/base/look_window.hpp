// SPDX-License-Identifier: GPL-2.0-or-later
// look_window: how long a thread looks for work before it sleeps. To wake a sleeping one costs 10 us and more, in a
// virtual machine several times that, and a program that waits for each small read pays for every thread on its way.
// A thread that looks takes a processor. So it looks only while work comes soon, as KVM does for processors that halt
// and QEMU's event loops for descriptors: the window opens while what comes after a sleep would have been found by
// looking, and closes when something takes longer than anybody looks.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

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
inline std::chrono::nanoseconds longest_look() {
    return std::chrono::microseconds(std::thread::hardware_concurrency() >= 8 ? 100 : 0);
}

// Asks again and again for so long. False: it was in vain.
template <class Found>
bool look_for(std::chrono::nanoseconds time, Found&& found) {
    if (time <= time.zero())
        return false;
    const auto end = std::chrono::steady_clock::now() + time;
    do {
        for (int i = 0; i < 8; ++i) {
            if (found())
                return true;
#if defined(__x86_64__)
            _mm_pause();
#endif
        }
    } while (std::chrono::steady_clock::now() < end);
    return false;
}

} // namespace kagemusha::base
