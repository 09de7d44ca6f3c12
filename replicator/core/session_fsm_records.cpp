// SPDX-License-Identifier: GPL-2.0-or-later
// The half of session_fsm that is about records: what a worker may say, and what waits for the guest's buffers.
#include <cassert>
#include <cstring>

#include "core/limits.hpp"
#include "core/session_fsm.hpp"

namespace kagemusha::core {

namespace {

// A record's body as its own type; nothing if the record has another size. `record` may be unaligned.
template <class Record>
bool read_record(std::span<const std::byte> record, Record& out) {
    if (record.size() != sizeof(Record))
        return false;
    std::memcpy(&out, record.data(), sizeof(Record));
    return true;
}

record_decision violation(const char* rule) {
    record_decision d;
    d.broken_rule = rule;
    return d;
}

} // namespace

template <class Record>
void session_fsm::push(Record record, std::uint32_t type, std::span<const std::byte> body) {
    std::byte buffer[VGPU_MAX_RECORD_BYTES];
    static_assert(sizeof(Record) <= sizeof(buffer));
    assert(sizeof(Record) + body.size() <= sizeof(buffer));
    record.record.type = type;
    record.record.bytes = static_cast<std::uint32_t>(sizeof(Record) + body.size());
    record.record.file = file_;
    record.record.pad = 0;
    std::memcpy(buffer, &record, sizeof(Record));
    if (!body.empty())
        std::memcpy(buffer + sizeof(Record), body.data(), body.size());
    records_.push(std::span(buffer, sizeof(Record) + body.size()));
}

record_decision session_fsm::on_record(std::span<const std::byte> bytes) {
    assert(!lost_);
    vgpu_record header;
    if (bytes.size() < sizeof(header) || bytes.size() > VGPU_MAX_RECORD_BYTES || bytes.size() % 8 != 0)
        return violation("a record is too short, too long or not a multiple of 8 bytes");
    std::memcpy(&header, bytes.data(), sizeof(header));
    if (header.bytes != bytes.size() || header.pad != 0)
        return violation("a record's length is not its own, or its pad is not 0");
    record_decision d;
    switch (header.type) {
    case VGPU_RECORD_COMPLETION: {
        vgpu_record_completion c;
        if (!read_record(bytes, c) || c.pad != 0 || c.status > 0)
            return violation("a completion is not one");
        if (!table_.complete_event(c.event, c.status))
            return violation("it completed an event that is not pending");
        push(c, VGPU_RECORD_COMPLETION);
        d.completed = c.status == 0;
        d.failed = c.status != 0;
        return d;
    }
    case VGPU_RECORD_QUEUE_ERROR: {
        vgpu_record_queue_error e;
        if (!read_record(bytes, e) || e.error >= 0 || e.opcode < VGPU_FIRST_ENQUEUE ||
            e.opcode >= VGPU_OPCODE_COUNT) {
            return violation("an error of a queue is not one");
        }
        // The guest may have destroyed the queue meanwhile; then there is nobody to tell.
        if (table_.find(e.queue, VGPU_OBJECT_QUEUE))
            push_queue_error(e.queue, e.error, e.opcode);
        d.failed = true;
        return d;
    }
    case VGPU_RECORD_TEXT:
        push_text(bytes, d);
        return d;
    case VGPU_RECORD_TEXT_DROPPED: {
        vgpu_record_text_dropped t;
        if (!read_record(bytes, t))
            return violation("a count of dropped text is not one");
        push_text_dropped(t.dropped_bytes);
        d.dropped_text_bytes = t.dropped_bytes;
        return d;
    }
    default:
        return violation("a record has a type that a worker must not send");
    }
}

void session_fsm::push_completion(guest_id event, std::int32_t status) {
    vgpu_record_completion c{};
    c.event = event;
    c.status = status;
    push(c, VGPU_RECORD_COMPLETION);
}

void session_fsm::push_queue_error(guest_id queue, std::int32_t error, std::uint32_t opcode) {
    // A queue whose last error the guest has not fetched has failed already for the guest. The bound is only
    // reached by making and destroying queues without fetching.
    if (table_.error_undelivered(queue) || queue_errors_queued_ >= max_queue_errors_per_file)
        return;
    table_.set_error_undelivered(queue, true);
    ++queue_errors_queued_;
    vgpu_record_queue_error e{};
    e.queue = queue;
    e.error = error;
    e.opcode = opcode;
    push(e, VGPU_RECORD_QUEUE_ERROR);
}

void session_fsm::push_text(std::span<const std::byte> bytes, record_decision& d) {
    vgpu_record_text t;
    if (bytes.size() < sizeof(t)) {
        d.broken_rule = "a text is shorter than its structure";
        return;
    }
    std::memcpy(&t, bytes.data(), sizeof(t));
    const std::span<const std::byte> body = bytes.subspan(sizeof(t));
    if (t.pad != 0 || t.text_bytes == 0 || t.text_bytes > body.size() || body.size() - t.text_bytes >= 8) {
        d.broken_rule = "a text's length is not that of its record";
        return;
    }
    for (const std::byte b : body.subspan(t.text_bytes)) {
        if (b != std::byte{0}) {
            d.broken_rule = "a text is not padded with 0";
            return;
        }
    }
    if (text_queued_bytes_ + bytes.size() > max_text_queue_bytes) {
        push_text_dropped(t.text_bytes);
        d.dropped_text_bytes = t.text_bytes;
        return;
    }
    text_queued_bytes_ += bytes.size();
    d.text_bytes = t.text_bytes;
    push(t, VGPU_RECORD_TEXT, body);
}

// One record counts everything that was dropped since the guest took the last one.
void session_fsm::push_text_dropped(std::uint64_t bytes) {
    dropped_text_bytes_ = bytes > UINT64_MAX - dropped_text_bytes_ ? UINT64_MAX : dropped_text_bytes_ + bytes;
    if (!text_dropped_queued_) {
        text_dropped_queued_ = true;
        push(vgpu_record_text_dropped{}, VGPU_RECORD_TEXT_DROPPED);
    }
}

std::span<const std::byte> session_fsm::front_record() {
    const std::span<std::byte> bytes = records_.front();
    if (reinterpret_cast<const vgpu_record*>(bytes.data())->type == VGPU_RECORD_TEXT_DROPPED)
        reinterpret_cast<vgpu_record_text_dropped*>(bytes.data())->dropped_bytes = dropped_text_bytes_;
    return bytes;
}

void session_fsm::on_record_taken() {
    const std::span<const std::byte> bytes = records_.front();
    switch (reinterpret_cast<const vgpu_record*>(bytes.data())->type) {
    case VGPU_RECORD_COMPLETION:
        --events_.in_flight;
        break;
    case VGPU_RECORD_QUEUE_ERROR:
        --queue_errors_queued_;
        table_.set_error_undelivered(reinterpret_cast<const vgpu_record_queue_error*>(bytes.data())->queue,
                                     false);
        break;
    case VGPU_RECORD_TEXT:
        text_queued_bytes_ -= bytes.size();
        break;
    case VGPU_RECORD_TEXT_DROPPED:
        text_dropped_queued_ = false;
        dropped_text_bytes_ = 0;
        break;
    default:
        break;
    }
    records_.pop();
}

void session_fsm::on_lost(vgpu_lost_reason reason, std::uint32_t detail) {
    if (lost_)
        return;
    lost_ = true;
    table_.clear();
    vgpu_record_lost lost{};
    lost.reason = reason;
    lost.detail = detail;
    push(lost, VGPU_RECORD_LOST);
}

} // namespace kagemusha::core
