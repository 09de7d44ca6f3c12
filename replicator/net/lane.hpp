// SPDX-License-Identifier: GPL-2.0-or-later
// lane: one more connection of a link, for the bytes of large pieces of content. It has a blocking socket and
// a thread of its own at both ends, so that several processors copy and encrypt, and so that heartbeats and
// commands, which stay on the link's first connection, never wait behind content.
//
// On the wire, after TLS if the link has it: a lane_greeting, a lane_answer, and then nothing but the bytes of
// the pieces that `content` messages of the first connection announce for this lane, in the order of those
// messages. So nothing that comes over a lane is parsed. What the peer sends beyond what it has announced is
// not read.
//
// Threads: everything here is called on the loop's thread, and so are the functions that it is given, until
// the object ends. Destructors wait for the lane's thread, which they wake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mirror/log/limits.hpp"
#include "net/door.hpp"
#include "net/link.hpp"

namespace kagemusha::net {

// Little-endian. The first byte tells it from a frame and from a record of TLS.
inline constexpr std::uint32_t lane_magic = 0x4c4d474b; // "KGML"
struct lane_greeting {
    std::uint32_t magic = lane_magic;
    std::uint32_t number = 0; // 1 to mirror::max_lanes, each once
    std::byte token[mirror::lane_token_bytes] = {};
};
struct lane_answer {
    std::uint32_t magic = lane_magic;
    std::uint32_t number = 0;
};

// Who connects.
class lane_sender {
public:
    struct target {
        stream_endpoint endpoint;
        std::shared_ptr<const tls_context> tls; // null: none
        std::uint32_t connect_timeout_ms = 0;   // with the handshake and the answer
        std::uint32_t write_timeout_ms = 0;
        lane_greeting greeting;
    };
    struct events {
        std::function<void(std::uint64_t bytes)> sent; // all of a piece was handed to the kernel
        std::function<void(const std::string& why)> ended;
    };
    lane_sender(event_loop& loop, target to, events e);
    ~lane_sender();
    lane_sender(const lane_sender&) = delete;

    bool is_open() const { return open_; }
    // As link::send, of a piece's bytes.
    void send(std::vector<std::span<const std::byte>> payload, std::shared_ptr<const void> keep);
    std::uint64_t queued_bytes() const { return queued_bytes_; }

private:
    struct shared;
    const events events_;
    std::shared_ptr<shared> shared_;
    bool open_ = false;
    std::uint64_t queued_bytes_ = 0;
};

// Who listens: a peer that the door has let in and that is a lane perhaps.
class lane_receiver {
public:
    struct events {
        std::function<void(const lane_greeting&)> greeted; // accept() follows, or the end of this
        std::function<void(admitted_peer)> no_lane;        // nothing was read of it; last
        std::function<void()> arrived;                     // all of a piece, in order
        std::function<void(const std::string& why)> ended; // last
    };
    lane_receiver(event_loop& loop, admitted_peer peer, std::uint32_t greeting_timeout_ms,
                  std::uint32_t read_timeout_ms, events e);
    ~lane_receiver();
    lane_receiver(const lane_receiver&) = delete;

    void accept(std::uint32_t number); // answers; pieces may come
    void expect(receive_buffers where);

private:
    struct shared;
    const events events_;
    std::shared_ptr<shared> shared_;
};

} // namespace kagemusha::net
