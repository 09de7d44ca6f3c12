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

#include "worker/launcher.hpp"

namespace kagemusha::worker {

namespace {

// A start takes a millisecond. Whoever waits is the device's thread.
constexpr timeval answer_limit{5, 0};

union two_descriptors {
    cmsghdr alignment;
    char bytes[CMSG_SPACE(2 * sizeof(int))];
};

bool send_request(int socket, const launch_request& request, int setup, int error_output) {
    two_descriptors control{};
    iovec io{const_cast<launch_request*>(&request), sizeof request};
    msghdr header{};
    header.msg_iov = &io;
    header.msg_iovlen = 1;
    header.msg_control = control.bytes;
    header.msg_controllen = sizeof control.bytes;
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(2 * sizeof(int));
    const int descriptors[] = {setup, error_output};
    std::memcpy(CMSG_DATA(rights), descriptors, sizeof descriptors);
    ssize_t sent;
    do {
        sent = sendmsg(socket, &header, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == static_cast<ssize_t>(sizeof request);
}

bool receive_answer(int socket, launch_answer& answer, unique_fd& pidfd) {
    two_descriptors control{};
    iovec io{&answer, sizeof answer};
    msghdr header{};
    header.msg_iov = &io;
    header.msg_iovlen = 1;
    header.msg_control = control.bytes;
    header.msg_controllen = CMSG_SPACE(sizeof(int));
    ssize_t got;
    do {
        got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    const cmsghdr* part = got > 0 ? CMSG_FIRSTHDR(&header) : nullptr;
    if (part != nullptr && part->cmsg_type == SCM_RIGHTS && part->cmsg_len == CMSG_LEN(sizeof(int))) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(part), sizeof fd);
        pidfd.reset(fd);
    }
    return got == static_cast<ssize_t>(sizeof answer) && (answer.error != 0 || (pidfd && answer.pid > 0));
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
    static const auto client = []() -> std::unique_ptr<launcher_client> {
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
            return std::make_unique<launcher_client>(unique_fd());
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        return std::make_unique<launcher_client>(unique_fd(fd));
    }();
    return client.get();
}

} // namespace kagemusha::worker
