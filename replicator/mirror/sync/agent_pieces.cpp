// SPDX-License-Identifier: GPL-2.0-or-later
// agent_pieces: see agent_pieces.hpp.
#include "mirror/sync/agent_pieces.hpp"

#include <algorithm>
#include <cstring>

#include "codec/image_format.hpp"

namespace kagemusha::mirror {

std::uint64_t content_bytes_of(const memory_info& m) {
    if (m.bytes != 0)
        return m.bytes;
    // Created images have passed the validator, which multiplied the same numbers with checks.
    const codec::image_extent extent = codec::image_extent_of(m.image);
    return extent.side[0] * extent.side[1] * extent.side[2] *
           codec::image_element_bytes(m.image.channel_order, m.image.channel_type);
}

void append_pieces(const memory_info& m, std::uint64_t serial, std::uint64_t max_bytes,
                   std::vector<piece>& out) {
    piece p;
    p.memory = m.id;
    p.serial = serial;
    p.context = m.context;
    if (m.bytes != 0) {
        for (p.offset = 0; p.offset < m.bytes; p.offset += p.bytes) {
            p.bytes = std::min(max_bytes, m.bytes - p.offset);
            out.push_back(p);
        }
        return;
    }
    const codec::image_extent extent = codec::image_extent_of(m.image);
    const std::uint64_t width = extent.side[0], height = extent.side[1], depth = extent.side[2];
    p.image = true;
    p.row_pitch = width * codec::image_element_bytes(m.image.channel_order, m.image.channel_type);
    if (p.row_pitch == 0 || height == 0 || depth == 0)
        return;
    const std::uint64_t rows = std::clamp<std::uint64_t>(max_bytes / p.row_pitch, 1, height);
    const std::uint64_t slices =
        rows < height ? 1 : std::clamp<std::uint64_t>(max_bytes / (p.row_pitch * height), 1, depth);
    for (std::uint64_t z = 0; z < depth; z += slices) {
        for (std::uint64_t y = 0; y < height; y += rows) {
            p.origin = {{0, y, z}};
            p.region = {{width, std::min(rows, height - y), std::min(slices, depth - z)}};
            p.slice_pitch = depth > 1 ? p.row_pitch * p.region.side[1] : 0;
            p.bytes = p.row_pitch * p.region.side[1] * p.region.side[2];
            out.push_back(p);
        }
    }
}

void append_transfer(codec::stream_builder& stream, bool write, const codec::enqueue_ref& e, const piece& p,
                     vgpu_payload_ref data) {
    if (p.image)
        stream.transfer_image(write, e, p.memory, p.origin, p.region, p.row_pitch, p.slice_pitch, data);
    else if (write)
        stream.write_buffer(e, p.memory, p.offset, data);
    else
        stream.read_buffer(e, p.memory, p.offset, data);
}

vgpu_payload_ref agent_entry::payload(std::uint64_t bytes, bool writable, byte_pieces content) {
    payloads_.push_back({bytes, writable});
    content_.push_back(std::move(content));
    return {bytes, static_cast<std::uint32_t>(payloads_.size() - 1), 0};
}

log_entry agent_entry::finish() const {
    log_entry entry;
    const auto bytes = stream.stream();
    entry.meta.kind = entry_kind::submit;
    entry.meta.file = file_;
    entry.meta.flags = entry_agent | flags_;
    entry.meta.stream_bytes = bytes.size();
    for (std::size_t at = 0; at < bytes.size(); ++entry.meta.op_count) {
        vgpu_cmd header;
        std::memcpy(&header, bytes.data() + at, sizeof(header));
        at += codec::command_bytes(header);
    }
    entry.stream.resize(bytes.size() / 8);
    std::memcpy(entry.stream.data(), bytes.data(), bytes.size());
    for (const entry_payload& p : payloads_)
        if (!p.writable)
            entry.meta.content_bytes += rounded_up(p.bytes);
    entry.payloads = payloads_;
    entry.content = content_;
    return entry;
}

} // namespace kagemusha::mirror
