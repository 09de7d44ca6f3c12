// SPDX-License-Identifier: GPL-2.0-or-later
//
// See sockets.hpp.
#include "control/relay/sockets.hpp"

#include "control/base/unix_socket.hpp"
#include "net/address.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kagemusha::control {

namespace {

constexpr int backlog = 64;

using resolved = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

resolved resolve(const net::address& at, bool passive, std::string& error) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
    if (const int failed = ::getaddrinfo(at.host.c_str(), std::to_string(at.port).c_str(), &hints, &found))
        error = fmt::format("{}: {}", at.text(), ::gai_strerror(failed));
    return {found, &::freeaddrinfo};
}

unique_fd listen_unix(const std::string& path, std::optional<std::uint32_t> owner) {
    const auto name = unix_address(path);
    ::unlink(path.c_str());
    unique_fd fd(name ? ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1);
    // Nobody can connect before listen(), so nobody gets in between.
    if (fd && ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&*name), sizeof *name) == 0 &&
        ::chmod(path.c_str(), S_IRUSR | S_IWUSR) == 0 &&
        (!owner || ::lchown(path.c_str(), *owner, *owner) == 0) && ::listen(fd.get(), backlog) == 0)
        return fd;
    return {};
}

unique_fd listen_tcp(const addrinfo& at) {
    unique_fd fd(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    if (fd && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        ::bind(fd.get(), at.ai_addr, at.ai_addrlen) == 0 && ::listen(fd.get(), backlog) == 0)
        return fd;
    return {};
}

// 0, or why not, as errno says it.
int finish_connecting(int fd, int time_ms, int beside) {
    pollfd both[] = {{fd, POLLOUT, 0}, {beside, POLLRDHUP, 0}};
    int ready = 0;
    while ((ready = ::poll(both, 2, time_ms)) < 0 && errno == EINTR) {
    }
    if (ready <= 0)
        return ETIMEDOUT;
    if (both[0].revents == 0)
        return ECANCELED;
    int why = 0;
    socklen_t bytes = sizeof why;
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &bytes);
    return why;
}

} // namespace

unique_fd listen_at(const std::string& address, std::optional<std::uint32_t> owner, std::string& error) {
    const auto at = net::parse_address(address, error);
    if (!at)
        return {};
    unique_fd fd;
    if (at->is_unix()) {
        fd = listen_unix(at->path, owner);
    } else {
        const auto all = resolve(*at, true, error);
        for (const auto* one = all.get(); one != nullptr && !fd; one = one->ai_next)
            fd = listen_tcp(*one);
    }
    if (!fd && error.empty())
        error = fmt::format("cannot listen at {}: {}", address, std::strerror(errno));
    return fd;
}

unique_fd connect_tcp(const std::string& address, int time_ms, int beside, std::string& error) {
    const auto at = net::parse_address(address, error);
    const auto all = at ? resolve(*at, false, error) : resolved(nullptr, &::freeaddrinfo);
    for (const auto* one = all.get(); one != nullptr; one = one->ai_next) {
        unique_fd fd(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        int why = fd ? 0 : errno;
        if (fd && ::connect(fd.get(), one->ai_addr, one->ai_addrlen) != 0)
            why = errno == EINPROGRESS ? finish_connecting(fd.get(), time_ms, beside) : errno;
        if (why == 0) {
            error.clear();
            no_delay(fd.get());
            return fd;
        }
        error = fmt::format("{}: {}", address, std::strerror(why));
    }
    return {};
}

void set_blocking(int fd) {
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
}

void no_delay(int fd) {
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

} // namespace kagemusha::control
