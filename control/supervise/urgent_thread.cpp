// SPDX-License-Identifier: GPL-2.0-or-later
//
// See urgent_thread.hpp.
#include "control/supervise/urgent_thread.hpp"

#include <linux/capability.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kagemusha::control {

namespace {

constexpr int nice_value = -10;

bool become_real_time() {
    sched_param lowest{};
    lowest.sched_priority = sched_get_priority_min(SCHED_RR);
    return sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &lowest) == 0;
}

bool become_nice() {
    const sched_param none{};
    // The flag first: a process that is started never has the value.
    return sched_setscheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, &none) == 0 &&
           setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), nice_value) == 0;
}

bool has_capability(unsigned which) {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2]{};
    return syscall(SYS_capget, &header, data) == 0 && (data[which / 32].effective >> which % 32 & 1) != 0;
}

// Under a limit later mappings would fail when it is reached.
bool lock_memory() {
    rlimit limit{};
    const bool unlimited = has_capability(CAP_IPC_LOCK) ||
                           (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY);
    return unlimited && mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0;
}

} // namespace

std::string urgency::complaint() const {
    std::string text;
    if (!real_time && nice)
        text = "the thread that decides has no real-time priority (allow it with LimitRTPRIO=1), only a "
               "negative nice value";
    else if (!real_time)
        text = "the thread that decides has an ordinary priority (allow a better one with LimitRTPRIO=1 or "
               "LimitNICE=-10)";
    if (!locked)
        text += (text.empty() ? std::string() : "; ") +
                "the supervisor's memory may be swapped out (allow to lock it with LimitMEMLOCK=infinity)";
    return text.empty() ? text : text + ": on a busy host a healthy VM may look dead";
}

urgency become_urgent() {
    urgency got;
    got.real_time = become_real_time();
    got.nice = !got.real_time && become_nice();
    got.locked = lock_memory();
    return got;
}

} // namespace kagemusha::control
