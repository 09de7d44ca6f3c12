// SPDX-License-Identifier: GPL-2.0-or-later
//
// A learning Ethernet switch whose links have a bandwidth and a latency: the private network of a cluster's
// nodes. Pure: frames and the time go in, frames for ports come out; lan.cpp has the sockets.
//
// Each port is a link with two directions. A frame takes its length / bandwidth to pass a direction, one after
// the other, and arrives at the switch a latency later; there it goes into the other direction of the link of
// its destination. So a ping of two nodes has four times length / bandwidth and twice the latency.
//
// A direction holds at most `most_queued_bytes`, and never more than `most_queued_ms` of its bandwidth: a
// frame beyond that is dropped, as a switch with full buffers does, and TCP learns the bandwidth from it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control::lan {

using mac_address = std::array<unsigned char, 6>;

struct link_shape {
    std::uint64_t bits_per_s = 0; // 0: as fast as it goes
    std::uint64_t latency_us = 0;
};

// One direction of one link.
class shaped_queue {
public:
    static constexpr std::size_t most_queued_bytes = 4 << 20;
    static constexpr std::uint64_t most_queued_us = 100'000;

    // False: it is full, and the frame is dropped.
    bool push(std::string frame, const link_shape& shape, bool with_latency, std::uint64_t now_us);
    struct arrived {
        std::uint64_t at_us;
        std::string frame;
    };
    std::optional<arrived> pop(std::uint64_t now_us); // the next one, if it has arrived by now
    std::optional<std::uint64_t> next_us() const;

private:
    std::deque<arrived> frames_;
    std::size_t bytes_ = 0;
    std::uint64_t free_ns_ = 0; // when its last frame has passed
};

class ethernet_switch {
public:
    using port = std::uint32_t;
    static constexpr port gateway = 0; // always there, without a link: its frames take no time
    // All addresses that begin so are the gateway's: libslirp makes them of its IPv4 addresses.
    static constexpr unsigned char gateway_prefix[2] = {0x52, 0x55};
    static constexpr std::size_t most_addresses = 1024, most_ports = 256;

    struct output {
        port to;
        std::string frame;
    };
    struct counts {
        std::uint64_t frames = 0, bytes = 0, dropped = 0;
    };

    void set_shape(const link_shape& shape) { shape_ = shape; }
    // False: there are too many. A trunk leads to this network's switch on another host: it has no bandwidth of
    // its own, because each frame has its node's link at both ends. What comes out of one goes to nodes here
    // alone, so that frames do not go round; each host has a gateway for its own nodes.
    bool add(port number, bool is_trunk = false);
    void remove(port number);

    // `frame` came from a port. What leaves at once is among `out`, what has to wait comes out of due().
    void receive(port from, std::string_view frame, std::uint64_t now_us, std::vector<output>& out);
    void due(std::uint64_t now_us, std::vector<output>& out);
    std::optional<std::uint64_t> next_us() const; // when due() has something

    // Where this address was seen last.
    std::optional<port> where(const mac_address& address) const;
    const counts& counted() const { return counts_; }

private:
    struct link {
        shaped_queue in, out;
        bool is_trunk = false;
    };
    bool is_trunk(port number) const;
    bool has_shape() const { return shape_.bits_per_s != 0 || shape_.latency_us != 0; }
    void learn(const mac_address& address, port from);
    void forward(port from, std::string_view frame, std::uint64_t now_us, std::vector<output>& out);
    void send(port to, std::string_view frame, std::uint64_t now_us, std::vector<output>& out);

    link_shape shape_;
    std::map<port, link> links_;
    std::map<mac_address, port> addresses_;
    std::deque<mac_address> learnt_; // in the order in which they were: the oldest one makes room
    counts counts_;
};

} // namespace kagemusha::control::lan
