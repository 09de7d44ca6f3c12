// SPDX-License-Identifier: GPL-2.0-or-later
//
// See peer_tls.hpp.
#include "control/daemon/fleet/peer_tls.hpp"

#include "control/base/tcp_watch.hpp"
#include "control/keys/certificates.hpp"

#include <boost/asio/read_until.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

namespace kagemusha::control::daemon {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::use_awaitable;

std::optional<asio::ssl::context> peer_context(const fleet_settings& own, bool server, std::string& error) {
    std::optional<asio::ssl::context> out(std::in_place, server ? asio::ssl::context::tlsv13_server
                                                                : asio::ssl::context::tlsv13_client);
    try {
        out->set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
        out->load_verify_file(own.tls + "/ca.pem");
        out->use_certificate_chain_file(own.tls + "/cert.pem");
        out->use_private_key_file(own.tls + "/key.pem", asio::ssl::context::pem);
    } catch (const boost::system::system_error& failed) {
        error = fmt::format("the keys in {} can't be used: {}", own.tls, failed.code().message());
        return std::nullopt;
    }
    return out;
}

std::string peer_name(peer_stream& stream) {
    const net::x509_ptr certificate(::SSL_get1_peer_certificate(stream.native_handle()));
    return certificate ? common_name(certificate.get()) : std::string();
}

std::string peer_sentence(const peer_place& to, const boost::system::error_code& error) {
    const auto at = host_and_port(to.address, to.port);
    if (error == beast::error::timeout)
        return fmt::format("{} at {} does not answer", to.name, at);
    return fmt::format("{} at {} can't be asked: {}", to.name, at, error.message());
}

void watch_peer(asio::ip::tcp::socket& socket) {
    watch_tcp(socket.native_handle(), {.idle_s = 10, .each_s = 5, .times = 4, .unacknowledged_ms = 30'000});
}

asio::awaitable<std::string> read_peer_line(peer_stream& stream, std::string& buffer) {
    const auto end = co_await asio::async_read_until(stream, asio::dynamic_buffer(buffer, longest_peer_line),
                                                     '\n', use_awaitable);
    auto line = buffer.substr(0, end - 1);
    buffer.erase(0, end);
    co_return line;
}

asio::awaitable<std::string> begin_with_peer(peer_stream& stream, peer_place to, std::string line,
                                             std::string& rest) {
    auto& lowest = beast::get_lowest_layer(stream);
    stream.set_verify_callback(asio::ssl::host_name_verification(to.name));
    lowest.expires_after(peer_begins_within);
    co_await lowest.async_connect(asio::ip::tcp::endpoint(asio::ip::make_address(to.address), to.port),
                                  use_awaitable);
    watch_peer(lowest.socket());
    co_await stream.async_handshake(asio::ssl::stream_base::client, use_awaitable);
    lowest.expires_after(peer_answers_within);
    co_await asio::async_write(stream, asio::buffer(line), use_awaitable);
    co_return co_await read_peer_line(stream, rest);
}

} // namespace kagemusha::control::daemon
