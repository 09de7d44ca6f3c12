// SPDX-License-Identifier: GPL-2.0-or-later
//
// See process.hpp.
#include "control/base/process.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" { // glibc 2.36's header leaves this out
#include <sys/pidfd.h>
}

extern char** environ;

namespace kagemusha::control {

namespace {

int received_signal = 0;

// Our environment with some variables set.
std::vector<std::string> merged_environment(const std::vector<std::pair<std::string, std::string>>& added) {
    std::vector<std::string> merged;
    for (char** entry = environ; *entry; ++entry) {
        const std::string_view text = *entry;
        const auto name = text.substr(0, text.find('='));
        bool replaced = false;
        for (const auto& [key, value] : added)
            replaced = replaced || key == name;
        if (!replaced)
            merged.emplace_back(text);
    }
    for (const auto& [key, value] : added)
        merged.push_back(key + "=" + value);
    return merged;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
    std::vector<char*> pointers;
    for (auto& word : words)
        pointers.push_back(word.data());
    pointers.push_back(nullptr);
    return pointers;
}

// All but the streams and these.
void close_others(posix_spawn_file_actions_t& actions, const std::vector<int>& inherited) {
    const int last = std::max(STDERR_FILENO, inherited.empty() ? -1 : *std::ranges::max_element(inherited));
    for (int fd = STDERR_FILENO + 1; fd < last; ++fd)
        if (std::ranges::find(inherited, fd) == inherited.end())
            posix_spawn_file_actions_addclose(&actions, fd); // it need not be open
    posix_spawn_file_actions_addclosefrom_np(&actions, last + 1);
}

int status_of(const siginfo_t& info) {
    return info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
}

} // namespace

std::optional<child_process> child_process::start(const spawn_request& request, std::string& error) {
    auto words = request.command;
    if (request.guarded) {
        // The kernel's "kill me when my parent dies" is a call that the child has to make: this program
        // again, which makes it and then becomes the wanted one.
        words.insert(words.begin(),
                     {"/proc/self/exe", guard_word, fmt::format("{}", ::getpid()),
                      request.launcher ? guard_with_launcher : guard_without_launcher, request.confinement});
    }
    const auto program = words.front();
    auto environment = merged_environment(request.environment);
    auto argv = pointers(words);
    auto envp = pointers(environment);

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const int streams[] = {request.in, request.out, request.err};
    for (int target = 0; target < 3; ++target)
        if (streams[target] >= 0)
            posix_spawn_file_actions_adddup2(&actions, streams[target], target);
    for (const int fd : request.inherit)
        posix_spawn_file_actions_adddup2(&actions, fd, fd); // onto itself: close-on-exec is taken off
    if (request.detached)
        close_others(actions, request.inherit);

    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none, pipe_only;
    sigemptyset(&none);
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &pipe_only);
    short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
    if (request.guarded) {
        posix_spawnattr_setpgroup(&attributes, 0);
        flags |= POSIX_SPAWN_SETPGROUP;
    }
    if (request.detached)
        flags |= POSIX_SPAWN_SETSID;
    posix_spawnattr_setflags(&attributes, flags);

    pid_t pid = -1;
    const int failed = posix_spawnp(&pid, program.c_str(), &actions, &attributes, argv.data(), envp.data());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) {
        error = fmt::format("cannot start {}: {}", request.command.front(), std::strerror(failed));
        return std::nullopt;
    }
    // The child is ours and not yet reaped, so its number cannot have been given to another process.
    unique_fd pidfd(::pidfd_open(pid, 0));
    if (!pidfd) {
        error = fmt::format("pidfd_open: {} (Linux 5.3 or newer is needed)", std::strerror(errno));
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
        return std::nullopt;
    }
    return child_process(pid, std::move(pidfd), request.detached);
}

child_process::~child_process() {
    if (pidfd_ && !status_ && !detached_) {
        kill();
        wait_for(std::chrono::milliseconds(-1));
    }
}

void child_process::kill() {
    if (pidfd_ && !status_)
        ::pidfd_send_signal(pidfd_.get(), SIGKILL, nullptr, 0);
}

std::optional<int> child_process::wait_for(std::chrono::milliseconds time) {
    if (status_)
        return status_;
    const auto deadline = std::chrono::steady_clock::now() + time;
    for (;;) {
        auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline -
                                                                          std::chrono::steady_clock::now());
        if (time.count() < 0)
            left = std::chrono::milliseconds(-1);
        else if (left.count() < 0)
            left = std::chrono::milliseconds(0);
        pollfd ended{pidfd_.get(), POLLIN, 0};
        const int ready = ::poll(&ended, 1, static_cast<int>(left.count()));
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return std::nullopt;
        siginfo_t info{};
        if (::waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED) != 0)
            std::abort(); // somebody else reaped our child: a bug
        status_ = status_of(info);
        return status_;
    }
}

bool only_held(std::string_view states) {
    return states.find('D') != std::string_view::npos &&
           states.find_first_not_of("DZX") == std::string_view::npos;
}

std::string how_it_ended(int status) {
    if (status > 128)
        return fmt::format("signal {} ({})", status - 128, ::strsignal(status - 128));
    return fmt::format("status {}", status);
}

bool only_held_threads(int pid) {
    namespace fs = std::filesystem;
    std::string states;
    std::error_code failed;
    // It may end meanwhile, and then its folder can't be read on.
    fs::directory_iterator thread(fmt::format("/proc/{}/task", pid), failed);
    for (; !failed && thread != fs::directory_iterator(); thread.increment(failed)) {
        std::ifstream file(thread->path() / "stat");
        std::string line;
        std::getline(file, line);
        // Behind the name, which is in brackets and may have brackets in it.
        const auto name_end = line.rfind(") ");
        if (name_end != std::string::npos && name_end + 2 < line.size())
            states += line[name_end + 2]; // else it has just ended
    }
    return !failed && only_held(states);
}

int interrupt_fd() {
    static const int fd = [] {
        sigset_t signals;
        sigemptyset(&signals);
        sigaddset(&signals, SIGINT);
        sigaddset(&signals, SIGTERM);
        sigaddset(&signals, SIGHUP);
        sigprocmask(SIG_BLOCK, &signals, nullptr);
        std::signal(SIGPIPE, SIG_IGN);
        return ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    }();
    return fd;
}

int interrupted_by() {
    signalfd_siginfo info{};
    if (::read(interrupt_fd(), &info, sizeof info) == static_cast<ssize_t>(sizeof info))
        received_signal = static_cast<int>(info.ssi_signo);
    return received_signal;
}

captured run_captured(const std::vector<std::string>& command,
                      const std::vector<std::pair<std::string, std::string>>& environment,
                      const std::optional<std::string>& confinement) {
    captured result;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
        return result;
    unique_fd reading(ends[0]), writing(ends[1]);
    std::string error;
    spawn_request request{command, environment, -1, writing.get(), -1, {}, false};
    if (confinement) {
        request.err = writing.get();
        request.guarded = true;
        request.confinement = *confinement;
    }
    auto child = child_process::start(request, error);
    if (!child) {
        fmt::print(stderr, "kage: {}\n", error);
        return result;
    }
    writing.reset();
    for (;;) {
        pollfd fds[] = {{reading.get(), POLLIN, 0}, {interrupt_fd(), POLLIN, 0}};
        if (::poll(fds, 2, -1) < 0 && errno != EINTR)
            break;
        if (fds[1].revents && interrupted_by()) {
            result.status = 128 + interrupted_by();
            return result; // the child's destructor ends it
        }
        if (!fds[0].revents)
            continue;
        char buffer[4096];
        const auto got = ::read(reading.get(), buffer, sizeof buffer);
        if (got <= 0)
            break;
        result.out.append(buffer, static_cast<std::size_t>(got));
    }
    result.status = child->wait_for(std::chrono::milliseconds(-1)).value_or(127);
    return result;
}

} // namespace kagemusha::control
