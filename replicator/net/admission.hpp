// SPDX-License-Identifier: GPL-2.0-or-later
// admission: which connections a listener lets begin to prove who they are. Anybody who can reach the port
// can open connections and make each cost a signature, so every source has a part of its own: whoever floods
// the port keeps his own connections out, and nobody else's.
//
//   - A source may have max_per_source connections in their handshake; one more ends its oldest one.
//   - All together may have max_half_open; one more ends the oldest one of the source that has most.
//   - A source may try try_burst times, then once each try_interval_ms. A try that succeeds does not count.
//
// Pure: no sockets, no clock. For listeners: of links (door) and of relays (control/relay).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>

struct sockaddr;

namespace kagemusha::net {

// Whom a peer shares its part with, as bytes: its address without the port; of IPv6 its network of 64 bits,
// because a host has all of those addresses. Empty for a Unix socket.
std::string source_of(const sockaddr& peer);

class admission {
public:
    static constexpr std::size_t max_half_open = 64;
    static constexpr std::size_t max_per_source = 16;
    static constexpr std::uint32_t try_burst = 64;
    static constexpr std::uint64_t try_interval_ms = 20;
    // What is remembered of sources without a connection; beyond it all of them begin anew.
    static constexpr std::size_t max_sources = 1024;

    struct decision {
        bool admitted = false;
        std::uint64_t ends = 0; // not 0: this connection has to make room
    };
    // `id`: a new number, not 0. on_end() follows for each that was admitted, unless it had to make room.
    decision on_arrival(const std::string& source, std::uint64_t id, std::uint64_t now_ms);
    void on_end(std::uint64_t id, bool proved);

    std::size_t half_open() const { return half_open_.size(); }
    std::size_t sources() const { return sources_.size(); }

private:
    struct source_state {
        std::size_t half_open = 0;
        std::uint32_t tries = try_burst; // that are left
        std::uint64_t counted_ms = 0;    // up to when
    };
    struct connection {
        std::uint64_t id;
        std::string source;
    };
    bool may_try(source_state& s, std::uint64_t now_ms);
    std::uint64_t end_oldest(const std::string& source);

    std::unordered_map<std::string, source_state> sources_;
    std::deque<connection> half_open_; // oldest first
};

} // namespace kagemusha::net
