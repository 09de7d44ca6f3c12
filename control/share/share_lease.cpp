// SPDX-License-Identifier: GPL-2.0-or-later
//
// See share_lease.hpp.
#include "control/share/share_lease.hpp"

#include "control/base/assets.hpp"
#include "control/base/installation.hpp"
#include "worker/share_join.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace kagemusha::control {

namespace {

constexpr int ready_within_ms = 5000;
constexpr int again_after_ms = 1000;

// In a session of its own, out of reach of our terminal and of our end. The number of a pipe's writing end
// goes with it; it is closed when clients can connect.
std::string start_arbiter(const std::string& socket) {
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
    const char* arguments[] = {program.c_str(), "--socket",     socket.c_str(),
                               "--ready-fd",    number.c_str(), nullptr};
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

bool is_there(const std::string& socket) {
    share_hello asks{};
    asks.magic = SHARE_MAGIC;
    asks.version = SHARE_VERSION;
    asks.role = SHARE_ASKER;
    const auto joined = worker::join_share(socket, asks);
    return joined.answer.magic == SHARE_MAGIC; // also one of another version
}

} // namespace

std::unique_ptr<share_lease> share_lease::take(const std::string& socket, const share_hello& hello,
                                               says report, std::string& error) {
    std::unique_ptr<share_lease> lease(new share_lease(socket, hello, std::move(report)));
    if (!lease->join(error))
        return nullptr;
    lease->keeper_ = std::thread([raw = lease.get()] { raw->keep(); });
    return lease;
}

share_lease::share_lease(std::string socket, const share_hello& hello, says report)
    : socket_(std::move(socket))
    , hello_(hello)
    , report_(std::move(report))
    , stop_(::eventfd(0, EFD_CLOEXEC)) {}

share_lease::~share_lease() {
    const std::uint64_t one = 1;
    (void)!::write(stop_.get(), &one, sizeof one);
    if (keeper_.joinable())
        keeper_.join();
    if (connection_ >= 0)
        ::close(connection_);
}

bool share_lease::join(std::string& error) {
    if (!is_there(socket_))
        if (error = start_arbiter(socket_); !error.empty())
            return false;
    auto joined = worker::join_share(socket_, hello_);
    error = joined.refusal;
    connection_ = joined.socket.release();
    return error.empty();
}

// What is wanted: a place. What is: a connection, or none. One step a second until both agree.
void share_lease::keep() {
    ::pthread_setname_np(::pthread_self(), "share");
    std::string said;
    for (;;) {
        pollfd events[] = {{stop_.get(), POLLIN, 0}, {connection_, POLLIN, 0}};
        ::poll(events, connection_ >= 0 ? 2 : 1, connection_ >= 0 ? -1 : again_after_ms);
        if (events[0].revents != 0)
            return;
        if (connection_ >= 0 && events[1].revents == 0)
            continue;
        if (connection_ >= 0) {
            ::close(connection_);
            connection_ = -1;
            report_(
                "kagemusha-gpu has ended: programs that run now are not scheduled any more; it is started "
                "again for those that come");
            said.clear();
            continue; // a moment later, in case that somebody stops it on purpose
        }
        std::string error;
        if (join(error))
            report_("kagemusha-gpu runs again");
        else if (std::exchange(said, error) != error)
            report_(error);
        if (!error.empty() && connection_ >= 0) {
            ::close(connection_);
            connection_ = -1;
        }
    }
}

} // namespace kagemusha::control
