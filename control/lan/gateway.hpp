// SPDX-License-Identifier: GPL-2.0-or-later
//
// The way between a cluster's private network and its host, with libslirp, which needs no rights: nodes reach
// what the host reaches (its loopback excepted), and the host reaches each node's agent at a Unix socket.
//
// A connection to a node is held here and not in a QEMU, so it goes on when the node does after a takeover.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <poll.h>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control::lan {

class gateway {
public:
    // With so many connections, in and out together, strangers at listen()'s port wait in the kernel's queue,
    // which is short: a process has 1,024 files by default, and nodes' links need some.
    static constexpr std::size_t max_connections = 512;

    // `send` gets each Ethernet frame for the nodes. `outside`: or only what the host asks of nodes.
    gateway(bool outside, std::function<void(std::string_view frame)> send);
    ~gateway();
    gateway(const gateway&) = delete;
    gateway& operator=(const gateway&) = delete;

    void input(std::string_view frame); // one of a node's
    // What connects to the Unix socket reaches this port of this address. "" or a sentence.
    std::string forward(const std::string& path, std::uint32_t address, std::uint16_t port);
    // The same for what connects to this host's `host_address` (IPv4) and port, until it is closed. Connections
    // that are there go on.
    std::string listen(const std::string& host_address, std::uint16_t host_port, std::uint32_t address,
                       std::uint16_t port);
    void close(const std::string& host_address, std::uint16_t host_port);
    bool is_full() const;

    // Part of a poll() loop: its descriptors are appended, `timeout_ms` (-1: none) may get shorter.
    void add_to(std::vector<pollfd>& fds, int& timeout_ms);
    void handle(const std::vector<pollfd>& fds, bool failed); // those of the last add_to(), after poll()

private:
    struct impl;
    std::unique_ptr<impl> impl_;
};

} // namespace kagemusha::control::lan
