// SPDX-License-Identifier: GPL-2.0-or-later
// command_reader: eats one command from its front, part by part, and keeps the first rule that was broken.
// Internal to the decoder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "codec/decode.hpp"

namespace kagemusha::codec {

constexpr std::uint64_t padded(std::uint64_t bytes) {
    return (bytes + 7) & ~std::uint64_t{7};
}

// Ops point at these, so their alignment must be what a stream guarantees.
template <class Command>
constexpr bool is_wire_struct = alignof(Command) <= 8 && sizeof(Command) % 8 == 0;

// One command, eaten from its front. Every method returns false (or a null pointer) after the first rule that
// was broken and leaves the reason in `message`.
class command_reader {
public:
    command_reader(std::span<const std::byte> command, const stream_context& context,
                   std::uint64_t* payload_used)
        : rest_(command), context_(context), payload_used_(payload_used) {}

    const char* message = nullptr;

    bool refuse(const char* reason) {
        if (!message)
            message = reason;
        return false;
    }
    bool require(bool condition, const char* reason) { return condition || refuse(reason); }

    template <class Command>
    bool fixed(const Command*& out) {
        static_assert(is_wire_struct<Command>);
        if (rest_.size() < sizeof(Command))
            return refuse("the command is shorter than its opcode's structure");
        out = reinterpret_cast<const Command*>(rest_.data());
        rest_ = rest_.subspan(sizeof(Command));
        return true;
    }

    bool id(guest_id value) { return require(value != 0, "an id that must name an object is 0"); }

    bool flags(std::uint64_t value, std::uint64_t known) {
        return require((value & ~known) == 0, "an unknown flag is set");
    }

    bool pad(std::uint64_t value) { return require(value == 0, "a pad field is not 0"); }

    bool ids(std::uint64_t count, id_list& out) {
        if (count > rest_.size() / sizeof(guest_id))
            return refuse("an id list is longer than the command");
        out = id_list(reinterpret_cast<const guest_id*>(rest_.data()), count);
        rest_ = rest_.subspan(count * sizeof(guest_id));
        for (const guest_id value : out)
            if (value == 0)
                return refuse("an id in a list is 0");
        return true;
    }

    bool enqueue(const vgpu_enqueue& e, id_list& waits) {
        return id(e.queue) && pad(e.pad) &&
               require(e.wait_count <= VGPU_MAX_WAIT_COUNT,
                       "the wait list is longer than VGPU_MAX_WAIT_COUNT") &&
               ids(e.wait_count, waits);
    }

    // `bytes` bytes and the zeros that pad them.
    bool bytes(std::uint64_t bytes, std::span<const std::byte>& out) {
        if (bytes > rest_.size() || padded(bytes) > rest_.size())
            return refuse("text, arguments or inline payload are longer than the command");
        out = rest_.first(bytes);
        if (!zeros(rest_.subspan(bytes, padded(bytes) - bytes)))
            return refuse("padding is not 0");
        rest_ = rest_.subspan(padded(bytes));
        return true;
    }

    // All that is left; what of it is padding is for the caller to check.
    std::span<const std::byte> all() { return std::exchange(rest_, {}); }

    bool text(std::uint64_t length, std::uint64_t limit, std::string_view& out) {
        if (length > limit)
            return refuse("text is longer than its limit");
        std::span<const std::byte> raw;
        if (!bytes(length, raw))
            return false;
        out = std::string_view(reinterpret_cast<const char*>(raw.data()), raw.size());
        return true;
    }

    bool c_text(std::uint64_t length, std::uint64_t limit, std::string_view& out) {
        return text(length, limit, out) &&
               require(out.find('\0') == std::string_view::npos, "text contains a 0 byte");
    }

    // A payload that the device reads. Inline bytes are the last part of a command.
    bool payload_in(const vgpu_payload_ref& ref, payload_source& out) {
        if (ref.index == VGPU_PAYLOAD_INLINE) {
            if (!pad(ref.pad) ||
                !require(ref.bytes != 0 && ref.bytes <= VGPU_MAX_INLINE_PAYLOAD_BYTES,
                         "an inline payload is empty or longer than VGPU_MAX_INLINE_PAYLOAD_BYTES") ||
                !bytes(ref.bytes, out.inline_bytes)) {
                return false;
            }
            out.bytes = ref.bytes;
            out.index = ref.index;
            return true;
        }
        return table_payload(ref, 0, out);
    }

    // A payload that the device writes.
    bool payload_out(const vgpu_payload_ref& ref, payload_source& out) {
        return require(ref.index != VGPU_PAYLOAD_INLINE, "data that the device writes can't be inline") &&
               table_payload(ref, 1, out);
    }

    bool done() { return require(rest_.empty(), "the command is longer than what it contains"); }

    static bool zeros(std::span<const std::byte> bytes) {
        for (const std::byte b : bytes)
            if (b != std::byte{0})
                return false;
        return true;
    }

private:
    bool table_payload(const vgpu_payload_ref& ref, std::uint32_t writable, payload_source& out) {
        if (!pad(ref.pad))
            return false;
        if (ref.index == VGPU_PAYLOAD_NONE) {
            out = payload_source{};
            return require(ref.bytes == 0, "a payload reference to nothing has a length");
        }
        if (ref.index >= context_.payloads.size())
            return refuse("a payload reference is beyond the payload table");
        const kagemusha_payload& entry = context_.payloads[ref.index];
        if (ref.bytes != entry.bytes || ref.bytes == 0)
            return refuse("a payload reference's length is 0 or not that of its table entry");
        if ((entry.writable != 0) != (writable != 0))
            return refuse("a payload's direction is not that of its command");
        std::uint64_t& word = payload_used_[ref.index / 64];
        const std::uint64_t bit = std::uint64_t{1} << (ref.index % 64);
        if (word & bit)
            return refuse("two commands use one payload table entry");
        word |= bit;
        out.bytes = ref.bytes;
        out.index = ref.index;
        out.inline_bytes = {};
        return true;
    }

    std::span<const std::byte> rest_;
    const stream_context& context_;
    std::uint64_t* payload_used_;
};

} // namespace kagemusha::codec
