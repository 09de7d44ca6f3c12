// SPDX-License-Identifier: GPL-2.0-or-later
#include "messages/vm_state.hpp"

#include <cstring>
#include <utility>

#include <google/protobuf/arena.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include "core/limits.hpp"
#include "mirror/log/limits.hpp"
#include "proto/abi/vgpu_protocol.h"
#include "proto/replication/replication.pb.h"

namespace kagemusha::messages {

namespace {

// A chain of records as a guest may get them: each says its own length and is of the file.
bool are_records(const std::string& bytes, std::uint32_t file) {
    for (std::size_t at = 0; at < bytes.size();) {
        vgpu_record head;
        if (bytes.size() - at < sizeof(head))
            return false;
        std::memcpy(&head, bytes.data() + at, sizeof(head));
        if (head.bytes < sizeof(head) || head.bytes % 8 != 0 || head.bytes > VGPU_MAX_RECORD_BYTES ||
            head.bytes > bytes.size() - at || head.file != file || head.pad != 0 ||
            head.type == VGPU_RECORD_COMPLETION) {
            return false;
        }
        at += head.bytes;
    }
    return true;
}

bool ascend(const google::protobuf::RepeatedField<std::uint32_t>& numbers, std::uint32_t limit) {
    std::uint64_t next = 0;
    for (const std::uint32_t n : numbers) {
        if (n < next || n >= limit)
            return false;
        next = std::uint64_t{n} + 1;
    }
    return true;
}

// What parsing makes larger than it is on the wire, counted before anything is parsed. Field numbers and
// nesting are those of proto/replication.
class census {
public:
    // Empty, or what there is too much of.
    std::string take(std::span<const std::byte> bytes) {
        google::protobuf::io::CodedInputStream in(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                                  static_cast<int>(bytes.size()));
        if (!in_state(in))
            return "it is no message of this kind";
        if (files_ > mirror::max_mirrored_files)
            return "it has too many files";
        return requests_ > max_open_requests   ? "it has too many in-flight requests"
               : events_ > max_refused_events  ? "it has too many refused events"
               : places_ > max_places          ? "too much is over of its in-flight requests"
               : unknown_ > max_unknown_fields ? "it has too many fields that this release does not know"
                                               : "";
    }

private:
    using stream = google::protobuf::io::CodedInputStream;
    using wire = google::protobuf::internal::WireFormatLite;

    static constexpr std::uint32_t tag(int field, wire::WireType type) { return wire::MakeTag(field, type); }
    // Beyond this it is refused anyway, whatever else there is.
    bool too_much() const {
        return files_ > mirror::max_mirrored_files || requests_ > max_open_requests ||
               events_ > max_refused_events || places_ > max_places || unknown_ > max_unknown_fields;
    }
    template <class Known>
    bool for_each_field(stream& in, Known known) {
        while (const std::uint32_t t = in.ReadTagNoLastTag()) {
            const int taken = known(t);
            if (taken < 0 || (taken == 0 && !skip(in, t)))
                return false;
            if (too_much())
                return true;
        }
        return in.BytesUntilLimit() <= 0;
    }
    // Of a group nobody knows how much it holds.
    static bool skip(stream& in, std::uint32_t t) {
        const auto type = wire::GetTagWireType(t);
        return wire::GetTagFieldNumber(t) != 0 && type != wire::WIRETYPE_START_GROUP &&
               type != wire::WIRETYPE_END_GROUP && wire::SkipField(&in, t);
    }
    template <class Inner>
    static bool nested(stream& in, Inner inner) {
        std::uint32_t bytes;
        if (!in.ReadVarint32(&bytes) || bytes > max_vm_state_bytes)
            return false;
        const auto limit = in.PushLimit(static_cast<int>(bytes));
        const bool ok = in.BytesUntilLimit() == static_cast<int>(bytes) && inner();
        in.PopLimit(limit);
        return ok;
    }
    bool in_state(stream& in) {
        return for_each_field(in, [&](std::uint32_t t) {
            if (t == tag(3, wire::WIRETYPE_LENGTH_DELIMITED)) {
                ++files_;
                return nested(in, [&] { return in_file(in); }) ? 1 : -1;
            }
            unknown_ += t != tag(1, wire::WIRETYPE_FIXED64) && t != tag(2, wire::WIRETYPE_VARINT);
            return 0;
        });
    }
    bool in_file(stream& in) {
        return for_each_field(in, [&](std::uint32_t t) {
            if (t == tag(3, wire::WIRETYPE_LENGTH_DELIMITED)) {
                ++requests_;
                return nested(in, [&] { return in_request(in); }) ? 1 : -1;
            }
            if (t == tag(5, wire::WIRETYPE_LENGTH_DELIMITED)) {
                ++events_;
                return nested(in, [&] { return in_event(in); }) ? 1 : -1;
            }
            unknown_ += t != tag(1, wire::WIRETYPE_VARINT) && t != tag(2, wire::WIRETYPE_VARINT) &&
                        t != tag(4, wire::WIRETYPE_FIXED64) && t != tag(4, wire::WIRETYPE_LENGTH_DELIMITED) &&
                        t != tag(6, wire::WIRETYPE_LENGTH_DELIMITED);
            return 0;
        });
    }
    bool in_request(stream& in) {
        return for_each_field(in, [&](std::uint32_t t) {
            for (const int list : {4, 5}) {
                if (t == tag(list, wire::WIRETYPE_LENGTH_DELIMITED))
                    return nested(in, [&] { return in_places(in); }) ? 1 : -1;
                if (t == tag(list, wire::WIRETYPE_VARINT)) {
                    ++places_;
                    return 0;
                }
            }
            unknown_ += t != tag(1, wire::WIRETYPE_FIXED64) && t != tag(2, wire::WIRETYPE_VARINT) &&
                        t != tag(3, wire::WIRETYPE_VARINT);
            return 0;
        });
    }
    bool in_places(stream& in) {
        while (in.BytesUntilLimit() > 0) {
            std::uint64_t ignored;
            if (!in.ReadVarint64(&ignored))
                return false;
            if (++places_ > max_places)
                in.Skip(in.BytesUntilLimit());
        }
        return true;
    }
    bool in_event(stream& in) {
        return for_each_field(in, [&](std::uint32_t t) {
            unknown_ += t != tag(1, wire::WIRETYPE_FIXED64) && t != tag(2, wire::WIRETYPE_FIXED64) &&
                        t != tag(3, wire::WIRETYPE_VARINT);
            return 0;
        });
    }

    std::uint64_t files_ = 0, requests_ = 0, events_ = 0, places_ = 0, unknown_ = 0;
};

std::string take(const replication::FileState& from, core::file_checkpoint& to) {
    to.file = from.file();
    to.lost = from.lost();
    if (static_cast<std::uint64_t>(from.requests_size()) > core::hard_max_requests_per_file)
        return "it has more in-flight requests than a file may have";
    for (const auto& r : from.requests()) {
        if (r.after() > r.last() || r.last() > mirror::max_sequence)
            return "an in-flight request ends before it begins";
        if (!ascend(r.written(), VGPU_MAX_PAYLOADS) || !ascend(r.refused(), VGPU_MAX_STREAM_BYTES / 8) ||
            r.refused_size() > static_cast<int>(core::max_refused_per_request)) {
            return "what is over of an in-flight request is not in order, or more than it has";
        }
        to.requests.push_back({r.token(),
                               {r.after(), r.last()},
                               {std::vector<std::uint32_t>(r.written().begin(), r.written().end()),
                                std::vector<std::uint32_t>(r.refused().begin(), r.refused().end())}});
    }
    if (static_cast<std::uint64_t>(from.unreported_size()) >
        std::uint64_t{2} * core::hard_max_events_per_file) {
        return "it has more events in flight than a file may have";
    }
    to.unreported.assign(from.unreported().begin(), from.unreported().end());
    for (const auto& e : from.refused()) {
        if (e.status() > 0)
            return "the status of a refused event is not an error";
        to.refused.push_back({e.id(), e.context(), e.status()});
    }
    if (!are_records(from.records(), to.file))
        return "its records are none";
    const auto* records = reinterpret_cast<const std::byte*>(from.records().data());
    to.records.assign(records, records + from.records().size());
    return {};
}

} // namespace

void encode(const mirror::vm_state& state, std::vector<std::byte>& out) {
    google::protobuf::Arena memory;
    auto& message = *google::protobuf::Arena::CreateMessage<replication::VmState>(&memory);
    message.set_instance(state.instance);
    message.set_epoch(state.epoch);
    for (const core::file_checkpoint& f : state.files) {
        auto& to = *message.add_files();
        to.set_file(f.file);
        to.set_lost(f.lost);
        for (const auto& r : f.requests) {
            auto& request = *to.add_requests();
            request.set_token(r.token);
            request.set_after(r.entries.after);
            request.set_last(r.entries.last);
            request.mutable_written()->Add(r.progress.written.begin(), r.progress.written.end());
            request.mutable_refused()->Add(r.progress.refused.begin(), r.progress.refused.end());
        }
        to.mutable_unreported()->Add(f.unreported.begin(), f.unreported.end());
        for (const auto& e : f.refused) {
            auto& event = *to.add_refused();
            event.set_id(e.id);
            event.set_context(e.context);
            event.set_status(e.status);
        }
        to.set_records(f.records.data(), f.records.size());
    }
    out.resize(message.ByteSizeLong());
    message.SerializeWithCachedSizesToArray(reinterpret_cast<std::uint8_t*>(out.data()));
}

std::string decode(std::span<const std::byte> bytes, mirror::vm_state& out) {
    const std::string begin = "the GPU's part of the checkpoint can't be used: ";
    if (bytes.size() > max_vm_state_bytes)
        return begin + "it is longer than " + std::to_string(max_vm_state_bytes) + " bytes";
    if (std::string much = census().take(bytes); !much.empty())
        return begin + much;
    google::protobuf::Arena memory;
    auto& message = *google::protobuf::Arena::CreateMessage<replication::VmState>(&memory);
    if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
        return begin + "it is no message of this kind";
    if (message.epoch() > mirror::max_sequence)
        return begin + "it has an epoch without bounds";
    mirror::vm_state state;
    state.instance = message.instance();
    state.epoch = message.epoch();
    for (const auto& f : message.files()) {
        if (f.file() == 0 || (!state.files.empty() && f.file() <= state.files.back().file))
            return begin + "its files are not in order";
        if (std::string broken = take(f, state.files.emplace_back()); !broken.empty())
            return begin + "file " + std::to_string(f.file()) + ": " + broken;
    }
    out = std::move(state);
    return {};
}

} // namespace kagemusha::messages
