// SPDX-License-Identifier: GPL-2.0-or-later
// messages: mirror/protocol/message.hpp ↔ bytes of the wire. A frame is
//
//   frame_header (16 bytes, little-endian) │ protobuf kagemusha.replication.Message │ payload bytes
//
// The payload is outside protobuf so that it is never copied into a message: a sender gathers it, a receiver
// reads it to where it belongs (streams to private memory, content to memory that workers share).
// Specification: docs/spec/replication.md, proto/replication/replication.proto.
//
// Pure; the peer is hostile: every length, count and enumeration is checked before anything is allocated for
// it. What a message means for the state of a connection (order, numbers that must agree with others) is
// checked by the state machines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mirror/log/limits.hpp"
#include "mirror/protocol/message.hpp"

namespace kagemusha::messages {

inline constexpr std::uint32_t frame_magic = 0x524d474b; // "KGMR"

struct frame_header {
    std::uint32_t magic;
    std::uint32_t message_bytes; // <= mirror::max_message_bytes
    std::uint64_t payload_bytes; // <= mirror::max_frame_payload_bytes
};
static_assert(sizeof(frame_header) == 16);

// Appends header and protobuf part to `out`; the caller sends payload_bytes_of(m) bytes after it. Texts are
// cut to max_text_bytes, and what is not printable in them becomes '?'. Anything else that check() refuses is
// the caller's error and ends the process.
void encode(const mirror::message& m, std::vector<std::byte>& out);

// Bytes that follow a message: of `entries` the streams and the content that is not late, of `content` the
// piece (compressed, if it is). The message passed check().
std::uint64_t payload_bytes_of(const mirror::message& m);

// Empty, or a sentence: which rule was broken.
std::string check(const frame_header& header);
std::string check(const mirror::message& m);
// `protobuf` is the message part; header.payload_bytes must be payload_bytes_of() the result.
// Empty, or a sentence.
std::string decode(const frame_header& header, std::span<const std::byte> protobuf, mirror::message& out);

// How many entries go into one `entries` message: take() says whether this one still fits into the frame's
// bounds and counts it. The first one always does.
class entries_budget {
public:
    bool take(const mirror::entry_meta& meta, std::size_t payload_count);

private:
    std::uint32_t count_ = 0;
    std::uint64_t message_bytes_ = 0; // at most
    std::uint64_t payload_bytes_ = 0;
};

} // namespace kagemusha::messages
