// SPDX-License-Identifier: GPL-2.0-or-later
// share_join: see share_join.hpp.
#include "worker/share_join.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "worker/fd_message.hpp"

namespace kagemusha::worker {

namespace {

constexpr int answer_within_ms = 1000;

joined_share refused(std::string why) {
    joined_share out;
    out.refusal = std::move(why);
    return out;
}

joined_share system_error(const std::string& socket) {
    return refused("the share arbiter of this GPU (kagemusha-gpu) can't be reached at " + socket + ": " +
                   std::strerror(errno));
}

} // namespace

joined_share join_share(const std::string& path, const share_hello& hello) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return system_error(path);
    }
    std::memcpy(address.sun_path, path.c_str(), path.size());
    joined_share out;
    out.socket.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // With a full backlog it fails at once (EAGAIN): nobody waits for an arbiter that is stopped.
    if (!out.socket ||
        connect(out.socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        send_with_fds(out.socket.get(), std::as_bytes(std::span(&hello, 1)), {}) !=
            static_cast<ssize_t>(sizeof hello))
        return system_error(path);
    pollfd answers{out.socket.get(), POLLIN, 0};
    if (poll(&answers, 1, answer_within_ms) != 1) {
        errno = ETIMEDOUT;
        return system_error(path);
    }
    auto got = receive_with_fds(out.socket.get(), std::as_writable_bytes(std::span(&out.answer, 1)), 1);
    if (got.bytes != static_cast<ssize_t>(sizeof out.answer) || out.answer.magic != SHARE_MAGIC)
        return refused("the share arbiter of this GPU (kagemusha-gpu) closed the connection");
    out.answer.text[sizeof out.answer.text - 1] = '\0';
    if (out.answer.result != SHARE_ACCEPTED)
        return refused(out.answer.text);
    if (!got.fds.empty())
        out.page = std::move(got.fds[0]);
    if (hello.role == SHARE_SESSION && !out.page)
        return refused("the share arbiter of this GPU (kagemusha-gpu) gave no page");
    return out;
}

std::string share_text(const std::string& socket, const share_hello& hello) {
    std::ostringstream text;
    text << socket << ' ' << hello.vm << ' ' << hello.share_permille << ' ' << hello.cap_permille << ' '
         << hello.priority << ' ' << hello.memory_bytes << ' ' << (hello.flags & SHARE_IS_STANDBY);
    return text.str();
}

bool parse_share_text(std::string_view text, std::string& socket, share_hello& hello) {
    std::istringstream words{std::string(text)};
    std::string vm, more;
    hello = {};
    hello.magic = SHARE_MAGIC;
    hello.version = SHARE_VERSION;
    hello.role = SHARE_SESSION;
    if (!(words >> socket >> vm >> hello.share_permille >> hello.cap_permille >> hello.priority >>
          hello.memory_bytes >> hello.flags) ||
        words >> more || vm.size() >= sizeof hello.vm || hello.flags > SHARE_IS_STANDBY)
        return false;
    std::memcpy(hello.vm, vm.c_str(), vm.size());
    return true;
}

} // namespace kagemusha::worker
