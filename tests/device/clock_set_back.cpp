// SPDX-License-Identifier: GPL-2.0-or-later
//
// A wall clock that a test can set back: loaded before the C library (LD_PRELOAD), it takes an hour off
// gettimeofday() for as long as the file $KAGEMUSHA_CLOCK_SET_BACK exists. QEMU_CLOCK_HOST of QEMU is that
// function. The machine's own clock can't be changed by a test, and there is no name space for it.
#include <cstdlib>
#include <ctime>
#include <sys/time.h>
#include <unistd.h>

extern "C" __attribute__((visibility("default"))) int gettimeofday(timeval* time, void*) noexcept {
    constexpr time_t hour_s = 3600;
    timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    const char* file = std::getenv("KAGEMUSHA_CLOCK_SET_BACK");
    const bool set_back = file != nullptr && access(file, F_OK) == 0;
    time->tv_sec = now.tv_sec - (set_back ? hour_s : 0);
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}
