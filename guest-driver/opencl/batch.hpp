// SPDX-License-Identifier: GPL-2.0-or-later
//
// Commands on their way into the stream of one request. How a command is encoded is in its row
// (codec/commands), which the device's decoder has too. Pure: no lock, no device. The connection owns one
// batch, appends commands until something has to go out, and hands the batch to the transport.
#pragma once

#include "codec/commands/emit.hpp"
#include "transport.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

namespace kagemusha::opencl {

namespace commands = codec::commands;

// The fixed structure of a row's command.
template <class Row>
struct command_of : Row::wire {
    using row = Row;
};

// With its opcode; everything else is 0.
template <class Row>
command_of<Row> make_command() {
    command_of<Row> command;
    static_assert(sizeof command == sizeof(typename Row::wire));
    std::memset(&command, 0, sizeof command);
    command.cmd.opcode = Row::opcode;
    return command;
}

// A command on its way into a batch. `command->bytes` and, where `reference` is given, the payload reference
// inside the command are filled in when it is appended.
struct outgoing {
    vgpu_cmd* command = nullptr;
    std::size_t fixed_bytes = 0;
    std::array<codec::piece, 3> storage{}; // no row has more
    std::size_t piece_count = 0;
    vgpu_payload_ref* reference = nullptr;
    payload data{}; // bytes 0: none

    std::span<const codec::piece> pieces() const { return {storage.data(), piece_count}; }
};

// A view (codec/commands/emit.hpp) of bytes that travel inside the command.
inline codec::payload_source inlined(const void* data, std::size_t bytes) {
    if (bytes == 0)
        return {};
    return {bytes, VGPU_PAYLOAD_INLINE, {static_cast<const std::byte*>(data), bytes}};
}

// Memory of the program as a view: it gets its entry in the payload table in the batch.
inline codec::later_payload view_of(const payload& data, outgoing& out) {
    out.data = data;
    return {data.bytes, out.reference};
}
template <class View>
const View& view_of(const View& view, outgoing&) {
    return view;
}

// Completes `command`, which has to live until it was appended, as what the views show. One for each
// variable part of the row; at most one of them is a payload.
template <class Row, class... View>
outgoing make_outgoing(command_of<Row>& command, const View&... view) {
    outgoing out;
    out.command = &command.cmd;
    out.fixed_bytes = sizeof command;
    const auto pieces = commands::lay_out<Row>(command, view_of(view, out)...);
    static_assert(pieces.size() <= std::tuple_size_v<decltype(out.storage)>);
    std::copy(pieces.begin(), pieces.end(), out.storage.begin());
    out.piece_count = pieces.size();
    return out;
}

// Of guest-driver/cuda, whose commands do not come from rows yet: it sets opcode, counts and lengths itself.
template <class Command>
Command make_command(vgpu_opcode opcode) {
    Command command;
    std::memset(&command, 0, sizeof command);
    command.cmd.opcode = static_cast<__u16>(opcode);
    return command;
}
using part = codec::piece;
template <class Command>
    requires(!requires { typename Command::row; })
outgoing make_outgoing(Command& command, std::span<const part> parts = {}) {
    outgoing out;
    out.command = &command.cmd;
    out.fixed_bytes = sizeof command;
    out.piece_count = parts.size();
    std::copy(parts.begin(), parts.end(), out.storage.begin());
    return out;
}

inline constexpr std::size_t padded(std::size_t bytes) {
    return (bytes + 7) & ~std::size_t{7};
}

inline std::size_t encoded_bytes(const outgoing& command) {
    std::size_t bytes = command.fixed_bytes;
    for (const codec::piece& piece : command.pieces())
        bytes += padded(piece.bytes);
    return bytes;
}

class batch {
public:
    // Where a command is, so that it can be submitted alone if the whole batch was refused.
    struct entry {
        std::uint32_t offset;
        std::uint32_t reference_offset; // of the payload reference from the start of the command; 0: none
        std::uint32_t payload_index;
        std::uint32_t bytes;
        std::uint64_t event; // 0: none
        std::uint64_t queue; // 0: not enqueued
    };

    // Room for everything that a batch can hold is taken once, so that appending never allocates.
    void reserve(const transport_limits& limits) {
        limits_ = limits;
        stream_.reserve(limits.max_stream_bytes);
        entries_.reserve(1024);
        payloads_.reserve(256);
    }

    bool fits(const outgoing& command) const {
        const std::size_t bytes = encoded_bytes(command);
        return stream_.size() + bytes <= limits_.max_stream_bytes && payloads_.size() < VGPU_MAX_PAYLOADS &&
               command.data.bytes <= limits_.max_payload_bytes - payload_bytes_ &&
               completion_count_ + 1 <= max_completions();
    }

    // Whether a command can be sent at all.
    bool possible(const outgoing& command) const {
        const std::size_t bytes = encoded_bytes(command);
        return bytes <= VGPU_MAX_COMMAND_BYTES && bytes <= limits_.max_stream_bytes &&
               command.data.bytes <= limits_.max_payload_bytes;
    }

    // Where the first enqueued command goes; what the program stored before is sent there first. One queue
    // for a batch is enough as long as no mapped memory is traced.
    const flush_target& target() const { return target_; }
    void set_target(const flush_target& target) {
        if (!target_.queue)
            target_ = target;
    }

    // What the program stored was sent already.
    void drop_target() { target_ = {}; }

    // The caller has asked fits().
    void append(const outgoing& command, std::uint64_t event, std::uint64_t queue) {
        entry made{};
        made.offset = static_cast<std::uint32_t>(stream_.size());
        made.bytes = static_cast<std::uint32_t>(encoded_bytes(command));
        made.event = event;
        made.queue = queue;
        command.command->bytes = made.bytes;
        if (command.reference) {
            command.reference->bytes = command.data.bytes;
            command.reference->index = VGPU_PAYLOAD_NONE;
            if (command.data.bytes > 0) {
                made.payload_index = static_cast<std::uint32_t>(payloads_.size());
                made.reference_offset =
                    static_cast<std::uint32_t>(reinterpret_cast<const char*>(command.reference) -
                                               reinterpret_cast<const char*>(command.command));
                command.reference->index = made.payload_index;
                payloads_.push_back(command.data);
                payload_bytes_ += command.data.bytes;
            }
        }
        append_padded(command.command, command.fixed_bytes);
        for (const codec::piece& piece : command.pieces())
            append_padded(piece.data, piece.bytes);
        entries_.push_back(made);
        if (event)
            ++completion_count_;
    }

    void clear() {
        stream_.clear();
        entries_.clear();
        payloads_.clear();
        payload_bytes_ = 0;
        completion_count_ = 0;
        target_ = {};
    }

    bool empty() const { return entries_.empty(); }
    std::size_t command_count() const { return entries_.size(); }
    std::size_t stream_bytes() const { return stream_.size(); }
    bool has_payloads() const { return !payloads_.empty(); }
    std::uint32_t completion_count() const { return completion_count_; }
    std::span<const entry> entries() const { return entries_; }
    std::span<const payload> payloads() const { return payloads_; }
    std::span<std::byte> stream() { return stream_; }

    submission request(bool waitable) const {
        return {stream_, payloads_, completion_count_, waitable, target_};
    }

    // Command `index` as a request of its own; patches the stream.
    submission single(std::size_t index, bool waitable) {
        const entry& one = entries_[index];
        std::span<const payload> data;
        if (one.reference_offset) {
            vgpu_payload_ref reference;
            std::byte* const place = stream_.data() + one.offset + one.reference_offset;
            std::memcpy(&reference, place, sizeof reference);
            reference.index = 0;
            std::memcpy(place, &reference, sizeof reference);
            data = std::span<const payload>(payloads_).subspan(one.payload_index, 1);
        }
        return {std::span<const std::byte>(stream_).subspan(one.offset, one.bytes), data, one.event ? 1u : 0u,
                waitable, target_};
    }

private:
    void append_padded(const void* data, std::size_t bytes) {
        if (bytes == 0)
            return;
        const auto* const from = static_cast<const std::byte*>(data);
        stream_.insert(stream_.end(), from, from + bytes);
        stream_.insert(stream_.end(), padded(bytes) - bytes, std::byte{0});
    }

    // Half of what may be outstanding, so that one request can be built while another one completes.
    std::uint32_t max_completions() const { return limits_.max_events < 2 ? 1 : limits_.max_events / 2; }

    transport_limits limits_;
    std::vector<std::byte> stream_;
    std::vector<entry> entries_;
    std::vector<payload> payloads_;
    std::uint64_t payload_bytes_ = 0;
    std::uint32_t completion_count_ = 0;
    flush_target target_;
};

} // namespace kagemusha::opencl
