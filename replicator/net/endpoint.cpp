// SPDX-License-Identifier: GPL-2.0-or-later
// See endpoint.hpp.
#include "net/endpoint.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>

#include <fcntl.h>
#include <sys/un.h>

#include <cstdint>
#include <cstring>

namespace kagemusha::net {

namespace asio = boost::asio;

namespace {

std::optional<asio::ip::tcp::endpoint> as_tcp(const stream_endpoint& endpoint) {
    const int family = endpoint.protocol().family();
    asio::ip::tcp::endpoint tcp(family == AF_INET6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4(), 0);
    if ((family != AF_INET && family != AF_INET6) || endpoint.size() > tcp.capacity())
        return std::nullopt;
    std::memcpy(tcp.data(), endpoint.data(), endpoint.size());
    tcp.resize(endpoint.size());
    return tcp;
}

} // namespace

std::optional<stream_endpoint> numeric_endpoint(const address& a) {
    if (a.is_unix())
        return stream_endpoint(asio::local::stream_protocol::endpoint(a.path));
    boost::system::error_code failed;
    const auto ip = asio::ip::make_address(a.host, failed);
    if (failed)
        return std::nullopt;
    return stream_endpoint(asio::ip::tcp::endpoint(ip, a.port));
}

std::string endpoint_text(const stream_endpoint& endpoint) {
    if (const auto tcp = as_tcp(endpoint))
        return address{tcp->address().to_string(), tcp->port(), {}}.text();
    if (endpoint.protocol().family() == AF_UNIX && endpoint.size() > offsetof(sockaddr_un, sun_path)) {
        const auto* const name = reinterpret_cast<const sockaddr_un*>(endpoint.data());
        const std::size_t bytes = endpoint.size() - offsetof(sockaddr_un, sun_path);
        return "unix:" + std::string(name->sun_path, strnlen(name->sun_path, bytes));
    }
    return "a Unix socket without a name";
}

bool is_local(const stream_endpoint& endpoint) {
    return endpoint.protocol().family() == AF_UNIX;
}

std::string needs_tls(const std::string& address) {
    return "'" + address +
           "' can be reached by other machines, or by every user of this one, so it needs TLS: make keys "
           "with "
           "`kage keys` and name their directory (without TLS only unix: addresses are allowed)";
}

void set_socket_options(stream_protocol::socket& socket, const stream_endpoint& endpoint) {
    ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC); // a QEMU that is started has no use for it
    boost::system::error_code ignored;
    const int family = endpoint.protocol().family();
    if (family == AF_INET || family == AF_INET6)
        socket.set_option(asio::ip::tcp::no_delay(true), ignored);
}

} // namespace kagemusha::net
