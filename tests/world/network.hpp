// SPDX-License-Identifier: GPL-2.0-or-later
// What lies between hosts. Each ordered pair has a way for each port, which may be blocked (silently, as a
// pulled cable or a firewall's DROP: TCP repeats, and what was sent arrives after the end) or slow.
//
// Of the supervisors' connections each message is carried; of the streams of state and GPU the models ask
// only when something would arrive.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "mirror/protocol/message.hpp"
#include "world/events.hpp"
#include "world/options.hpp"

namespace kagemusha::world {

class world;
constexpr std::size_t most_hosts = 3;

class network {
public:
    explicit network(world& w) : w_(w) {}

    bool blocked(std::uint8_t from, std::uint8_t to, port p) const;
    bool cut_off(std::uint8_t host) const; // from clients and arbiter
    // When something sent now is there.
    time_us arrival(std::uint8_t from, std::uint8_t to, port p);

    // ---- the supervisors' connections. An end is a host and the generation of its process.
    // One attempt at a time; `attempt` is the process's number of it.
    void connect(std::uint8_t from, std::uint32_t generation, std::uint8_t to, std::uint32_t attempt);
    void send(std::uint32_t connection, int end, const mirror::message& m);
    // What was sent still goes out.
    void finish(std::uint32_t connection, int end, const std::string& why);
    // Its process has ended. `silent`: with its host, so nobody says so.
    void process_ended(std::uint8_t host, bool silent);
    void happen(const event& e);

    // ---- faults
    void block(std::uint8_t from, std::uint8_t to, port p, time_us until);
    void slow(std::uint8_t from, std::uint8_t to, port p, time_us until, time_us extra);
    void unplug(std::uint8_t host, time_us until);
    void reset(std::uint8_t a, std::uint8_t b, port p);
    void heal();

private:
    struct item {
        time_us at;
        bool end; // of the connection
        mirror::message what;
    };
    struct connection {
        std::uint8_t host[2] = {}; // 0: who connected
        std::uint32_t generation[2] = {};
        bool open[2] = {};
        std::deque<item> towards[2];
    };
    struct way {
        time_us blocked_until = 0, slow_until = 0, extra = 0;
    };

    void put(std::uint32_t id, int towards, item i);
    void deliver(std::uint32_t id, int end);
    void connected(const event& e);

    world& w_;
    way ways_[most_hosts][most_hosts][ports];
    time_us unplugged_until_[most_hosts] = {};
    std::vector<connection> connections_;
};

} // namespace kagemusha::world
