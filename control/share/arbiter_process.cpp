// SPDX-License-Identifier: GPL-2.0-or-later
//
// See arbiter_process.hpp.
#include "control/share/arbiter_process.hpp"

#include "control/base/assets.hpp"
#include "control/base/installation.hpp"
#include "control/base/process.hpp"
#include "worker/share_join.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

extern char** environ;

namespace kagemusha::control {

namespace {

constexpr int ready_within_ms = 5000;

} // namespace

// In a session of its own, out of reach of our terminal and of our end. The number of a pipe's writing end
// goes with it; it is closed when clients can connect.
std::string start_share_arbiter(const std::string& socket, bool for_good) {
    const auto program = find_built("kagemusha-gpu");
    if (program.empty())
        return not_there("kagemusha-gpu");
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
        return fmt::format("no pipe: {}", std::strerror(errno));
    const unique_fd reading(ends[0]);
    unique_fd writing(ends[1]);
    constexpr int ready = 3;
    posix_spawn_file_actions_t files;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDWR, 0);
    ::posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_RDWR, 0);
    ::posix_spawn_file_actions_adddup2(&files, writing.get(), ready);
    ::posix_spawn_file_actions_addclosefrom_np(&files, ready + 1);
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
    const auto number = std::to_string(ready);
    const char* arguments[] = {program.c_str(),
                               "--socket",
                               socket.c_str(),
                               "--ready-fd",
                               number.c_str(),
                               for_good ? "--linger" : nullptr,
                               "0",
                               nullptr};
    pid_t pid = -1;
    const int failed = ::posix_spawn(&pid, program.c_str(), &files, &attributes,
                                     const_cast<char* const*>(arguments), environ);
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&files);
    writing.reset();
    if (failed != 0)
        return fmt::format("cannot start {}: {}", program, std::strerror(failed));
    pollfd event{reading.get(), POLLIN, 0};
    ::poll(&event, 1, ready_within_ms);
    // Ours for as long as we live, whoever else uses it: its end is taken note of, and waited for by nobody.
    std::thread([pid] { ::waitpid(pid, nullptr, 0); }).detach();
    return {};
}

bool share_arbiter_answers(const std::string& socket) {
    share_hello asks{};
    asks.magic = SHARE_MAGIC;
    asks.version = SHARE_VERSION;
    asks.role = SHARE_ASKER;
    const auto joined = worker::join_share(socket, asks);
    return joined.answer.magic == SHARE_MAGIC; // also one of another version
}

} // namespace kagemusha::control
