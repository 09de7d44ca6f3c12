// SPDX-License-Identifier: GPL-2.0-or-later
#include "core/session_fsm.hpp"

#include <cassert>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "base/checked.hpp"
#include "codec/cl_numbers.hpp"
#include "codec/commands/opencl.hpp"
#include "core/limits.hpp"

namespace kagemusha::core {

namespace {

constexpr std::uint32_t not_in_stream = UINT32_MAX;

// Tokens with bit 63 are not the guest's (core/device.cpp).
constexpr std::uint32_t max_generation = UINT32_MAX >> 1;

submit_decision answer(vgpu_status status, std::uint32_t failed_offset, const char* broken_rule) {
    submit_decision d;
    d.response.status = status;
    d.response.failed_offset = failed_offset;
    d.broken_rule = broken_rule;
    return d;
}

void count_work(const codec::op& o, request_work& work) {
    const std::uint16_t opcode = codec::header_of(o).opcode;
    ++work.commands;
    work.launches += opcode == VGPU_CMD_LAUNCH;
    work.calls += codec::is_call(opcode);
    if (const auto* info = std::get_if<codec::op_info>(&o); info && codec::commands::is_report(*info->c)) {
        const auto name = info->input.inline_bytes;
        work.unsupported = {reinterpret_cast<const char*>(name.data()), name.size()};
    }
    std::visit(
        [&work](const auto& x) {
            if constexpr (requires {
                              x.data;
                              x.write();
                          }) {
                (x.write() ? work.bytes_to_gpu : work.bytes_from_gpu) += x.data.bytes;
            } else if constexpr (requires { x.content; }) {
                work.bytes_to_gpu += x.content.bytes;
            }
        },
        o);
}

} // namespace

session_fsm::session_fsm(std::uint32_t file, const file_limits& limits, const file_limits& of_log,
                         device_usage& usage, std::uint64_t hash_seed)
    : file_(file)
    , limits_(limits)
    , log_limits_(of_log)
    , usage_(usage)
    , table_({limits.max_objects, limits.max_memory_bytes}, {of_log.max_objects, of_log.max_memory_bytes},
             usage, hash_seed) {}

// The payload and segment tables, before anything looks at a command. Every segment belongs to at most one
// payload; that also bounds the work here.
//
// What the worker writes is bounded by the memory there is: all of it is reported as written, once per
// request. Not on a standby, whose requests write into memory of its own.
const char* session_fsm::check_tables(const kagemusha_request& r, region_sizes regions, bool of_log) const {
    if (r.payload_count > VGPU_MAX_PAYLOADS || r.segment_count > VGPU_MAX_SEGMENTS || r.pad != 0)
        return "a payload or segment table is too long, or a pad is not 0";
    base::checked_u64 writable = 0;
    std::uint64_t segments_used = 0;
    for (std::uint32_t p = 0; p < r.payload_count; ++p) {
        const kagemusha_payload& payload = r.payloads[p];
        if (payload.pad != 0 || payload.writable > 1)
            return "a payload has an unknown flag or a pad that is not 0";
        segments_used += payload.segment_count;
        if (payload.segment_count == 0 || segments_used > r.segment_count ||
            !base::range_inside(payload.first_segment, payload.segment_count, r.segment_count)) {
            return "a payload has no segments, segments beyond the table, or segments of another payload";
        }
        base::checked_u64 sum = 0;
        for (std::uint32_t s = 0; s < payload.segment_count; ++s) {
            const kagemusha_segment& segment = r.segments[payload.first_segment + s];
            if (segment.pad != 0 || segment.bytes == 0 || segment.region >= regions.size() ||
                !base::range_inside(segment.offset, segment.bytes, regions[segment.region])) {
                return "a segment is empty or outside the guest's memory";
            }
            sum = sum + segment.bytes;
        }
        if (sum.value() != payload.bytes)
            return "a payload is not as long as its segments together";
        if (payload.writable != 0)
            writable = writable + payload.bytes;
    }
    std::uint64_t memory = 0;
    for (const std::uint64_t bytes : regions)
        memory += bytes;
    if (!of_log && !writable.within(memory))
        return "payloads that the GPU writes are longer together than all memory of the guest";
    return nullptr;
}

// Leaves one command out of what is forwarded.
void session_fsm::cut(std::span<const std::byte> stream, std::uint32_t offset, std::uint32_t bytes) {
    const auto kept = stream.subspan(copied_to_, offset - copied_to_);
    const std::size_t at = cut_stream_.size();
    cut_stream_.resize(at + kept.size() / 8);
    if (!kept.empty())
        std::memcpy(cut_stream_.data() + at, kept.data(), kept.size());
    copied_to_ = offset + bytes;
}

void session_fsm::await(std::span<const guest_id> events) {
    if (std::exchange(awaited_told_, false))
        awaited_.clear();
    for (const guest_id id : events)
        if (const std::uint64_t serial = table_.pending_serial(id))
            awaited_.push_back({id, serial});
}

submit_decision session_fsm::on_submit(const kagemusha_request& r, region_sizes regions, bool of_log) {
    await({});
    if (lost_)
        return answer(VGPU_STATUS_LOST, 0, nullptr);
    if (of_log ? requests_in_flight_ >= log_limits_.max_requests
               : guests_requests_in_flight() >= limits_.max_requests) {
        return answer(VGPU_STATUS_LIMIT, 0, "more requests in flight than max_requests_per_file");
    }
    if (const char* rule = check_tables(r, regions, of_log))
        return answer(VGPU_STATUS_MALFORMED, not_in_stream, rule);
    if (!of_log && r.segment_count > max_written_ranges_of_device - usage_.written_ranges)
        return answer(VGPU_STATUS_LIMIT, 0, "requests in flight write into too many ranges of guest memory");

    const std::span<const std::byte> stream(static_cast<const std::byte*>(r.stream), r.stream_bytes);
    codec::stream_decoder decoder(stream, {std::span(r.payloads, r.payload_count)});
    events_.limit = of_log ? log_limits_.max_events : limits_.max_events + table_.pending_log_events();
    validator check(table_, events_, of_log ? &awaited_ : nullptr);
    submit_decision d;
    request_slot slot;
    slot.used = true;
    slot.of_log = of_log;
    slot.token = r.token;
    slot.in_guest_memory = !of_log && r.payload_count != 0;
    refusals_.clear();
    refused_.clear();
    cut_stream_.clear();
    copied_to_ = 0;
    std::uint32_t completions = 0;
    const event_credit events_before = events_;
    const std::size_t awaited_before = awaited_.size();
    table_.begin(of_log);
    const auto refuse_all = [&](vgpu_status status, std::uint32_t offset, const char* rule) {
        table_.rollback();
        events_ = events_before;
        awaited_.resize(awaited_before);
        return answer(status, offset, rule);
    };

    repeats_.begin(stream);
    codec::op o;
    for (std::uint64_t place = 0;; ++place) {
        if (const auto* repeated = repeats_.find(decoder.position());
            repeated && check.check_again(*repeated)) {
            repeats_.accept_found();
            decoder.skip();
            completions += repeated->launch().enqueue.event != 0;
            ++d.work.commands;
            ++d.work.launches;
            continue;
        }
        const codec::decode_status status = decoder.next(o);
        if (status == codec::decode_status::error)
            return refuse_all(VGPU_STATUS_MALFORMED, decoder.error().offset, decoder.error().message);
        if (status == codec::decode_status::end)
            break;
        const vgpu_enqueue* enqueue = codec::enqueue_of(o);
        completions += enqueue && enqueue->event != 0;
        const verdict v = check.check(o);
        if (v.what == verdict::kind::malformed)
            return refuse_all(VGPU_STATUS_MALFORMED, decoder.offset(), v.message);
        if (v.what == verdict::kind::limit)
            return refuse_all(VGPU_STATUS_LIMIT, decoder.offset(), v.message);
        const vgpu_cmd& header = codec::header_of(o);
        slot.is_call = codec::is_call(header.opcode);
        if (slot.is_call)
            repeats_.end(); // and whatever follows is refused
        else if (const auto* destroy = std::get_if<codec::op_destroy>(&o))
            repeats_.destroyed(static_cast<vgpu_object_kind>(destroy->c->kind));
        if (v.ok()) {
            if (const auto* launch = std::get_if<codec::op_launch>(&o); launch && knows_repeats_)
                repeats_.accepted(*launch->c, check.context());
            count_work(o, d.work);
            slot.created = check.created();
            slot.keeps_on_link_failure = header.opcode == VGPU_CMD_LINK_PROGRAM;
            continue;
        }
        cut(stream, decoder.offset(), header.bytes);
        refused_.push_back(static_cast<std::uint32_t>(place));
        if (refused_.size() > max_refused_per_request && !of_log) {
            return refuse_all(VGPU_STATUS_LIMIT, decoder.offset(),
                              "too many commands of one request failed by quotas or errors");
        }
        if (slot.is_call) {
            slot.result_overridden = true;
            slot.result = v.error;
        } else if (v.error != codec::cl_success) {
            refusals_.push_back({enqueue->queue, enqueue->event, v.error, header.opcode});
        }
    }
    if (completions != r.completion_count) {
        return refuse_all(VGPU_STATUS_MALFORMED, not_in_stream,
                          "completion_count is not the number of events in the stream");
    }
    table_.commit();
    for (const refusal& x : refusals_)
        if (x.event != 0)
            push_completion(x.event, x.error);
        else
            push_queue_error(x.queue, x.error, x.opcode);

    std::span<const std::byte> forwarded = stream;
    if (copied_to_ == 0) {
        d.repeats = repeats_.runs();
    } else { // and nobody knows where they are in what is left
        cut(stream, r.stream_bytes, 0);
        forwarded = std::as_bytes(std::span(cut_stream_));
    }
    if (forwarded.empty()) {
        d.response.result = slot.result;
        return d;
    }
    std::uint32_t number = 0;
    if (free_slots_.empty()) {
        number = static_cast<std::uint32_t>(requests_.size());
        requests_.emplace_back();
    } else {
        number = free_slots_.back();
        free_slots_.pop_back();
    }
    slot.generation = (requests_[number].generation + 1) & max_generation;
    slot.tracks_writes = !of_log;
    slot.writes = std::move(requests_[number].writes); // its memory is used again
    slot.writes.begin(of_log ? std::span<const kagemusha_payload>() : std::span(r.payloads, r.payload_count),
                      std::span(r.segments, r.segment_count));
    usage_.written_ranges += slot.writes.range_count();
    if (!of_log)
        slot.refused = refused_;
    requests_[number] = std::move(slot);
    ++requests_in_flight_;
    log_requests_in_flight_ += of_log;
    ++usage_.requests_in_flight;
    d.what = submit_decision::action::forward;
    d.request.token = std::uint64_t{requests_[number].generation} << 32 | number;
    d.request.stream = forwarded;
    d.request.payloads = std::span(r.payloads, r.payload_count);
    d.request.segments = std::span(r.segments, r.segment_count);
    d.awaited = awaited_;
    awaited_told_ = true;
    return d;
}

void session_fsm::note_log_range(std::uint64_t token, const log_range& range) {
    if (request_slot* slot = in_flight(token))
        slot->entries = range;
}

session_fsm::request_slot* session_fsm::in_flight(std::uint64_t token) {
    const auto number = static_cast<std::uint32_t>(token);
    return number < requests_.size() && requests_[number].used && requests_[number].generation == token >> 32
               ? &requests_[number]
               : nullptr;
}

void session_fsm::checkpoint(file_checkpoint& out) const {
    out.file = file_;
    out.lost = lost_;
    for (const request_slot& slot : requests_)
        if (slot.used)
            out.requests.push_back({slot.token, slot.entries, {slot.writes.written(), slot.refused}});
    std::unordered_map<std::uint64_t, guest_id> contexts; // by serial
    table_.for_each([&](guest_id id, const object& o) {
        if (o.kind == VGPU_OBJECT_CONTEXT && !o.destroyed)
            contexts[o.serial] = id;
    });
    table_.for_each([&](guest_id id, const object& o) {
        if (o.kind != VGPU_OBJECT_EVENT || (id & VGPU_HOST_ID_BIT) != 0)
            return; // the host's own: no guest waits for it
        if (o.event == event_state::pending) {
            out.unreported.push_back(id);
        } else if (o.event == event_state::refused) {
            const auto context = contexts.find(o.context);
            out.refused.push_back({id, context == contexts.end() ? 0 : context->second, o.status});
        }
    });
    records_.for_each([&](std::span<const std::byte> record) {
        if (reinterpret_cast<const vgpu_record*>(record.data())->type == VGPU_RECORD_COMPLETION) {
            const guest_id id = reinterpret_cast<const vgpu_record_completion*>(record.data())->event;
            if ((id & VGPU_HOST_ID_BIT) == 0)
                out.unreported.push_back(id);
            return;
        }
        const std::size_t at = out.records.size();
        out.records.insert(out.records.end(), record.begin(), record.end());
        if (reinterpret_cast<const vgpu_record*>(record.data())->type == VGPU_RECORD_TEXT_DROPPED) {
            reinterpret_cast<vgpu_record_text_dropped*>(out.records.data() + at)->dropped_bytes =
                dropped_text_bytes_;
        }
    });
}

void session_fsm::add_refused(const file_checkpoint::refused_event& event) {
    if (lost_ || table_.taken(event.id))
        return;
    const object* context = table_.find(event.context, VGPU_OBJECT_CONTEXT);
    object o;
    o.kind = VGPU_OBJECT_EVENT;
    o.event = event_state::refused;
    o.status = event.status;
    o.context = context ? context->serial : 0;
    table_.begin();
    table_.insert(event.id, o);
    table_.commit();
}

void session_fsm::free_slot(std::uint32_t slot) {
    requests_[slot].used = false;
    usage_.written_ranges -= requests_[slot].writes.range_count();
    free_slots_.push_back(slot);
    --requests_in_flight_;
    log_requests_in_flight_ -= requests_[slot].of_log;
    --usage_.requests_in_flight;
}

done_decision session_fsm::on_done(std::uint64_t token, const vgpu_response& response) {
    assert(!lost_);
    done_decision d;
    const auto violation = [&d](const char* rule) {
        d.violation = true;
        d.broken_rule = rule;
        return d;
    };
    if (!in_flight(token))
        return violation("it answered a request that it was not given, or one twice");
    const auto number = static_cast<std::uint32_t>(token);
    if (response.status != VGPU_STATUS_OK && response.status != VGPU_STATUS_MALFORMED &&
        response.status != VGPU_STATUS_NO_MEMORY) {
        return violation("it answered with a status that is not its to give");
    }
    if (response.pad != 0 || response.value != 0 || response.result > 0 ||
        response.result_bytes > VGPU_MAX_RESULT_BYTES) {
        return violation("an answer is out of bounds");
    }
    const request_slot& slot = requests_[number];
    d.token = slot.token;
    d.entries = slot.entries;
    d.response.status = response.status;
    if (response.status == VGPU_STATUS_MALFORMED) {
        // The device found nothing wrong, so the two ends disagree: the offset would be that of the worker's
        // view.
        d.response.failed_offset = not_in_stream;
        d.broken_rule = "the worker refused a request that was found valid";
    }
    if (slot.is_call) {
        d.response.result = slot.result_overridden ? slot.result : response.result;
        d.response.result_bytes = slot.result_overridden ? 0 : response.result_bytes;
    }
    const bool kept = response.status == VGPU_STATUS_OK &&
                      (response.result == codec::cl_success ||
                       (slot.keeps_on_link_failure && response.result == codec::cl_link_program_failure));
    if (slot.created.serial != 0 && !kept)
        table_.take_back(slot.created.id, slot.created.serial);
    written_.clear();
    slot.writes.append_rest(written_);
    d.written = written_;
    last_done_ = number;
    free_slot(number);
    return d;
}

request_progress session_fsm::last_progress() const {
    const request_slot& slot = requests_[last_done_];
    return {slot.writes.all(), slot.refused};
}

written_decision session_fsm::on_written(std::uint64_t token, std::uint32_t payload) {
    assert(!lost_);
    request_slot* const slot = in_flight(token);
    if (!slot)
        return {"it wrote a payload of a request that it was not given, or answered before", {}};
    if (!slot->tracks_writes)
        return {};
    const auto ranges = slot->writes.written(payload);
    if (!ranges)
        return {"it wrote a payload that it was not to write, or one twice", {}};
    return {nullptr, *ranges};
}

std::span<const kagemusha_segment> session_fsm::rest_of_writes() {
    written_.clear();
    for (const request_slot& slot : requests_)
        if (slot.used)
            slot.writes.append_rest(written_);
    return written_;
}

} // namespace kagemusha::core
