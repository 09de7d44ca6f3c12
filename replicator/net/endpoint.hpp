// SPDX-License-Identifier: GPL-2.0-or-later
// endpoint: net/address.hpp in Asio's terms. For the sources of this folder only.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>

#include <optional>
#include <string>

#include "net/address.hpp"

namespace kagemusha::net {

using stream_protocol = boost::asio::generic::stream_protocol;
using stream_endpoint = stream_protocol::endpoint;

// Of a Unix socket or a numeric address; nothing for a name, which has to be looked up.
std::optional<stream_endpoint> numeric_endpoint(const address& a);

std::string endpoint_text(const stream_endpoint& endpoint);
// Whether only who may open a file of ours can connect: a Unix socket. A port of this machine is open to each
// of its users, and whoever connects first is the primary.
bool is_local(const stream_endpoint& endpoint);

// "TLS is needed for …": what to tell who wanted it without.
std::string needs_tls(const std::string& address);

// Options of every connected socket: no delay of small frames; keepalive stays off, the protocol has its own
// heartbeat.
void set_socket_options(stream_protocol::socket& socket, const stream_endpoint& endpoint);

} // namespace kagemusha::net
