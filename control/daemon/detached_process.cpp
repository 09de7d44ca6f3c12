// SPDX-License-Identifier: GPL-2.0-or-later
//
// See detached_process.hpp.
#include "control/daemon/detached_process.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <sys/pidfd.h> // of Debian 12's libc, without C++ in mind
}

namespace kagemusha::control::daemon {

std::optional<detached_process> detached_process::start(const std::vector<std::string>& command,
                                                        const std::string& log, std::string& error) {
    const unique_fd out(
        ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    const unique_fd in(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!out || !in) {
        error = fmt::format("cannot write {}: {}", log, std::strerror(errno));
        return std::nullopt;
    }
    std::vector<char*> argv;
    for (const auto& word : command)
        argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawn_file_actions_adddup2(&files, in.get(), STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&files, out.get(), STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&files, out.get(), STDERR_FILENO);
    ::posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    sigset_t none, pipe_only;
    sigemptyset(&none);
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setsigdefault(&attributes, &pipe_only);
    ::posix_spawnattr_setflags(&attributes,
                               POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
    pid_t pid = -1;
    const int failed = ::posix_spawnp(&pid, argv[0], &files, &attributes, argv.data(), environ);
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&files);
    if (failed != 0) {
        error = fmt::format("cannot start {}: {}", command.front(), std::strerror(failed));
        return std::nullopt;
    }
    // The child is ours and not yet reaped, so its number was not given to another process.
    unique_fd pidfd(::pidfd_open(pid, 0));
    if (!pidfd) {
        error = fmt::format("pidfd_open: {}", std::strerror(errno));
        return std::nullopt; // it runs, and is found like one of an earlier daemon's
    }
    return detached_process(std::move(pidfd));
}

std::optional<int> detached_process::ended() {
    pollfd end{pidfd_.get(), POLLIN, 0};
    if (status_ || ::poll(&end, 1, 0) <= 0)
        return status_;
    siginfo_t info{};
    if (::waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED) != 0)
        std::abort(); // somebody else reaped our child: a bug
    return status_ = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
}

} // namespace kagemusha::control::daemon
