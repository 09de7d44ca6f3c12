// SPDX-License-Identifier: GPL-2.0-or-later
// Bytes → mirror::message. protobuf parses at most max_message_bytes, so what it allocates is bounded; every
// count is then compared with its bound before anything of ours is allocated, and check() has the last word.
#include <google/protobuf/arena.h>
#include <google/protobuf/io/coded_stream.h>

#include "messages/messages.hpp"
#include "proto/replication/replication.pb.h"

namespace kagemusha::messages {

namespace {

// Our messages are two deep; groups of unknown fields are the only thing that could be deeper.
constexpr int max_depth = 8;

// Each returns the broken rule or null; the rules that check() knows are left to it.

const char* take(const replication::Hello& h, mirror::hello& out) {
    if (h.capabilities_size() > static_cast<int>(mirror::max_capabilities))
        return "there are too many capabilities";
    for (const std::string& name : h.capabilities())
        if (name.size() > mirror::max_text_bytes)
            return "a capability is too long";
    if (h.vm().size() > mirror::max_text_bytes || h.gpu().size() > mirror::max_text_bytes)
        return "a name is too long";
    out.version = h.version();
    out.oldest_version = h.oldest_version();
    if (h.role() != replication::ROLE_PRIMARY && h.role() != replication::ROLE_STANDBY)
        return "the role is unknown";
    out.role = static_cast<mirror::role>(h.role());
    out.vm = h.vm();
    out.instance = h.instance();
    out.abi_version = h.abi_version();
    out.gpu = h.gpu();
    out.capabilities.assign(h.capabilities().begin(), h.capabilities().end());
    out.heartbeat_budget_ms = h.heartbeat_budget_ms();
    out.hold_bytes = h.hold_bytes();
    out.hold_entries = h.hold_entries();
    out.limits = {h.max_files(), h.max_memory_bytes(), h.max_file_memory_bytes()};
    out.oldest_abi_version = h.oldest_abi_version();
    out.checkpoint_version = h.checkpoint_version();
    out.oldest_checkpoint_version = h.oldest_checkpoint_version();
    if (h.lane_token().size() > mirror::lane_token_bytes)
        return "the token for lanes is too long";
    out.lane_token = h.lane_token();
    return nullptr;
}

// One column of Entries, or its default for every entry.
template <class Column>
class column_reader {
public:
    using value_type = typename Column::value_type;
    column_reader(const Column& column, value_type default_value)
        : data_(column.size() == 0 ? nullptr : column.data())
        , size_(column.size())
        , default_(default_value) {}
    bool has(std::size_t rows) const { return data_ == nullptr || static_cast<std::size_t>(size_) == rows; }
    value_type operator[](std::size_t row) const { return data_ == nullptr ? default_ : data_[row]; }

private:
    const value_type* data_;
    int size_;
    value_type default_;
};

const char* take(const replication::Entries& b, mirror::entries& out) {
    const std::uint32_t count = b.count();
    if (count == 0 || count > mirror::max_entries_per_message)
        return "it has no entries, or too many";
    const column_reader kind(b.kind(), int{replication::ENTRY_KIND_SUBMIT});
    const column_reader file(b.file(), 0u);
    const column_reader flags(b.flags(), 0u);
    const column_reader op_count(b.op_count(), 0u);
    const column_reader stream_words(b.stream_words(), 0u);
    const column_reader payload_count(b.payload_count(), 0u);
    if (!kind.has(count) || !file.has(count) || !flags.has(count) || !op_count.has(count) ||
        !stream_words.has(count) || !payload_count.has(count)) {
        return "a column has not as many elements as there are entries";
    }
    std::uint64_t payloads = 0;
    for (std::uint32_t i = 0; i < count; ++i)
        payloads += payload_count[i];
    const column_reader payload_bytes(b.payload_bytes(), std::uint64_t{0});
    const column_reader payload_writable(b.payload_writable(), false);
    if (payloads != static_cast<std::uint64_t>(b.payload_bytes_size()) || !payload_writable.has(payloads))
        return "a column has not as many elements as there are payloads";
    if (b.first_sequence() > mirror::max_sequence)
        return "an entry's number is too large";
    out.list.resize(count);
    std::size_t row = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
        mirror::entries::entry& e = out.list[i];
        if (kind[i] < int{replication::ENTRY_KIND_OPEN_FILE} || kind[i] > int{replication::ENTRY_KIND_RESET})
            return "an entry's kind is unknown";
        e.meta.sequence = b.first_sequence() + i;
        e.meta.kind = static_cast<mirror::entry_kind>(kind[i]);
        e.meta.file = file[i];
        e.meta.flags = flags[i];
        e.meta.op_count = op_count[i];
        e.meta.stream_bytes = std::uint64_t{stream_words[i]} * 8;
        if (payload_count[i] == 0)
            continue;
        e.payloads.resize(payload_count[i]);
        for (mirror::entry_payload& p : e.payloads) {
            p = {payload_bytes[row], payload_writable[row]};
            ++row;
            if (p.bytes > mirror::max_payload_bytes)
                return "a payload is too long"; // before its length is added to others
            e.meta.content_bytes += p.writable ? 0 : mirror::rounded_up(p.bytes);
        }
    }
    return nullptr;
}

const char* take(const replication::Content& c, mirror::content& out) {
    out = {c.sequence(), c.payload(), c.offset(), c.length(), c.compressed_bytes(), c.lane()};
    return nullptr;
}

const char* take(const replication::Built& b, mirror::built& out) {
    out = {b.file(), b.length()};
    return nullptr;
}

const char* take(const replication::Outcome& o, mirror::outcome& out) {
    out = {o.sequence(), o.canceled(), o.result()};
    return nullptr;
}

const char* take(const replication::Marker& m, mirror::marker& out) {
    out = {m.epoch(), m.sequence(), m.checkpoint()};
    return nullptr;
}

const char* take(const replication::Synced& s, mirror::synced& out) {
    out = {s.sequence()};
    return nullptr;
}

const char* take(const replication::Ack& a, mirror::ack& out) {
    out = {a.received(),    a.executed(),      a.committed_epoch(),
           a.freed_bytes(), a.freed_entries(), a.complete_checkpoint()};
    return nullptr;
}

const char* take(const replication::Heartbeat& h, mirror::heartbeat& out) {
    out = {h.time_ms(), h.answer_to_ms()};
    return nullptr;
}

const char* take(const replication::Digests& d, mirror::digests& out) {
    if (d.hashes_size() > static_cast<int>(mirror::max_hashes_per_message))
        return "there are too many digests";
    out.sequence = d.sequence();
    out.hashes.assign(d.hashes().begin(), d.hashes().end());
    return nullptr;
}

const char* take(const replication::DigestResult& d, mirror::digest_result& out) {
    if (d.different_size() > static_cast<int>(mirror::max_hashes_per_message))
        return "there are too many differences";
    out.sequence = d.sequence();
    out.different.assign(d.different().begin(), d.different().end());
    return nullptr;
}

const char* take(const replication::CloseEpoch&, mirror::close_epoch&) {
    return nullptr;
}

const char* take(const replication::Fault& f, mirror::fault& out) {
    if (f.why().size() > mirror::max_text_bytes)
        return "the reason is too long";
    out = {f.sequence(), f.why()};
    return nullptr;
}

const char* take(const replication::Goodbye& g, mirror::goodbye& out) {
    if (g.why().size() > mirror::max_text_bytes)
        return "the reason is too long";
    const bool known =
        g.reason() >= replication::GOODBYE_SHUTDOWN && g.reason() <= replication::GOODBYE_OTHER;
    out.reason = known ? static_cast<mirror::goodbye_reason>(g.reason()) : mirror::goodbye_reason::other;
    out.why = g.why();
    return nullptr;
}

const char* take(const replication::Supervision& s, mirror::supervision& out) {
    if (s.text().size() > mirror::max_text_bytes)
        return "the text is too long";
    if (s.kind() < replication::SUPERVISION_DESCRIPTION || s.kind() > replication::SUPERVISION_LINEAGE)
        return "the kind is unknown";
    if (s.parts_size() > static_cast<int>(mirror::max_description_parts))
        return "the description has too many parts";
    for (const auto& part : s.parts())
        if (part.name().size() > mirror::max_text_bytes || part.value().size() > mirror::max_part_value_bytes)
            return "a part of the description is too long";
    out = {static_cast<mirror::supervision_kind>(s.kind()),
           s.term(),
           s.text(),
           s.unreleased(),
           s.gpu_failed(),
           s.recorded()};
    for (const auto& part : s.parts())
        out.parts.push_back({static_cast<mirror::part_rule>(part.rule()), part.name(), part.value()});
    return nullptr;
}

template <class Structure, class Wire>
const char* take_as(const Wire& wire, mirror::message& out) {
    return take(wire, out.emplace<Structure>());
}

const char* take(const replication::Message& wire, mirror::message& out) {
    switch (wire.what_case()) {
    case replication::Message::kHello:
        return take_as<mirror::hello>(wire.hello(), out);
    case replication::Message::kEntries:
        return take_as<mirror::entries>(wire.entries(), out);
    case replication::Message::kContent:
        return take_as<mirror::content>(wire.content(), out);
    case replication::Message::kOutcome:
        return take_as<mirror::outcome>(wire.outcome(), out);
    case replication::Message::kMarker:
        return take_as<mirror::marker>(wire.marker(), out);
    case replication::Message::kSynced:
        return take_as<mirror::synced>(wire.synced(), out);
    case replication::Message::kAck:
        return take_as<mirror::ack>(wire.ack(), out);
    case replication::Message::kHeartbeat:
        return take_as<mirror::heartbeat>(wire.heartbeat(), out);
    case replication::Message::kDigests:
        return take_as<mirror::digests>(wire.digests(), out);
    case replication::Message::kDigestResult:
        return take_as<mirror::digest_result>(wire.digest_result(), out);
    case replication::Message::kCloseEpoch:
        return take_as<mirror::close_epoch>(wire.close_epoch(), out);
    case replication::Message::kFault:
        return take_as<mirror::fault>(wire.fault(), out);
    case replication::Message::kGoodbye:
        return take_as<mirror::goodbye>(wire.goodbye(), out);
    case replication::Message::kSupervision:
        return take_as<mirror::supervision>(wire.supervision(), out);
    case replication::Message::kBuilt:
        return take_as<mirror::built>(wire.built(), out);
    case replication::Message::WHAT_NOT_SET:
        break;
    }
    out.emplace<mirror::unknown_message>();
    return wire.ignorable() ? nullptr : "a message of a kind that this version does not know";
}

} // namespace

std::string decode(const frame_header& header, std::span<const std::byte> protobuf, mirror::message& out) {
    if (std::string rule = check(header); !rule.empty())
        return rule;
    if (protobuf.size() != header.message_bytes)
        return "a message is shorter than its header says";
    alignas(8) char memory[4096];
    google::protobuf::ArenaOptions options;
    options.initial_block = memory;
    options.initial_block_size = sizeof(memory);
    google::protobuf::Arena arena(options);
    auto& wire = *google::protobuf::Arena::CreateMessage<replication::Message>(&arena);
    google::protobuf::io::CodedInputStream in(reinterpret_cast<const std::uint8_t*>(protobuf.data()),
                                              static_cast<int>(protobuf.size()));
    in.SetRecursionLimit(max_depth);
    if (!wire.ParseFromCodedStream(&in) || !in.ConsumedEntireMessage())
        return "a message can't be parsed";
    if (const char* rule = take(wire, out))
        return rule;
    if (std::string rule = check(out); !rule.empty())
        return rule;
    if (header.payload_bytes != payload_bytes_of(out)) {
        return "a frame has " + std::to_string(header.payload_bytes) +
               " bytes of payload where its message explains " + std::to_string(payload_bytes_of(out));
    }
    return {};
}

} // namespace kagemusha::messages
