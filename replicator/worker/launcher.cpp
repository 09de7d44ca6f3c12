// SPDX-License-Identifier: GPL-2.0-or-later
// launcher: see launcher.hpp. One thread, no memory of anything between two requests.
#include "worker/launcher.hpp"

#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>

#include "worker/fd_message.hpp"
#include "worker/setup.hpp"

namespace kagemusha::worker {

namespace {

struct received_request {
    launch_request request{};
    unique_fd setup, error_output;
};

enum class received { request, malformed, ended };

received receive_request(int socket, received_request& out) {
    received_message got = receive_with_fds(socket, std::as_writable_bytes(std::span(&out.request, 1)), 8);
    if (got.bytes <= 0)
        return received::ended;
    if (got.bytes != static_cast<ssize_t>(sizeof out.request) || (got.flags & MSG_TRUNC) != 0 ||
        out.request.version != launcher_version || got.fds.size() != 2)
        return received::malformed;
    out.request.title[sizeof out.request.title - 1] = '\0';
    out.setup = std::move(got.fds[0]);
    out.error_output = std::move(got.fds[1]);
    return received::request;
}

[[noreturn]] void become_worker(const char* program, received_request& from) {
    sigset_t none;
    sigemptyset(&none);
    for (int signal_number = 1; signal_number < NSIG; ++signal_number)
        signal(signal_number, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    setsid();
    // Above every target, so no step overwrites the source of a later one.
    const int setup = fcntl(from.setup.get(), F_DUPFD, setup_fd + 1);
    const int error_output = fcntl(from.error_output.get(), F_DUPFD, setup_fd + 1);
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (setup < 0 || error_output < 0 || dup2(error_output, 2) < 0 || dup2(nothing, 0) < 0 ||
        dup2(nothing, 1) < 0 || dup2(setup, setup_fd) < 0)
        _exit(126);
    close_range(setup_fd + 1, ~0u, 0);
    auto environment = worker_environment();
    char* arguments[] = {const_cast<char*>(program), from.request.title, nullptr};
    execve(program, arguments, environment.data());
    _exit(127);
}

launch_answer launch(const char* program, received_request& from, unique_fd& pidfd) {
    int fd = -1;
    clone_args arguments{};
    arguments.flags = CLONE_PARENT | CLONE_PIDFD; // a child of our parent: QEMU
    arguments.pidfd = reinterpret_cast<std::uint64_t>(&fd);
    const long pid = syscall(SYS_clone3, &arguments, sizeof arguments);
    if (pid < 0)
        return {errno, 0};
    if (pid == 0)
        become_worker(program, from);
    pidfd.reset(fd);
    return {0, static_cast<std::int32_t>(pid)};
}

bool send_answer(int socket, const launch_answer& answer, const unique_fd& pidfd) {
    const int fd = pidfd.get();
    const std::span<const int> fds(&fd, pidfd ? 1 : 0);
    return send_with_fds(socket, std::as_bytes(std::span(&answer, 1)), fds) ==
           static_cast<ssize_t>(sizeof answer);
}

} // namespace

int run_launcher(int socket, const char* program) {
    prctl(PR_SET_NAME, "kagemusha-start");
    // QEMU, whose end this is too, must not get at what is forbidden to it through this process.
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (fcntl(socket, F_SETFD, FD_CLOEXEC) != 0) {
        std::fprintf(stderr, "the launcher has no connection: %s\n", std::strerror(errno));
        return 2;
    }
    for (;;) {
        received_request from;
        unique_fd pidfd;
        launch_answer answer{EINVAL, 0};
        switch (receive_request(socket, from)) {
        case received::ended:
            return 0;
        case received::malformed:
            break;
        case received::request:
            answer = launch(program, from, pidfd);
            break;
        }
        if (!send_answer(socket, answer, pidfd))
            return 1;
    }
}

} // namespace kagemusha::worker
