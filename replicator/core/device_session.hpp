// SPDX-License-Identifier: GPL-2.0-or-later
// device_file: an open file as the device has it, with its port and what waits around it. Internal to
// device.cpp and device_tap.cpp.
#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/device.hpp"

namespace kagemusha::core {

// Of the tokens that a port gets: a request that the tap injected. session_fsm uses the lower 63 bits.
inline constexpr std::uint64_t injected_bit = std::uint64_t{1} << 63;

// A record about something of the tap's, if it is one at all.
inline bool is_of_tap(std::span<const std::byte> record) {
    vgpu_record header;
    if (record.size() < sizeof(header))
        return false;
    std::memcpy(&header, record.data(), sizeof(header));
    if (header.type == VGPU_RECORD_COMPLETION && record.size() == sizeof(vgpu_record_completion)) {
        vgpu_record_completion c;
        std::memcpy(&c, record.data(), sizeof(c));
        return (c.event & VGPU_HOST_ID_BIT) != 0 && c.pad == 0 && c.status <= 0;
    }
    if (header.type == VGPU_RECORD_QUEUE_ERROR && record.size() == sizeof(vgpu_record_queue_error)) {
        vgpu_record_queue_error e;
        std::memcpy(&e, record.data(), sizeof(e));
        return (e.queue & VGPU_HOST_ID_BIT) != 0 && e.error < 0;
    }
    return false;
}

// A private copy of a request that the port had no room for, that waits for events (device::await_events), or
// that the tap holds (mirror_port::hold_requests).
struct device::waiting_request {
    std::uint64_t token;
    std::vector<awaited_event> awaited; // what is behind the last pending one has completed
    std::size_t awaited_count;
    std::vector<std::uint64_t> stream;
    std::vector<kagemusha_payload> payloads;
    std::vector<kagemusha_segment> segments;

    waiting_request(const worker::request_view& r, std::span<const awaited_event> events)
        : token(r.token)
        , awaited(events.begin(), events.end())
        , awaited_count(events.size())
        , stream(r.stream.size() / 8)
        , payloads(r.payloads.begin(), r.payloads.end())
        , segments(r.segments.begin(), r.segments.end()) {
        std::memcpy(stream.data(), r.stream.data(), r.stream.size());
    }
    std::size_t bytes() const {
        return awaited_count * sizeof(awaited_event) + stream.size() * 8 +
               payloads.size() * sizeof(payloads.front()) + segments.size() * sizeof(segments.front());
    }
    worker::request_view view() const {
        return {token, std::as_bytes(std::span(stream)), payloads, segments};
    }
};

struct device::file_entry final : worker::port_sink {
    file_entry(device& d, std::uint32_t n, std::uint64_t hash_seed)
        : owner(d)
        , number(n)
        , fsm(n, d.config_.file, d.limits_of_log().file, d.usage_, hash_seed)
        , watchdog(d.config_.hang_timeout_ms, d.config_.end_timeout_ms) {}

    device& owner;
    const std::uint32_t number;
    session_fsm fsm;
    std::unique_ptr<worker::port> port;            // from the first request on, until the file is lost
    bool start_waits = false;                      // the port's; its requests are in `waiting`
    std::uint64_t ending = 0;                      // a key of device::ending_: the port, killed and not gone
    std::vector<std::shared_ptr<const void>> kept; // device::keep_until_gone() while the port lives
    std::deque<waiting_request> waiting;
    std::size_t waiting_bytes = 0; // of these
    hang_watchdog watchdog;
    bool undelivered = false; // is in device::undelivered_
    bool draining = false;    // the port must not be given anything just now
    // Of the tap: its requests that were not answered; answers and records of the guest that it holds back.
    std::unordered_set<std::uint64_t> injected;
    struct held_answer {
        std::uint64_t token; // the guest's
        vgpu_response response;
        log_range entries;
        request_progress progress;
    };
    std::unordered_map<std::uint64_t, held_answer> held;
    bool records_held = false;
    bool requests_held = false; // by the tap: all of them are in `waiting`
    // The watchdog looks for signs of the guest's work only, see device::check_watchdogs().
    bool tap_was_active = false;
    std::uint64_t guest_progress = 0;
    std::uint64_t guest_ended = 0; // its requests that were answered and its events that completed
    std::uint64_t port_progress = 0;
    // What a drain found; carried out after it.
    const char* violation = nullptr;
    // A loss that the guest has not been told of: somebody may go on with the guest elsewhere
    // (set_loss_holder()), or the worker may still write what its requests name.
    struct unreported_loss {
        vgpu_lost_reason reason;
        std::uint32_t detail;
        std::string why;
        bool held; // until report_losses()
    };
    std::optional<unreported_loss> unreported;
    bool port_lost = false;
    vgpu_lost_reason lost_reason = VGPU_LOST_CRASHED;
    std::uint32_t lost_detail = 0;

    void on_done(std::uint64_t token, const vgpu_response& response) override {
        if (violation || port_lost)
            return;
        if ((token & injected_bit) != 0) {
            on_injected_done(token & ~injected_bit, response);
            return;
        }
        const done_decision d = fsm.on_done(token, response);
        if (d.violation) {
            violation = d.broken_rule;
            return;
        }
        ++guest_progress;
        ++guest_ended;
        if (d.broken_rule)
            owner.log_broken_rule(number, "worker", d.broken_rule, owner.now_ms_);
        owner.report_written(d.written);
        if (owner.tap_ && !owner.tap_->on_done(number, token, d.response)) {
            held.emplace(token, held_answer{d.token, d.response, d.entries, fsm.last_progress()});
            return;
        }
        owner.answer(d.token, d.response);
    }

    void on_written(std::uint64_t token, std::uint32_t payload) override {
        if (violation || port_lost)
            return;
        if ((token & injected_bit) != 0) { // into memory of the tap's
            if (!injected.contains(token & ~injected_bit))
                violation = "it wrote a payload of a request of the host that it was not given";
            return;
        }
        const written_decision d = fsm.on_written(token, payload);
        violation = d.broken_rule;
        owner.report_written(d.written);
    }

    void on_injected_done(std::uint64_t token, const vgpu_response& response) {
        if (injected.erase(token) == 0) {
            violation = "it answered a request of the host that it was not given, or one twice";
            return;
        }
        tap_was_active = true;
        owner.tap_->on_agent_done(number, token, response);
    }

    void on_record(std::span<const std::byte> record) override {
        if (violation || port_lost)
            return;
        if (owner.tap_ && is_of_tap(record) && !is_of_log(record)) {
            tap_was_active = true;
            owner.tap_->on_agent_record(number, record);
            return;
        }
        const record_decision d = fsm.on_record(record);
        if (d.broken_rule) {
            violation = d.broken_rule;
            return;
        }
        ++guest_progress;
        if (owner.tap_ && (d.completed || d.failed))
            hold_if_in_use(record);
        guest_ended += d.completed || d.failed;
        owner.events_completed_.add(d.completed);
        owner.events_failed_.add(d.failed);
        owner.text_bytes_.add(d.text_bytes);
        owner.text_dropped_bytes_.add(d.dropped_text_bytes);
        owner.deliver(*this);
    }

    // A device that took over still has commands of the dead primary's agent under way: they came by the log,
    // so their events are the file's, and what is submitted next may await them.
    bool is_of_log(std::span<const std::byte> record_of_tap) const {
        vgpu_record_completion c;
        if (record_of_tap.size() != sizeof(c))
            return false;
        std::memcpy(&c, record_of_tap.data(), sizeof(c));
        return c.record.type == VGPU_RECORD_COMPLETION && fsm.objects().pending_serial(c.event) != 0;
    }

    void hold_if_in_use(std::span<const std::byte> record) {
        vgpu_record_completion c;
        if (record.size() == sizeof(c)) {
            std::memcpy(&c, record.data(), sizeof(c));
            records_held |= c.record.type == VGPU_RECORD_COMPLETION && (c.event & VGPU_HOST_ID_BIT) == 0 &&
                            !owner.tap_->on_completion(number, c.event, c.status != 0);
        }
    }

    static std::string text_of(vgpu_lost_reason reason, std::uint32_t detail);

    void on_lost(vgpu_lost_reason reason, std::uint32_t detail) override {
        port_lost = true;
        lost_reason = reason;
        lost_detail = detail;
    }
};

// A worker that was killed and is not gone: the kernel is giving its memory back, or its GPU's driver does
// not let go of it.
struct device::ending_worker {
    std::unique_ptr<worker::port> port;
    std::uint32_t file; // whose it was, open or not
    std::uint64_t since_ms;
    std::vector<std::shared_ptr<const void>> memory; // what it may still touch, beside the guest's
    // It may still touch memory of requests that the guest has got back: only after a reset.
    bool in_guest_memory = false;
    bool warned = false;
    // The guest has closed the file: it and its requests are answered when the worker is gone.
    std::unique_ptr<file_entry> closed;
    std::uint64_t close_token = 0;
};

} // namespace kagemusha::core
