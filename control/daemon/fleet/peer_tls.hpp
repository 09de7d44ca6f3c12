// SPDX-License-Identifier: GPL-2.0-or-later
//
// Mutual TLS 1.3 between daemons, with the keys of their settings: who connects checks the certificate for the
// name of the host that he wants, who accepts reads the other's name in his. For sources of this folder only.
//
// One line of JSON in, one out:
//
//   {"method": "POST", "target": "/v1/…", "body": "…", "if_match": "", "user": "ann", "role": "operator"}
//                                           → {"status": 202, "body": {…}, "revision": ""}
//   {"agent": "node1", "cluster": "lab"}    → {"status": 200}, and then the bytes of the node's agent, both ways
#pragma once

#include "control/daemon/fleet/peers.hpp"
#include "control/daemon/fleet/settings.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <nlohmann/json.hpp>

#include <chrono>
#include <optional>
#include <string>

namespace kagemusha::control::daemon {

using peer_stream = boost::beast::ssl_stream<boost::beast::tcp_stream>;

inline constexpr std::size_t longest_peer_line = 256 << 10; // a request has at most 64 KiB, in JSON twice
inline constexpr auto peer_begins_within = std::chrono::seconds(10);
inline constexpr auto peer_answers_within = std::chrono::seconds(20); // a drill takes some seconds

// Nothing and a sentence: the keys are of no use.
std::optional<boost::asio::ssl::context> peer_context(const fleet_settings& own, bool server,
                                                      std::string& error);
// The name in the other end's certificate; "": none that a host has.
std::string peer_name(peer_stream& stream);

// A sentence of `error` for people: what is wrong with reaching `to`.
std::string peer_sentence(const peer_place& to, const boost::system::error_code& error);

// Connects, proves both ends, sends the line and reads the answer's; `rest`: bytes behind it. Throws
// boost::system::system_error.
boost::asio::awaitable<std::string> begin_with_peer(peer_stream& stream, peer_place to, std::string line,
                                                    std::string& rest);
// The next line; bytes behind it stay in `buffer`.
boost::asio::awaitable<std::string> read_peer_line(peer_stream& stream, std::string& buffer);

// Ends a connection whose other host is gone within half a minute, although nobody speaks.
void watch_peer(boost::asio::ip::tcp::socket& socket);

} // namespace kagemusha::control::daemon
