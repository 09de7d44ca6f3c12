// SPDX-License-Identifier: GPL-2.0-or-later
// launcher_client: see launcher.hpp.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "worker/fd_message.hpp"
#include "worker/launcher.hpp"

namespace kagemusha::worker {

namespace {

// A start takes a millisecond. Whoever waits is the device's thread.
constexpr timeval answer_limit{5, 0};

bool send_request(int socket, const launch_request& request, int setup, int error_output) {
    const int descriptors[] = {setup, error_output};
    return send_with_fds(socket, std::as_bytes(std::span(&request, 1)), descriptors) ==
           static_cast<ssize_t>(sizeof request);
}

bool receive_answer(int socket, launch_answer& answer, unique_fd& pidfd) {
    received_message got = receive_with_fds(socket, std::as_writable_bytes(std::span(&answer, 1)), 1);
    if (got.fds.size() == 1)
        pidfd = std::move(got.fds[0]);
    return got.bytes == static_cast<ssize_t>(sizeof answer) &&
           (answer.error != 0 || (pidfd && answer.pid > 0));
}

} // namespace

launcher_client::launcher_client(unique_fd socket) : socket_(std::move(socket)) {
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &answer_limit, sizeof answer_limit);
    setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &answer_limit, sizeof answer_limit);
}

spawned_process launcher_client::start(const std::string& title, int setup, int error_output,
                                       std::string& error) {
    launch_request request{};
    request.version = launcher_version;
    title.copy(request.title, sizeof request.title - 1);
    const std::lock_guard lock(mutex_);
    if (!socket_) {
        error = "no worker can be started: the launcher of this VM is gone";
        return {};
    }
    spawned_process process;
    launch_answer answer{};
    if (!send_request(socket_.get(), request, setup, error_output) ||
        !receive_answer(socket_.get(), answer, process.pidfd)) {
        // Its next answer could be to this request.
        error = std::string("no worker can be started: the launcher of this VM does not answer: ") +
                (errno != 0 ? std::strerror(errno) : "it ended");
        socket_.reset();
        return {};
    }
    if (answer.error != 0) {
        error = std::string("the worker can't be started: ") + std::strerror(answer.error);
        return {};
    }
    process.pid = answer.pid;
    return process;
}

launcher_client* launcher_client::inherited() {
    static launcher_client* const client = []() -> launcher_client* { // never destroyed (spawn.hpp)
        const char* value = std::getenv(launcher_variable);
        if (value == nullptr)
            return nullptr;
        int fd = -1;
        const std::string_view text(value);
        const auto parsed = std::from_chars(text.data(), text.data() + text.size(), fd);
        int type = 0;
        socklen_t bytes = sizeof type;
        // A descriptor that is something else by now belongs to somebody else: every start fails, with a
        // sentence.
        if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() ||
            getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || type != SOCK_SEQPACKET)
            return new launcher_client(unique_fd());
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        return new launcher_client(unique_fd(fd));
    }();
    return client;
}

} // namespace kagemusha::worker
