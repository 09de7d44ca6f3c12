// SPDX-License-Identifier: GPL-2.0-or-later
// decode: bytes of a guest (or of a worker's ring) to ops. Pure; allocates nothing; every byte is looked at
// once.
#pragma once

#include <kagemusha/device.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/op.hpp"

namespace kagemusha::codec {

// What a stream may refer to.
struct stream_context {
    std::span<const kagemusha_payload> payloads;
};

struct decode_error {
    std::uint32_t offset = 0;      // of the command in the stream
    const char* message = nullptr; // a static sentence: which rule was broken
};

enum class decode_status { op, end, error };

// Walks a stream. Enforces that a call is the last command (see vgpu_protocol.h) and that a payload table
// entry is used by at most one command.
class stream_decoder {
public:
    // `stream` is 8-byte aligned, at most VGPU_MAX_STREAM_BYTES long, and outlives every op.
    stream_decoder(std::span<const std::byte> stream, const stream_context& context);

    decode_status next(op& out);
    // Leaves the next command out, which was decoded before without an error, or is known to be right.
    void skip() {
        command_offset_ = position_;
        position_ += command_bytes(*reinterpret_cast<const vgpu_cmd*>(stream_.data() + position_));
    }
    // The same for all the commands that have so many bytes together.
    void skip(std::uint32_t bytes) { position_ += bytes; }
    std::uint32_t position() const { return position_; } // of the next command
    const decode_error& error() const { return error_; }
    std::uint32_t offset() const { return command_offset_; } // of the command that next() gave last

protected:
    template <class ReadCommand>
    decode_status next_by(op& out, ReadCommand&& read_command); // codec/stream_walk.hpp

private:
    std::span<const std::byte> stream_;
    stream_context context_;
    std::uint32_t position_ = 0;
    std::uint32_t command_offset_ = 0;
    bool call_seen_ = false;
    std::uint64_t payload_used_[VGPU_MAX_PAYLOADS / 64] = {};
    decode_error error_;
};

} // namespace kagemusha::codec
