// SPDX-License-Identifier: GPL-2.0-or-later
// lane_stream: all of some bytes over a blocking socket, with TLS or without. For lane.cpp only.
//
// Threads: the lane's, but for abort().
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "net/door.hpp"

namespace kagemusha::net {

class lane_stream {
public:
    // Who connects; then shake_hands() where there is TLS. Empty, or why not. `stop`: looked at while it waits.
    std::string connect(const stream_endpoint& to, std::uint32_t timeout_ms, const std::atomic<bool>& stop);
    std::string shake_hands(const std::shared_ptr<const tls_context>& tls);
    // Who listens: a peer whom the door has let in.
    void adopt(admitted_peer peer);
    // As it was; only while nothing but look() was done.
    admitted_peer give_back();

    void set_timeout(std::uint32_t ms); // of each wait of what follows
    // Empty, or why not all of it was read or written.
    std::string read(std::span<std::byte> to);
    std::string write(std::span<const std::span<const std::byte>> pieces);
    // The first bytes, which a read gets again. False: they did not come.
    bool look(std::span<std::byte> to);
    // Ends what waits, now and from now on. Any thread, once connect() or adopt() has returned.
    void abort();

private:
    std::string failure(int result) const;
    void make_blocking();

    int fd_ = -1; // of peer_
    std::unique_ptr<admitted_peer> peer_;
    std::shared_ptr<const tls_context> tls_;
    ssl_pointer ssl_;
};

} // namespace kagemusha::net
