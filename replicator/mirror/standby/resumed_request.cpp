// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/standby/resumed_request.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "codec/decode.hpp"

namespace kagemusha::mirror {

namespace {

// Where a command says which payload it reads; null if it reads none out of the table.
const vgpu_payload_ref* read_payload(const codec::op& any) {
    return std::visit(
        [](const auto& o) -> const vgpu_payload_ref* {
            const vgpu_payload_ref* reference = nullptr;
            if constexpr (requires { o.content; }) {
                reference = &o.c->content;
            } else if constexpr (requires { o.write(); }) {
                if (!o.write())
                    return nullptr;
                reference = &o.c->data;
            }
            return reference && reference->index < VGPU_MAX_PAYLOADS ? reference : nullptr;
        },
        any);
}

// A command that writes guest memory; `into` null: it does not.
struct guest_write {
    const vgpu_payload_ref* into = nullptr;
    codec::id_list waits;
};
guest_write guest_write_of(const codec::op& any) {
    return std::visit(
        [](const auto& o) -> guest_write {
            if constexpr (requires {
                              o.write();
                              o.c->data;
                              o.waits;
                          }) {
                if (!o.write())
                    return {&o.c->data, o.waits};
            }
            return {};
        },
        any);
}

std::span<const std::byte> bytes_of(std::span<const std::byte> stream, std::size_t at) {
    return stream.subspan(at, codec::command_bytes(*reinterpret_cast<const vgpu_cmd*>(stream.data() + at)));
}

// Apart from which payload it is.
bool equal(std::span<const std::byte> a, std::span<const std::byte> b, std::size_t reference_at) {
    const std::size_t index_at = reference_at + offsetof(vgpu_payload_ref, index);
    const std::size_t behind = index_at + sizeof(vgpu_payload_ref::index);
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), index_at) == 0 &&
           std::memcmp(a.data() + behind, b.data() + behind, a.size() - behind) == 0;
}

// A decoder wants payloads that are as long as the commands say.
std::vector<kagemusha_payload> payloads_of(std::span<const kagemusha_segment> content) {
    std::vector<kagemusha_payload> out;
    for (std::size_t i = 0; i < content.size(); ++i)
        out.push_back({content[i].bytes, static_cast<std::uint32_t>(i), 1, 0, 0});
    return out;
}

} // namespace

resumed_request::resumed_request(const kagemusha_request& r, const core::request_progress& progress)
    : request_(r)
    , stream_(r.stream_bytes / 8)
    , payloads_(r.payloads, r.payloads + r.payload_count)
    , segments_(r.segments, r.segments + r.segment_count) {
    if (!stream_.empty())
        std::memcpy(stream_.data(), r.stream, stream_.size() * 8);
    if (!progress.written.empty() || !progress.refused.empty())
        leave_out(progress);
}

// The guest may have changed the stream meanwhile; then whatever comes of it is checked like any other.
void resumed_request::leave_out(const core::request_progress& progress) {
    const std::vector<std::uint64_t> whole = std::exchange(stream_, {});
    const auto bytes = std::as_bytes(std::span(whole));
    const auto keep = [&](std::span<const std::byte> command) {
        const std::size_t at = stream_.size();
        stream_.resize(at + command.size() / 8);
        std::memcpy(stream_.data() + at, command.data(), command.size());
    };
    codec::stream_decoder decoder(bytes, {payloads_});
    codec::op o;
    std::size_t behind = 0;
    for (std::uint32_t place = 0; decoder.next(o) == codec::decode_status::op; ++place) {
        const std::span<const std::byte> command = bytes_of(bytes, decoder.offset());
        behind = decoder.offset() + command.size();
        const vgpu_enqueue* const enqueue = codec::enqueue_of(o);
        if (std::binary_search(progress.refused.begin(), progress.refused.end(), place)) {
            request_.completion_count -= enqueue && enqueue->event != 0 && request_.completion_count != 0;
            continue;
        }
        const guest_write w = guest_write_of(o);
        if (!w.into || !std::binary_search(progress.written.begin(), progress.written.end(), w.into->index)) {
            keep(command);
            continue;
        }
        if (enqueue->event != 0 || enqueue->wait_count != 0) {
            vgpu_cmd_sync marker{};
            marker.cmd.opcode = VGPU_CMD_MARKER;
            marker.enqueue = *enqueue;
            marker.cmd.bytes = static_cast<std::uint32_t>(sizeof(marker) + w.waits.size_bytes());
            keep(std::as_bytes(std::span(&marker, 1)));
            keep(std::as_bytes(w.waits));
        }
    }
    keep(bytes.subspan(behind)); // what is no stream: nothing, or the guest's own fault
    request_.stream_bytes = static_cast<std::uint32_t>(stream_.size() * 8);
}

void resumed_request::take_content(std::span<const std::byte> entry,
                                   std::span<const kagemusha_segment> content) {
    const std::vector<kagemusha_payload> entry_payloads = payloads_of(content);
    codec::stream_decoder theirs(entry, {entry_payloads});
    codec::op logged;
    while (theirs.next(logged) == codec::decode_status::op) {
        if (const auto* await = std::get_if<codec::op_await>(&logged))
            awaited_.insert(awaited_.end(), await->events.begin(), await->events.end());
        const vgpu_payload_ref* reference = read_payload(logged);
        if (!reference || content[reference->index].bytes == 0)
            continue;
        const std::span<const std::byte> wanted = bytes_of(entry, theirs.offset());
        const std::size_t reference_at =
            static_cast<std::size_t>(reinterpret_cast<const std::byte*>(reference) - wanted.data());
        // The guest's commands come in the same order; some of them are not in the log.
        codec::stream_decoder ours(stream().subspan(at_), {payloads_});
        codec::op own;
        while (ours.next(own) == codec::decode_status::op) {
            const std::span<const std::byte> command = bytes_of(stream().subspan(at_), ours.offset());
            const vgpu_payload_ref* place = read_payload(own);
            if (!place || !equal(wanted, command, reference_at))
                continue;
            kagemusha_payload& payload = payloads_[place->index];
            payload.first_segment = static_cast<std::uint32_t>(segments_.size());
            payload.segment_count = 1;
            segments_.push_back(content[reference->index]);
            at_ += ours.offset() + command.size();
            break;
        }
    }
}

kagemusha_request resumed_request::request() const {
    kagemusha_request r = request_;
    r.stream = stream_.data();
    r.payloads = payloads_.data();
    r.segments = segments_.data();
    r.segment_count = static_cast<std::uint32_t>(segments_.size());
    return r;
}

} // namespace kagemusha::mirror
