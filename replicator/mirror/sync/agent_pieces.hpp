// SPDX-License-Identifier: GPL-2.0-or-later
// agent_pieces: memory objects cut into pieces that cross at once, and the entries that carry them.
#pragma once

#include <cstdint>
#include <vector>

#include "codec/encode.hpp"
#include "mirror/log/log_entry.hpp"
#include "mirror/shadow/session_shadow.hpp"

namespace kagemusha::mirror {

// A part of a memory object. `serial` is the object's in core::object_table: ids are used again, serials not.
struct piece {
    guest_id memory = 0;
    std::uint64_t serial = 0;
    guest_id context = 0;
    bool image = false;
    std::uint64_t bytes = 0;
    std::uint64_t offset = 0; // of a buffer
    codec::box origin{}, region{};
    std::uint64_t row_pitch = 0, slice_pitch = 0; // of an image's bytes, without gaps
};

// Bytes of the whole object as it crosses.
std::uint64_t content_bytes_of(const memory_info& m);
// Appends the object in pieces of at most `max_bytes` (at least one row of an image).
void append_pieces(const memory_info& m, std::uint64_t serial, std::uint64_t max_bytes,
                   std::vector<piece>& out);
void append_transfer(codec::stream_builder& stream, bool write, const codec::enqueue_ref& e, const piece& p,
                     vgpu_payload_ref data);

// An entry of the agent in the making.
class agent_entry {
public:
    explicit agent_entry(std::uint32_t file, std::uint32_t flags = 0) : file_(file), flags_(flags) {}
    codec::stream_builder stream;
    // The next payload: named by index; there is no table of segments in the log.
    vgpu_payload_ref payload(std::uint64_t bytes, bool writable, byte_pieces content = {});
    log_entry finish() const;

private:
    std::uint32_t file_, flags_;
    std::vector<entry_payload> payloads_;
    std::vector<byte_pieces> content_;
};

// Enough room for one more command of any kind that the agent uses, with a full wait list.
inline bool nearly_full(const codec::stream_builder& stream) {
    return stream.stream().size() > VGPU_MAX_STREAM_BYTES / 2;
}

} // namespace kagemusha::mirror
