// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/standby/replay_request.hpp"

#include <cassert>

#include "mirror/log/stream_events.hpp"

namespace kagemusha::mirror {

std::uint64_t arena_bytes(std::span<const entry_payload> payloads) {
    std::uint64_t bytes = 0;
    for (const entry_payload& p : payloads)
        bytes += rounded_up(p.bytes);
    return bytes;
}

std::uint32_t completion_count(std::span<const std::byte> stream) {
    std::uint32_t count = 0;
    for_each_event(stream, [&](codec::guest_id) { ++count; });
    return count;
}

void replay_request::place(std::span<const entry_payload> payloads, std::uint32_t region,
                           std::uint64_t offset) {
    payloads_.clear();
    segments_.resize(payloads.size());
    for (const bool writable : {false, true}) {
        for (std::size_t i = 0; i < payloads.size(); ++i) {
            if (payloads[i].writable == writable) {
                segments_[i] = {offset, payloads[i].bytes, region, 0};
                offset += rounded_up(payloads[i].bytes);
            }
        }
    }
    for (std::size_t i = 0; i < payloads.size(); ++i) {
        const bool placeholder = payloads[i].bytes == 0;
        if (placeholder)
            segments_[i] = {0, 1, region, 0}; // the device wants a payload to have bytes
        payloads_.push_back(
            {segments_[i].bytes, static_cast<std::uint32_t>(i), 1, payloads[i].writable && !placeholder, 0});
    }
}

kagemusha_request replay_request::request(std::uint32_t file, std::uint64_t token,
                                          std::span<const std::byte> stream) const {
    assert(stream.size() <= VGPU_MAX_STREAM_BYTES);
    kagemusha_request r{};
    r.token = token;
    r.file = file;
    r.completion_count = completion_count(stream);
    r.stream = stream.data();
    r.stream_bytes = static_cast<std::uint32_t>(stream.size());
    r.payload_count = static_cast<std::uint32_t>(payloads_.size());
    r.payloads = payloads_.data();
    r.segments = segments_.data();
    r.segment_count = static_cast<std::uint32_t>(segments_.size());
    return r;
}

} // namespace kagemusha::mirror
