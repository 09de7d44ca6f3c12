// SPDX-License-Identifier: GPL-2.0-or-later
// replay_request: the request that a standby's device gets for a submit entry of the log. Its stream is the
// entry's; its payloads lie one behind the other in one range of the arena (a region of the device): first
// the content, in the order in which it crosses the wire, then what the GPU writes (compare entries). A
// payload of 0 bytes keeps the place of one that no command names any more (of a read that became a marker).
//
// Pure. Nothing of the stream is believed: the device validates the request like a guest's.
#pragma once

#include <kagemusha/device.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "mirror/log/log_entry.hpp"

namespace kagemusha::mirror {

// Bytes of the arena that an entry with these payloads needs; a multiple of 8.
std::uint64_t arena_bytes(std::span<const entry_payload> payloads);

// Commands of the stream that name an event: what the device wants as completion_count. A stream that is no
// stream has none behind its first error; the device refuses it.
std::uint32_t completion_count(std::span<const std::byte> stream);

class replay_request {
public:
    // The range [offset, offset + arena_bytes(payloads)) of `region` is the entry's. Memory of earlier calls
    // is used again.
    void place(std::span<const entry_payload> payloads, std::uint32_t region, std::uint64_t offset);

    // Views of this object and of `stream`, which is 8-byte aligned and outlives the call that gets it.
    kagemusha_request request(std::uint32_t file, std::uint64_t token,
                              std::span<const std::byte> stream) const;

    // Where payload number i, which has bytes, lies in the region.
    std::uint64_t offset_of(std::size_t i) const { return segments_[i].offset; }

private:
    std::vector<kagemusha_payload> payloads_;
    std::vector<kagemusha_segment> segments_; // one per payload
};

} // namespace kagemusha::mirror
