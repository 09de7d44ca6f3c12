// SPDX-License-Identifier: GPL-2.0-or-later
// reaper: see reaper.hpp.
#include "worker/reaper.hpp"

#include <poll.h>
#include <sys/wait.h>

#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

namespace kagemusha::worker {

namespace {

struct left_behind {
    std::mutex mutex;
    std::vector<unique_fd> processes; // bounded by the open files of the devices that ended (core::device)
};

// Never destroyed (spawn.hpp).
left_behind& all() {
    static left_behind* const instance = new left_behind;
    return *instance;
}

} // namespace

bool reap_process(int pidfd, siginfo_t& end) {
    // Asked first: it can only become true meanwhile, and then the process is reaped here.
    pollfd ended{pidfd, POLLIN, 0};
    const bool has_ended = poll(&ended, 1, 0) == 1;
    int result;
    do {
        result = waitid(P_PIDFD, static_cast<id_t>(pidfd), &end, WEXITED | WNOHANG);
    } while (result != 0 && errno == EINTR);
    // Gone as well: another part of the program that reaps any child was faster (ECHILD), or whoever traces
    // the process has its status first.
    if (result != 0 || (has_ended && end.si_pid == 0))
        end.si_pid = -1;
    return end.si_pid != 0;
}

void reap_later(unique_fd pidfd) {
    left_behind& left = all();
    const std::lock_guard lock(left.mutex);
    left.processes.push_back(std::move(pidfd));
}

std::size_t sweep_reaped() {
    left_behind& left = all();
    const std::lock_guard lock(left.mutex);
    std::erase_if(left.processes, [](const unique_fd& process) {
        siginfo_t end{};
        return reap_process(process.get(), end);
    });
    return left.processes.size();
}

} // namespace kagemusha::worker
