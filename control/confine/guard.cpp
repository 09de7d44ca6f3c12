// SPDX-License-Identifier: GPL-2.0-or-later
//
// See guard.hpp.
#include "control/confine/guard.hpp"

#include "control/base/process.hpp"
#include "control/confine/enter.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <string_view>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace kagemusha::control {

namespace {

// Before this process becomes QEMU. The launcher is a child of it and gets nothing but its end of the socket
// and the standard error; why it ends is written there.
void start_launcher(const char* worker) {
    constexpr int launcher_fd = 3;
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
        return; // QEMU tells that it can't start workers
    const pid_t pid = ::fork();
    if (pid == 0) {
        const int nothing = ::open("/dev/null", O_RDWR);
        if (::dup2(nothing, 0) < 0 || ::dup2(nothing, 1) < 0 || ::dup2(ends[1], launcher_fd) < 0)
            ::_exit(126);
        ::close_range(launcher_fd + 1, ~0u, 0);
        const auto fd = std::to_string(launcher_fd);
        ::execl(worker, worker, "--launcher", fd.c_str(), static_cast<char*>(nullptr));
        ::_exit(127);
    }
    ::close(ends[1]);
    ::setenv("KAGEMUSHA_LAUNCHER", std::to_string(ends[0]).c_str(), 1);
}

[[noreturn]] void guard_main(char** arguments) {
    const auto end_with_guard = [guard = std::string_view(arguments[0])] {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (std::to_string(::getppid()) != guard)
            ::_exit(125); // it died before the call
    };
    end_with_guard();
    if (*arguments[2] != '\0') {
        const auto what = parse_confinement(arguments[2]);
        const auto problem = what ? enter_confinement(*what) : std::string("its plan can't be read");
        if (!problem.empty()) {
            fmt::print(stderr, "QEMU can't be confined: {}\n", problem);
            ::_exit(125);
        }
        end_with_guard(); // the kernel forgets it when the user changes
    }
    // What is inherited from a launcher of our own is none of this QEMU's.
    ::unsetenv("KAGEMUSHA_LAUNCHER");
    if (const char* worker = std::getenv("KAGEMUSHA_WORKER");
        worker != nullptr && std::string_view(arguments[1]) == guard_with_launcher)
        start_launcher(worker);
    ::execvp(arguments[3], arguments + 3);
    fmt::print(stderr, "cannot start {}: {}\n", arguments[3], std::strerror(errno));
    ::_exit(125);
}

} // namespace

void guard_if_asked(int argc, char** argv) {
    if (argc > 5 && std::strcmp(argv[1], guard_word) == 0)
        guard_main(argv + 2);
}

} // namespace kagemusha::control
