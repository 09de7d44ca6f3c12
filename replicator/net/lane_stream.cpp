// SPDX-License-Identifier: GPL-2.0-or-later
// See lane_stream.hpp.
#include "net/lane_stream.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#include "mirror/log/limits.hpp"
#include "net/endpoint.hpp"
#include "net/tls.hpp"

namespace kagemusha::net {

namespace {

// Between two looks at `stop`.
constexpr int look_ms = 20;

constexpr std::size_t max_pieces_per_call = 64;

std::string text_of(int error) {
    return error == EAGAIN || error == EWOULDBLOCK ? "nothing moved in time" : std::strerror(error);
}

// Empty: connected.
std::string wait_connected(int fd, std::uint32_t timeout_ms, const std::atomic<bool>& stop) {
    const std::uint64_t until = event_loop::now_ms() + timeout_ms;
    for (;;) {
        pollfd p{fd, POLLOUT, 0};
        const int ready = ::poll(&p, 1, look_ms);
        if (stop)
            return "no longer wanted";
        if (ready > 0) {
            int error = 0;
            socklen_t size = sizeof(error);
            ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
            return error == 0 ? std::string() : std::strerror(error);
        }
        if (event_loop::now_ms() >= until)
            return "no answer within " + std::to_string(timeout_ms) + " ms";
    }
}

} // namespace

std::string lane_stream::connect(const stream_endpoint& to, std::uint32_t timeout_ms,
                                 const std::atomic<bool>& stop) {
    const int fd = ::socket(to.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return std::strerror(errno);
    peer_ = std::make_unique<admitted_peer>(admitted_peer{owned_socket(fd, to.protocol()), {}});
    fd_ = fd;
    if (::connect(fd, to.data(), static_cast<socklen_t>(to.size())) != 0) {
        if (errno != EINPROGRESS)
            return std::strerror(errno);
        if (auto why = wait_connected(fd, timeout_ms, stop); !why.empty())
            return why;
    }
    if (is_local(to)) { // a piece is sent without its reader, as far as net.core.wmem_max allows
        const int bytes = mirror::sent_piece_bytes;
        ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    } else { // the end of a piece waits for nobody's acknowledgement
        const int on = 1;
        ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    }
    make_blocking();
    set_timeout(timeout_ms);
    return {};
}

std::string lane_stream::shake_hands(const std::shared_ptr<const tls_context>& tls) {
    tls_ = tls;
    auto& context = const_cast<boost::asio::ssl::context&>(tls->context);
    ssl_.reset(SSL_new(context.native_handle()));
    if (!ssl_ || SSL_set_fd(ssl_.get(), fd_) != 1)
        return "no memory";
    if (auto why = expect_peer(ssl_.get(), *tls); !why.empty())
        return why;
    ERR_clear_error();
    const int result = SSL_connect(ssl_.get());
    return result == 1 ? std::string() : failure(result);
}

void lane_stream::adopt(admitted_peer peer) {
    peer_ = std::make_unique<admitted_peer>(std::move(peer));
    fd_ = peer_->socket.get();
    tls_ = peer_->tls;
    ssl_ = std::move(peer_->ssl);
    make_blocking();
}

admitted_peer lane_stream::give_back() {
    const int flags = ::fcntl(fd_, F_GETFL);
    ::fcntl(fd_, F_SETFL, flags | O_NONBLOCK);
    set_timeout(0);
    admitted_peer out = std::move(*peer_);
    out.ssl = std::move(ssl_);
    peer_.reset();
    fd_ = -1;
    return out;
}

void lane_stream::make_blocking() {
    const int flags = ::fcntl(fd_, F_GETFL);
    ::fcntl(fd_, F_SETFL, flags & ~O_NONBLOCK);
}

void lane_stream::set_timeout(std::uint32_t ms) {
    const timeval t{static_cast<time_t>(ms / 1000), static_cast<suseconds_t>(ms % 1000 * 1000)};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t));
}

// Of OpenSSL's call that gave `result`.
std::string lane_stream::failure(int result) const {
    const int error = errno;
    switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_SSL:
        return tls_sentence(ERR_peek_error(), *tls_, false);
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return text_of(EAGAIN);
    case SSL_ERROR_SYSCALL:
        return error == 0 ? "the peer closed it" : text_of(error);
    default:
        return "the peer closed it";
    }
}

std::string lane_stream::read(std::span<std::byte> to) {
    while (!to.empty()) {
        ssize_t got = 0;
        if (ssl_) {
            ERR_clear_error();
            errno = 0;
            got =
                SSL_read(ssl_.get(), to.data(), static_cast<int>(std::min<std::size_t>(to.size(), INT_MAX)));
            if (got <= 0)
                return failure(static_cast<int>(got));
        } else {
            got = ::recv(fd_, to.data(), to.size(), 0);
            if (got < 0 && errno == EINTR)
                continue;
            if (got <= 0)
                return got == 0 ? "the peer closed it" : text_of(errno);
        }
        to = to.subspan(static_cast<std::size_t>(got));
    }
    return {};
}

bool lane_stream::look(std::span<std::byte> to) {
    if (ssl_)
        return SSL_peek(ssl_.get(), to.data(), static_cast<int>(to.size())) == static_cast<int>(to.size());
    return ::recv(fd_, to.data(), to.size(), MSG_PEEK | MSG_WAITALL) == static_cast<ssize_t>(to.size());
}

std::string lane_stream::write(std::span<const std::span<const std::byte>> pieces) {
    if (ssl_) {
        for (std::span<const std::byte> piece : pieces) {
            while (!piece.empty()) {
                ERR_clear_error();
                errno = 0;
                const int put = SSL_write(ssl_.get(), piece.data(),
                                          static_cast<int>(std::min<std::size_t>(piece.size(), INT_MAX)));
                if (put <= 0)
                    return failure(put);
                piece = piece.subspan(static_cast<std::size_t>(put));
            }
        }
        return {};
    }
    std::size_t done = 0; // of the first piece
    while (!pieces.empty()) {
        std::array<iovec, max_pieces_per_call> vectors;
        const std::size_t count = std::min(pieces.size(), vectors.size());
        for (std::size_t i = 0; i < count; ++i) {
            const auto piece = pieces[i].subspan(i == 0 ? done : 0);
            vectors[i] = {const_cast<std::byte*>(piece.data()), piece.size()};
        }
        msghdr message{};
        message.msg_iov = vectors.data();
        message.msg_iovlen = count;
        const ssize_t put = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return text_of(errno);
        done += static_cast<std::size_t>(put);
        while (!pieces.empty() && done >= pieces.front().size()) {
            done -= pieces.front().size();
            pieces = pieces.subspan(1);
        }
    }
    return {};
}

void lane_stream::abort() {
    if (fd_ >= 0)
        ::shutdown(fd_, SHUT_RDWR);
}

} // namespace kagemusha::net
