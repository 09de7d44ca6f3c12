// SPDX-License-Identifier: GPL-2.0-or-later
// look_for: looks for work without sleeping, for as long as a look_window says.
#pragma once

#include <chrono>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kagemusha::worker {

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

} // namespace kagemusha::worker
