// SPDX-License-Identifier: GPL-2.0-or-later
// stream_walk: from one command of a stream to the next, whatever reads what is inside of it. Internal to the
// decoder.
#pragma once

#include "codec/decode.hpp"

namespace kagemusha::codec {

// `read_command` gets a command's bytes, what it may refer to, and the op; it gives null, or the sentence of
// the rule that was broken.
template <class ReadCommand>
decode_status stream_decoder::next_by(op& out, ReadCommand&& read_command) {
    const auto fail = [this](const char* message) {
        error_ = {position_, message};
        return decode_status::error;
    };
    if (error_.message)
        return decode_status::error;
    if (position_ == 0 && (stream_.size() > VGPU_MAX_STREAM_BYTES || stream_.size() % 8 != 0))
        return fail("a stream is longer than VGPU_MAX_STREAM_BYTES or not a multiple of 8 bytes");
    if (position_ == 0 && context_.payloads.size() > VGPU_MAX_PAYLOADS)
        return fail("a payload table has more than VGPU_MAX_PAYLOADS entries");
    const std::span<const std::byte> rest = stream_.subspan(position_);
    if (rest.empty())
        return decode_status::end;
    command_offset_ = position_;
    if (call_seen_)
        return fail("a call is not the last command of its stream");
    // rest.size() is a multiple of 8 and not 0, so the header is there.
    const auto& header = *reinterpret_cast<const vgpu_cmd*>(rest.data());
    if (header.flags != 0 && header.opcode != VGPU_CMD_WRITE_RUNS)
        return fail("an unknown flag is set");
    const std::uint32_t bytes = command_bytes(header);
    if (bytes % 8 != 0 || bytes < sizeof(vgpu_cmd) || bytes > VGPU_MAX_COMMAND_BYTES || bytes > rest.size())
        return fail("a command's length is not a multiple of 8, too long, or beyond the stream");
    if (const char* why = read_command(rest.first(bytes), context_, payload_used_, out))
        return fail(why);
    call_seen_ = is_call(header.opcode);
    position_ += bytes;
    return decode_status::op;
}

} // namespace kagemusha::codec
