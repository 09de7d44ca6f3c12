// SPDX-License-Identifier: GPL-2.0-or-later
// mirror::message → bytes.
#include <bit>
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <google/protobuf/arena.h>

#include "messages/messages.hpp"
#include "messages/text.hpp"
#include "proto/replication/replication.pb.h"

namespace kagemusha::messages {

namespace {

static_assert(std::endian::native == std::endian::little, "frame_header is copied as it lies in memory");

void fill(replication::Message& out, const mirror::hello& m) {
    auto& h = *out.mutable_hello();
    h.set_version(m.version);
    h.set_oldest_version(m.oldest_version);
    h.set_role(static_cast<replication::Role>(m.role));
    h.set_vm(m.vm);
    h.set_instance(m.instance);
    h.set_abi_version(m.abi_version);
    h.set_gpu(m.gpu);
    for (const std::string& name : m.capabilities)
        h.add_capabilities(name);
    h.set_heartbeat_budget_ms(m.heartbeat_budget_ms);
    h.set_hold_bytes(m.hold_bytes);
    h.set_hold_entries(m.hold_entries);
    h.set_max_files(m.limits.max_files);
    h.set_max_memory_bytes(m.limits.max_memory_bytes);
    h.set_max_file_memory_bytes(m.limits.max_file_memory_bytes);
    h.set_oldest_abi_version(m.oldest_abi_version);
    h.set_checkpoint_version(m.checkpoint_version);
    h.set_oldest_checkpoint_version(m.oldest_checkpoint_version);
    h.set_lane_token(m.lane_token);
}

// A column that has the same value, its default, in every entry is left out.
template <class T, class Column, class Value>
void fill_column(Column& column, const mirror::entries& m, T default_value, Value value) {
    bool needed = false;
    for (const auto& e : m.list)
        needed |= value(e) != default_value;
    if (!needed)
        return;
    column.Reserve(static_cast<int>(m.list.size()));
    for (const auto& e : m.list)
        column.AddAlreadyReserved(value(e));
}

void fill(replication::Message& out, const mirror::entries& m) {
    using entry = mirror::entries::entry;
    auto& b = *out.mutable_entries();
    b.set_first_sequence(m.list.front().meta.sequence);
    b.set_count(static_cast<std::uint32_t>(m.list.size()));
    fill_column(*b.mutable_kind(), m, int{replication::ENTRY_KIND_SUBMIT},
                [](const entry& e) { return static_cast<int>(e.meta.kind); });
    fill_column(*b.mutable_file(), m, 0u, [](const entry& e) { return e.meta.file; });
    fill_column(*b.mutable_flags(), m, 0u, [](const entry& e) { return e.meta.flags; });
    fill_column(*b.mutable_op_count(), m, 0u, [](const entry& e) { return e.meta.op_count; });
    fill_column(*b.mutable_stream_words(), m, 0u,
                [](const entry& e) { return static_cast<std::uint32_t>(e.meta.stream_bytes / 8); });
    fill_column(*b.mutable_payload_count(), m, 0u,
                [](const entry& e) { return static_cast<std::uint32_t>(e.payloads.size()); });
    std::size_t payloads = 0;
    bool writable = false;
    for (const entry& e : m.list) {
        payloads += e.payloads.size();
        for (const mirror::entry_payload& p : e.payloads) {
            b.add_payload_bytes(p.bytes);
            writable |= p.writable;
        }
    }
    if (!writable)
        return;
    b.mutable_payload_writable()->Reserve(static_cast<int>(payloads));
    for (const entry& e : m.list)
        for (const mirror::entry_payload& p : e.payloads)
            b.add_payload_writable(p.writable);
}

void fill(replication::Message& out, const mirror::content& m) {
    auto& c = *out.mutable_content();
    c.set_sequence(m.sequence);
    c.set_payload(m.payload);
    c.set_offset(m.offset);
    c.set_length(m.bytes);
    c.set_compressed_bytes(m.compressed_bytes);
    c.set_lane(m.lane);
}

void fill(replication::Message& out, const mirror::built& m) {
    auto& b = *out.mutable_built();
    b.set_file(m.file);
    b.set_length(m.bytes);
}

void fill(replication::Message& out, const mirror::outcome& m) {
    auto& o = *out.mutable_outcome();
    o.set_sequence(m.sequence);
    o.set_canceled(m.canceled);
    o.set_result(m.result);
}

void fill(replication::Message& out, const mirror::marker& m) {
    out.mutable_marker()->set_epoch(m.epoch);
    out.mutable_marker()->set_sequence(m.sequence);
    out.mutable_marker()->set_checkpoint(m.checkpoint);
}

void fill(replication::Message& out, const mirror::synced& m) {
    out.mutable_synced()->set_sequence(m.sequence);
}

void fill(replication::Message& out, const mirror::ack& m) {
    auto& a = *out.mutable_ack();
    a.set_received(m.received);
    a.set_executed(m.executed);
    a.set_committed_epoch(m.committed_epoch);
    a.set_freed_bytes(m.freed_bytes);
    a.set_freed_entries(m.freed_entries);
    a.set_complete_checkpoint(m.complete_checkpoint);
}

void fill(replication::Message& out, const mirror::heartbeat& m) {
    out.mutable_heartbeat()->set_time_ms(m.time_ms);
    out.mutable_heartbeat()->set_answer_to_ms(m.answer_to_ms);
}

void fill(replication::Message& out, const mirror::digests& m) {
    auto& d = *out.mutable_digests();
    d.set_sequence(m.sequence);
    d.mutable_hashes()->Add(m.hashes.begin(), m.hashes.end());
}

void fill(replication::Message& out, const mirror::digest_result& m) {
    auto& d = *out.mutable_digest_result();
    d.set_sequence(m.sequence);
    d.mutable_different()->Reserve(static_cast<int>(m.different.size()));
    for (const std::uint64_t index : m.different)
        d.add_different(static_cast<std::uint32_t>(index));
}

void fill(replication::Message& out, const mirror::close_epoch&) {
    out.mutable_close_epoch();
}

void fill(replication::Message& out, const mirror::fault& m) {
    out.mutable_fault()->set_sequence(m.sequence);
    out.mutable_fault()->set_why(m.why);
}

void fill(replication::Message& out, const mirror::goodbye& m) {
    out.mutable_goodbye()->set_reason(static_cast<replication::GoodbyeReason>(m.reason));
    out.mutable_goodbye()->set_why(m.why);
}

void fill(replication::Message& out, const mirror::supervision& m) {
    auto& s = *out.mutable_supervision();
    s.set_kind(static_cast<replication::SupervisionKind>(m.kind));
    s.set_term(m.term);
    s.set_text(m.text);
    s.set_unreleased(m.unreleased);
    s.set_gpu_failed(m.gpu_failed);
    s.set_recorded(m.recorded);
    for (const auto& part : m.parts) {
        auto& p = *s.add_parts();
        p.set_rule(static_cast<replication::PartRule>(part.rule));
        p.set_name(part.name);
        p.set_value(part.value);
    }
}

void fill(replication::Message& out, const mirror::unknown_message&) {
    out.set_ignorable(true);
}

void encode_checked(const mirror::message& m, std::vector<std::byte>& out) {
    const std::string rule = check(m);
    if (!rule.empty()) {
        std::fprintf(stderr, "kagemusha: would send a message that breaks a rule: %s\n", rule.c_str());
        std::abort();
    }
    // Small messages need no memory of the heap.
    alignas(8) char memory[4096];
    google::protobuf::ArenaOptions options;
    options.initial_block = memory;
    options.initial_block_size = sizeof(memory);
    google::protobuf::Arena arena(options);
    auto& wire = *google::protobuf::Arena::CreateMessage<replication::Message>(&arena);
    std::visit([&](const auto& x) { fill(wire, x); }, m);

    const std::size_t bytes = wire.ByteSizeLong();
    assert(bytes <= mirror::max_message_bytes); // whoever fills `entries` asks entries_budget
    const frame_header header{frame_magic, static_cast<std::uint32_t>(bytes), payload_bytes_of(m)};
    const std::size_t at = out.size();
    out.resize(at + sizeof(header) + bytes);
    std::memcpy(out.data() + at, &header, sizeof(header));
    auto* begin = reinterpret_cast<std::uint8_t*>(out.data() + at + sizeof(header));
    [[maybe_unused]] const auto* end = wire.SerializeWithCachedSizesToArray(begin);
    assert(static_cast<std::size_t>(end - begin) == bytes);
}

} // namespace

void encode(const mirror::message& m, std::vector<std::byte>& out) {
    if (const auto* original = std::get_if<mirror::hello>(&m)) {
        mirror::hello h = *original;
        h.vm = as_text(h.vm);
        h.gpu = as_text(h.gpu);
        for (std::string& name : h.capabilities)
            name = as_text(name);
        encode_checked(h, out);
    } else if (const auto* f = std::get_if<mirror::fault>(&m)) {
        encode_checked(mirror::fault{f->sequence, as_text(f->why)}, out);
    } else if (const auto* g = std::get_if<mirror::goodbye>(&m)) {
        encode_checked(mirror::goodbye{g->reason, as_text(g->why)}, out);
    } else if (const auto* s = std::get_if<mirror::supervision>(&m)) {
        mirror::supervision clean = *s;
        clean.text = as_text(s->text);
        for (auto& part : clean.parts) {
            part.name = as_text(part.name);
            part.value = as_text(part.value, mirror::max_part_value_bytes);
        }
        encode_checked(clean, out);
    } else {
        encode_checked(m, out);
    }
}

} // namespace kagemusha::messages
