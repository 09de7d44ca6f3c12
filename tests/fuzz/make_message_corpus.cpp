// SPDX-License-Identifier: GPL-2.0-or-later
// Valid input for message_fuzz, entry_fuzz and vm_state_fuzz: each message once, the sample session as a
// primary sends it, a checkpoint.
#include "codec/decode.hpp"
#include "codec/sample_session.hpp"
#include "fuzz_input.hpp"
#include "make_corpus.hpp"
#include "messages/messages.hpp"
#include "messages/vm_state.hpp"

using namespace kagemusha;

namespace {

mirror::entries::entry plain(mirror::log_sequence sequence, mirror::entry_kind kind, std::uint32_t file) {
    mirror::entries::entry e;
    e.meta.sequence = sequence;
    e.meta.kind = kind;
    e.meta.file = file;
    return e;
}

// Without reads and queries, which do not cross. False: nothing of it does.
bool submit_entry(const codec::stream_builder& b, mirror::entries::entry& out) {
    codec::stream_decoder decoder(b.stream(), {b.payloads()});
    codec::op o;
    out = plain(out.meta.sequence, mirror::entry_kind::submit, 1);
    while (decoder.next(o) == codec::decode_status::op) {
        ++out.meta.op_count;
        if (codec::header_of(o).opcode == VGPU_CMD_INFO)
            return false;
    }
    out.meta.stream_bytes = b.stream().size();
    for (const kagemusha_payload& p : b.payloads()) {
        if (p.writable != 0)
            return false;
        out.payloads.push_back({p.bytes, false});
        out.meta.content_bytes += mirror::rounded_up(p.bytes);
    }
    if (out.meta.content_bytes != 0)
        out.meta.flags = mirror::entry_late_content;
    return out.meta.op_count != 0;
}

std::vector<std::uint8_t> entry_input(const mirror::entries& batch, const std::vector<std::byte>& streams) {
    std::vector<std::byte> frame;
    messages::encode(batch, frame);
    const auto protobuf = std::span<const std::byte>(frame).subspan(sizeof(messages::frame_header));
    fuzz::writer out;
    out.value(static_cast<std::uint16_t>(protobuf.size()));
    out.array(protobuf);
    out.array(std::span(streams));
    return out.bytes();
}

// Launches that differ from each other in values, memory, events, wait lists and sizes.
std::vector<std::uint8_t> launches() {
    enum : std::uint64_t { context = 1, queue, program, kernel, buffer, other, user_event, first_event = 20 };
    std::vector<codec::stream_builder> requests(8);
    requests[0].create_context(context);
    requests[1].create_queue(queue, context);
    requests[2].create_buffer(buffer, context, 64);
    requests[3].create_buffer(other, context, 64);
    requests[4].create_program(program, context, "k");
    requests[5].create_kernel(kernel, program, "k");
    requests[6].create_user_event(user_event, context);
    codec::launch_size size;
    for (std::uint32_t n = 0; n < 6; ++n) {
        size.global[0] = 1 + n / 2;
        const std::uint64_t waits_for = n == 0 ? user_event + 0 : first_event + n - 1;
        requests[7].launch({queue, first_event + n, {waits_for}}, kernel, size,
                           codec::argument_builder{}.memory(0, n % 3 ? buffer + 0 : other).scalar(1, n));
        if (n == 3)
            requests[7].destroy(VGPU_OBJECT_EVENT, first_event + 1);
    }
    mirror::entries batch;
    std::vector<std::byte> streams;
    batch.list.push_back(plain(1, mirror::entry_kind::reset, 0));
    batch.list.push_back(plain(2, mirror::entry_kind::open_file, 1));
    for (const codec::stream_builder& b : requests) {
        mirror::entries::entry e;
        e.meta.sequence = batch.list.back().meta.sequence + 1;
        if (submit_entry(b, e)) {
            streams.insert(streams.end(), b.stream().begin(), b.stream().end());
            batch.list.push_back(std::move(e));
        }
    }
    return entry_input(batch, streams);
}

// The session from request number `first` on; the whole one, or a few.
std::vector<std::uint8_t> session_part(std::size_t first, std::size_t count) {
    const auto session = codec::sample_session();
    mirror::entries batch;
    std::vector<std::byte> streams;
    batch.list.push_back(plain(1, mirror::entry_kind::reset, 0));
    batch.list.push_back(plain(2, mirror::entry_kind::open_file, 1));
    for (std::size_t i = first; i < std::min(session.size(), first + count); ++i) {
        mirror::entries::entry e;
        e.meta.sequence = batch.list.back().meta.sequence + 1;
        if (submit_entry(session[i].builder, e)) {
            batch.list.push_back(e);
            const auto stream = session[i].builder.stream();
            streams.insert(streams.end(), stream.begin(), stream.end());
        }
    }
    batch.list.push_back(plain(batch.list.back().meta.sequence + 1, mirror::entry_kind::close_file, 1));
    return entry_input(batch, streams);
}

// A guest with everything that a checkpoint can say of one.
std::vector<std::byte> checkpoint() {
    mirror::vm_state s;
    s.instance = UINT64_MAX;
    s.epoch = 17;
    core::file_checkpoint& f = s.files.emplace_back();
    f.file = 3;
    f.requests = {{1027, {4, 6}, {{0, 7}, {1, 300}}}, {2048, {6, 6}, {}}};
    f.unreported = {1, UINT64_MAX, 7};
    f.refused = {{9, 2, -38}};
    vgpu_record_queue_error e{};
    e.record = {VGPU_RECORD_QUEUE_ERROR, sizeof(e), 3, 0};
    const auto record = std::as_bytes(std::span(&e, 1));
    f.records.assign(record.begin(), record.end());
    core::file_checkpoint& lost = s.files.emplace_back();
    lost.file = UINT32_MAX;
    lost.lost = true;
    std::vector<std::byte> out;
    messages::encode(s, out);
    return out;
}

} // namespace

bool fuzz::write_message_corpus(const std::string& root) {
    mirror::hello hello;
    hello.vm = "vm";
    hello.gpu = "影 GPU";
    hello.capabilities = {"zstd", "later"};
    mirror::entries entries;
    entries.list.push_back(plain(1, mirror::entry_kind::reset, 0));
    entries.list.push_back(plain(2, mirror::entry_kind::open_file, 1));
    entries.list.push_back(plain(3, mirror::entry_kind::submit, 1));
    auto& submit = entries.list.back();
    submit.meta.flags = mirror::entry_agent | mirror::entry_compare;
    submit.meta.op_count = 2;
    submit.meta.stream_bytes = 64;
    submit.meta.content_bytes = 8;
    submit.payloads = {{5, false}, {16, true}};

    const std::pair<const char*, mirror::message> all[] = {
        {"hello", hello},
        {"entries", entries},
        {"content", mirror::content{3, 0, 4096, 1000, 0}},
        {"content-compressed", mirror::content{3, 0, 4096, 1000, 500}},
        {"outcome", mirror::outcome{3, false, -5}},
        {"marker", mirror::marker{7, 3}},
        {"synced", mirror::synced{3}},
        {"ack",
         mirror::ack{
             .received = 3, .executed = 2, .committed_epoch = 7, .freed_bytes = 1000, .freed_entries = 3}},
        {"heartbeat", mirror::heartbeat{123456, 123400}},
        {"digests", mirror::digests{3, {1, UINT64_MAX}}},
        {"digest-result", mirror::digest_result{3, {0, 1, 1000}}},
        {"close-epoch", mirror::close_epoch{}},
        {"fault", mirror::fault{3, "clBuildProgram failed: -11"}},
        {"goodbye", mirror::goodbye{mirror::goodbye_reason::refused, "another VM"}},
        {"ignorable", mirror::unknown_message{}},
    };
    bool ok = true;
    for (const auto& [name, m] : all) {
        std::vector<std::byte> frame;
        messages::encode(m, frame);
        for (const std::uint8_t made_up : {0, 1}) {
            writer out;
            out.value(made_up);
            out.array(
                std::span<const std::byte>(frame).subspan(made_up ? sizeof(messages::frame_header) : 0));
            ok &= write_file(root + "/message/valid-" + name + (made_up ? "" : "-framed"), out.bytes());
        }
    }
    fuzz::writer vm_state;
    vm_state.array(std::span<const std::byte>(checkpoint()));
    ok &= write_file(root + "/vm_state/valid", vm_state.bytes());
    ok &= write_file(root + "/entry/valid-launches", launches());
    ok &= write_file(root + "/entry/valid-session", session_part(0, SIZE_MAX / 2));
    for (const std::size_t first : {4u, 8u, 16u})
        ok &= write_file(root + "/entry/valid-part-" + std::to_string(first), session_part(first, 8));
    return ok;
}
