// SPDX-License-Identifier: GPL-2.0-or-later
// send_queue: frames that wait to be written, as pieces of memory in order. Payload is referred to where it
// lies; headers, messages and tiny pieces of payload are gathered in chunks of our own, so that many small
// frames are one piece for the kernel (and one TLS record).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "mirror/protocol/message.hpp"

namespace kagemusha::net {

class send_queue {
public:
    // Copying so much costs less than one more piece in a gathered write.
    static constexpr std::size_t tiny_piece_bytes = 512;

    // As link::send.
    void push(const mirror::message& m, const std::vector<std::span<const std::byte>>& payload,
              std::shared_ptr<const void> keep);
    // The front of the queue: fills `pieces` from its beginning, returns how many. They stay where they are
    // until consumed, whatever is pushed meanwhile.
    std::size_t gather(std::span<std::span<const std::byte>> pieces) const;
    // So many bytes from the front were written; lets go of what they belonged to.
    void consume(std::uint64_t bytes);
    void clear();
    std::uint64_t bytes() const { return bytes_; }

private:
    struct chunk;
    struct segment {
        std::span<const std::byte> bytes;
        std::shared_ptr<chunk> own;       // the chunk that it lies in, if it is ours
        std::shared_ptr<const void> keep; // on the last segment of a frame's payload
    };
    void append_copy(std::span<const std::byte> bytes);

    std::deque<segment> segments_;
    std::uint64_t bytes_ = 0;
    std::shared_ptr<chunk> chunk_;   // the one that is being filled
    std::vector<std::byte> scratch_; // one encoded message
};

} // namespace kagemusha::net
