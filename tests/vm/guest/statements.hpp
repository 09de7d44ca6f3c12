// SPDX-License-Identifier: GPL-2.0-or-later
//
// How a guest program tells a peer in the network what came out (../soak/peer.py): each statement is a
// packet, and as packets get lost, the peer may ask for one again. One thread.
#pragma once

#include "cl_gpu.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <vector>

inline constexpr std::uint16_t first_port = 7800;       // plus the number of the stream, at both ends
inline constexpr std::size_t kept_statements = 1 << 14; // that can be said again

struct statement { // all numbers are little-endian
    char magic[8]; // "SOAKED01", or "AGAIN_01" when the peer asked for it
    std::uint64_t number, before, after, input;
};
struct demand {
    char magic[8]; // "SAYAGAIN"
    std::uint64_t number;
};

inline std::uint64_t random_number() {
    std::uint64_t value = 0;
    if (::getrandom(&value, sizeof value, 0) != sizeof value)
        fail("getrandom");
    return value;
}

// A UDP socket between the stream's port here and the same at `address`; nothing waits on it.
inline int peer_socket(const char* address, std::uint16_t stream) {
    sockaddr_in here{}, there{};
    here.sin_family = there.sin_family = AF_INET;
    here.sin_port = there.sin_port = htons(static_cast<std::uint16_t>(first_port + stream));
    if (inet_pton(AF_INET, address, &there.sin_addr) != 1)
        fail("the peer's address");
    const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    if (fd < 0 || ::bind(fd, reinterpret_cast<const sockaddr*>(&here), sizeof here) != 0 ||
        ::connect(fd, reinterpret_cast<const sockaddr*>(&there), sizeof there) != 0)
        fail("socket");
    return fd;
}

class wire {
public:
    wire(const char* address, std::uint16_t stream)
        : fd_(peer_socket(address, stream)), said_(kept_statements) {}
    void say(const statement& what) {
        statement& kept = said_[what.number % kept_statements] = what;
        last_ = what.number;
        send("SOAKED01", kept);
        answer();
    }
    // What the peer has asked for again.
    void answer() {
        demand asked{};
        while (::recv(fd_, &asked, sizeof asked, 0) == sizeof asked)
            if (std::memcmp(asked.magic, "SAYAGAIN", 8) == 0 && asked.number != 0 && asked.number <= last_ &&
                said_[asked.number % kept_statements].number == asked.number)
                send("AGAIN_01", said_[asked.number % kept_statements]);
    }

private:
    void send(const char* magic, statement what) const {
        std::memcpy(what.magic, magic, sizeof what.magic);
        (void)!::send(fd_, &what, sizeof what, 0); // nobody may be there, or the queue be full
    }
    int fd_;
    std::vector<statement> said_;
    std::uint64_t last_ = 0;
};
