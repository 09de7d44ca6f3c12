// SPDX-License-Identifier: GPL-2.0-or-later
// The rules that a message must keep by itself. One function for both directions: what a sender may not send,
// a receiver does not take.
#include "messages/messages.hpp"
#include "messages/text.hpp"
#include "proto/replication/built_commands.h"

namespace kagemusha::messages {

namespace {

using mirror::entry_kind;

std::string in_entry(std::uint64_t sequence, const char* rule) {
    return "entry " + std::to_string(sequence) + ": " + rule;
}

bool valid_sequence(std::uint64_t sequence) {
    return sequence != 0 && sequence <= mirror::max_sequence;
}

constexpr const char* bad_sequence = "an entry's number is 0 or too large";

// Null, or the rule that is broken. Runs for each entry: no text is made here.
const char* broken_rule(const mirror::entries::entry& e) {
    const mirror::entry_meta& m = e.meta;
    if (m.kind < entry_kind::open_file || m.kind > entry_kind::reset)
        return "its kind is unknown";
    if ((m.flags & ~std::uint32_t{mirror::entry_all_flags}) != 0)
        return "it has unknown flags";
    if (m.kind != entry_kind::submit) {
        if (m.stream_bytes != 0 || m.op_count != 0 || m.content_bytes != 0 || !e.payloads.empty())
            return "only a submit has commands and payloads";
        if ((m.flags & ~std::uint32_t{mirror::entry_agent}) != 0)
            return "it has flags that only a submit may have";
        return m.kind == entry_kind::reset && m.file != 0 ? "a reset names a file" : nullptr;
    }
    if (m.stream_bytes == 0 || m.stream_bytes > VGPU_MAX_STREAM_BYTES || m.stream_bytes % 8 != 0)
        return "its stream is empty, too long or not made of 8-byte words";
    if (m.op_count == 0 || m.op_count > m.stream_bytes / sizeof(vgpu_cmd))
        return "it has no commands, or more than fit into its stream";
    if (e.payloads.size() > VGPU_MAX_PAYLOADS)
        return "it has too many payloads";
    std::uint64_t content = 0, written = 0;
    for (const mirror::entry_payload& p : e.payloads) {
        if (p.bytes > mirror::max_payload_bytes)
            return "a payload is too long";
        (p.writable ? written : content) += mirror::rounded_up(p.bytes);
    }
    if (content != m.content_bytes)
        return "the length of its content is not that of its payloads";
    if (written != 0 && (m.flags & mirror::entry_compare) == 0)
        return "only an entry that is compared has payloads that the GPU writes";
    const bool hashes_content = (m.flags & mirror::entry_hash_content) != 0;
    if (hashes_content && (m.flags & mirror::entry_compare) == 0)
        return "only of an entry that is compared content is hashed";
    if (written > (hashes_content ? mirror::max_hashed_content_bytes : mirror::max_compared_bytes))
        return "its payloads that the GPU writes are too long";
    if (content > mirror::max_inline_content_bytes && (m.flags & mirror::entry_late_content) == 0)
        return "its content is too long to travel with it";
    return nullptr;
}

std::string check(const mirror::hello& m) {
    if (m.oldest_version == 0 || m.version < m.oldest_version)
        return "the range of protocol versions is empty";
    if (m.oldest_abi_version > m.abi_version)
        return "the range of stream versions is empty";
    if (m.checkpoint_version < m.oldest_checkpoint_version ||
        (m.checkpoint_version != 0 && m.oldest_checkpoint_version == 0)) {
        return "the range of checkpoint versions is empty";
    }
    if (m.role != mirror::role::primary && m.role != mirror::role::standby)
        return "the role is unknown";
    if (!is_text(m.vm) || !is_text(m.gpu))
        return "the name of the VM or of the GPU is too long or not printable";
    if (m.capabilities.size() > mirror::max_capabilities)
        return "there are too many capabilities";
    for (const std::string& name : m.capabilities)
        if (!is_text(name))
            return "a capability is too long or not printable";
    if (!m.lane_token.empty() && m.lane_token.size() != mirror::lane_token_bytes)
        return "the token for lanes has another length";
    return {};
}

std::string check(const mirror::entries& m) {
    if (m.list.empty() || m.list.size() > mirror::max_entries_per_message)
        return "it has no entries, or too many";
    std::uint64_t sequence = m.list.front().meta.sequence;
    if (!valid_sequence(sequence))
        return bad_sequence;
    std::uint64_t following = 0;
    for (const auto& e : m.list) {
        if (e.meta.sequence != sequence++)
            return "the numbers of its entries are not consecutive";
        if (const char* rule = broken_rule(e))
            return in_entry(e.meta.sequence, rule);
        following += e.meta.stream_bytes;
        following += (e.meta.flags & mirror::entry_late_content) != 0 ? 0 : e.meta.content_bytes;
    }
    if (following > mirror::max_frame_payload_bytes)
        return "its streams and content are too long for one frame";
    return {};
}

std::string check(const mirror::content& m) {
    if (!valid_sequence(m.sequence))
        return bad_sequence;
    if (m.payload >= VGPU_MAX_PAYLOADS)
        return "a request has not so many payloads";
    if (m.bytes == 0 || m.bytes > mirror::content_piece_bytes)
        return "the piece is empty or too long";
    if (m.offset > mirror::max_payload_bytes - m.bytes)
        return "the piece lies behind any payload";
    if (m.compressed_bytes >= m.bytes)
        return "the compressed piece is not smaller than the piece";
    if (m.lane > mirror::max_lanes)
        return "there are not so many lanes";
    if (m.lane != 0 && (m.compressed_bytes != 0 || m.bytes < mirror::min_lane_bytes))
        return "only large pieces that are not compressed come over lanes";
    return {};
}

std::string check(const mirror::built& m) {
    if (m.file == 0)
        return "it is of no file";
    return m.bytes < sizeof(vgpu_built) || m.bytes > mirror::max_built_pack_bytes
               ? "built programs of no bytes, or of too many"
               : std::string();
}

std::string check(const mirror::outcome& m) {
    if (!valid_sequence(m.sequence))
        return bad_sequence;
    return m.canceled && m.result != 0 ? "an entry that is called off has no result" : std::string();
}

std::string check(const mirror::marker& m) {
    if (m.epoch == 0 || m.epoch > mirror::max_sequence)
        return "the epoch's number is 0 or too large";
    return m.sequence > mirror::max_sequence ? bad_sequence : std::string();
}

std::string check(const mirror::synced& m) {
    return valid_sequence(m.sequence) ? std::string() : bad_sequence;
}

std::string check(const mirror::ack& m) {
    if (m.received > mirror::max_sequence || m.executed > mirror::max_sequence)
        return bad_sequence;
    return m.committed_epoch > mirror::max_sequence || m.complete_checkpoint > mirror::max_sequence
               ? "the epoch's number is too large"
               : std::string();
}

std::string check(const mirror::heartbeat&) {
    return {};
}

std::string check(const mirror::digests& m) {
    if (!valid_sequence(m.sequence))
        return bad_sequence;
    return m.hashes.size() > mirror::max_hashes_per_message ? "there are too many digests" : std::string();
}

std::string check(const mirror::digest_result& m) {
    if (!valid_sequence(m.sequence))
        return bad_sequence;
    if (m.different.size() > mirror::max_hashes_per_message)
        return "there are too many differences";
    std::uint64_t least = 0;
    for (const std::uint64_t index : m.different) {
        if (index < least || index >= mirror::max_hashes_per_message)
            return "the differing digests are not in ascending order, or there are not so many";
        least = index + 1;
    }
    return {};
}

std::string check(const mirror::close_epoch&) {
    return {};
}

std::string check(const mirror::fault& m) {
    if (m.sequence > mirror::max_sequence)
        return bad_sequence;
    return is_text(m.why) ? std::string() : "the reason is too long or not printable";
}

std::string check(const mirror::goodbye& m) {
    if (m.reason < mirror::goodbye_reason::shutdown || m.reason > mirror::goodbye_reason::other)
        return "the reason is unknown";
    return is_text(m.why) ? std::string() : "the reason is too long or not printable";
}

std::string check(const mirror::supervision& m) {
    if (m.kind < mirror::supervision_kind::description || m.kind > mirror::supervision_kind::lineage)
        return "the kind is unknown";
    if (m.parts.size() > mirror::max_description_parts)
        return "the description has too many parts";
    for (const auto& part : m.parts) {
        if (part.rule < mirror::part_rule::equal || part.rule > mirror::part_rule::shown)
            return "the rule of a part of the description is unknown";
        if (!is_text(part.name) || !is_text(part.value, mirror::max_part_value_bytes))
            return "a part of the description is too long or not printable";
    }
    return is_text(m.text) ? std::string() : "the text is too long or not printable";
}

std::string check(const mirror::unknown_message&) {
    return {};
}

constexpr const char* names[] = {"hello",   "entries",       "content",     "outcome",
                                 "marker",  "synced",        "ack",         "heartbeat",
                                 "digests", "digest result", "close epoch", "fault",
                                 "goodbye", "supervision",   "built",       "unknown message"};
static_assert(std::size(names) == std::variant_size_v<mirror::message>);

} // namespace

std::string check(const frame_header& header) {
    if (header.magic != frame_magic)
        return "what the peer sends is not Kagemusha's replication protocol";
    if (header.message_bytes > mirror::max_message_bytes)
        return "a message of " + std::to_string(header.message_bytes) + " bytes is too long";
    if (header.payload_bytes > mirror::max_frame_payload_bytes)
        return "a frame's payload of " + std::to_string(header.payload_bytes) + " bytes is too long";
    return {};
}

std::string check(const mirror::message& m) {
    const std::string rule = std::visit([](const auto& x) { return check(x); }, m);
    return rule.empty() ? rule : std::string(names[m.index()]) + ": " + rule;
}

std::uint64_t payload_bytes_of(const mirror::message& m) {
    if (const auto* piece = std::get_if<mirror::content>(&m)) {
        if (piece->lane != 0)
            return 0;
        return piece->compressed_bytes != 0 ? piece->compressed_bytes : piece->bytes;
    }
    if (const auto* pack = std::get_if<mirror::built>(&m))
        return pack->bytes;
    std::uint64_t bytes = 0;
    if (const auto* batch = std::get_if<mirror::entries>(&m)) {
        for (const auto& e : batch->list) {
            bytes += e.meta.stream_bytes;
            bytes += (e.meta.flags & mirror::entry_late_content) != 0 ? 0 : e.meta.content_bytes;
        }
    }
    return bytes;
}

namespace {

// Most bytes that one entry takes in the columns: kind 1, file 5, flags 1, op_count 3, stream_words 3,
// payload_count 2; and one payload: length 6, writable 1. What a message has beside its columns: the fields'
// keys and lengths, first_sequence, count.
constexpr std::uint64_t row_bytes = 15, payload_row_bytes = 7, fixed_bytes = 128;
static_assert(fixed_bytes + row_bytes + VGPU_MAX_PAYLOADS * payload_row_bytes <= mirror::max_message_bytes);
static_assert(VGPU_MAX_STREAM_BYTES / 8 < 1u << 21 && VGPU_MAX_PAYLOADS < 1u << 14);
static_assert(mirror::max_payload_bytes < std::uint64_t{1} << 42 && mirror::entry_all_flags < 128);

} // namespace

bool entries_budget::take(const mirror::entry_meta& meta, std::size_t payload_count) {
    const std::uint64_t message = row_bytes + payload_count * payload_row_bytes;
    const std::uint64_t payload =
        meta.stream_bytes + ((meta.flags & mirror::entry_late_content) != 0 ? 0 : meta.content_bytes);
    if (count_ != 0 && (count_ == mirror::max_entries_per_message ||
                        fixed_bytes + message_bytes_ + message > mirror::max_message_bytes ||
                        payload_bytes_ + payload > mirror::max_frame_payload_bytes)) {
        return false;
    }
    ++count_;
    message_bytes_ += message;
    payload_bytes_ += payload;
    return true;
}

} // namespace kagemusha::messages
