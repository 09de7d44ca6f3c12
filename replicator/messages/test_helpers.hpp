// SPDX-License-Identifier: GPL-2.0-or-later
// What the tests of messages share: frames as one vector of bytes, and entries that keep every rule.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "messages/messages.hpp"

namespace kagemusha::messages::test {

inline frame_header header_of(const std::vector<std::byte>& frame) {
    frame_header header;
    std::memcpy(&header, frame.data(), sizeof(header));
    return header;
}

inline std::vector<std::byte> encoded(const mirror::message& m) {
    std::vector<std::byte> out;
    encode(m, out);
    return out;
}

inline std::string decode_frame(const std::vector<std::byte>& frame, mirror::message& out) {
    return decode(header_of(frame), std::span(frame).subspan(sizeof(frame_header)), out);
}

// A submit with these payloads that keeps every rule.
inline mirror::entries::entry submit_entry(mirror::log_sequence sequence,
                                           std::vector<mirror::entry_payload> payloads = {},
                                           std::uint32_t flags = 0) {
    mirror::entries::entry e;
    e.meta.sequence = sequence;
    e.meta.file = 7;
    e.meta.flags = flags;
    e.meta.op_count = 2;
    e.meta.stream_bytes = 48;
    for (const mirror::entry_payload& p : payloads)
        e.meta.content_bytes += p.writable ? 0 : mirror::rounded_up(p.bytes);
    e.payloads = std::move(payloads);
    return e;
}

inline mirror::entries::entry plain_entry(mirror::log_sequence sequence, mirror::entry_kind kind,
                                          std::uint32_t file) {
    mirror::entries::entry e;
    e.meta.sequence = sequence;
    e.meta.kind = kind;
    e.meta.file = file;
    return e;
}

} // namespace kagemusha::messages::test
