// SPDX-License-Identifier: GPL-2.0-or-later
// session_fsm: the life of one open file, decided in pure code. Events go in (a request of the guest, an answer
// or record of the worker, the worker's loss, records taken by the guest), decisions come out;
// core/device.cpp carries them out.
//
//   alive ──(worker lost, killed or could not be started)──▶ lost ──(CLOSE: the fsm is destroyed)
//
// Ordering contract
//   1. Nothing of a request is forwarded before all of it was checked.
//   2. Forwarded requests reach the port in the order of on_submit().
//   3. Each request gets one answer: from on_submit(), on_done() or end_all().
//   4. Records leave in the order in which they came; LOST is the last.
//   5. An event is in flight, and its completion has room, until the guest has taken its record.
//   6. The worker says that a payload is written before it says that a command which comes after that write
//      has ended. So when the guest gets a record or an answer, all memory that it tells of was in a
//      decision's `written` before.
#pragma once

#include <kagemusha/device.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/port.hpp"
#include "codec/decode.hpp"
#include "core/file_checkpoint.hpp"
#include "core/object_table.hpp"
#include "core/record_queue.hpp"
#include "core/repeated_launches.hpp"
#include "core/request_writes.hpp"
#include "core/validator.hpp"

namespace kagemusha::core {

struct file_limits {
    std::uint32_t max_requests = 0;
    std::uint32_t max_events = 0;
    std::uint32_t max_objects = 0;
    std::uint64_t max_memory_bytes = 0;
};

// What one request does, for statistics.
struct request_work {
    std::uint64_t commands = 0, launches = 0, calls = 0;
    std::uint64_t bytes_to_gpu = 0, bytes_from_gpu = 0;
    std::string_view unsupported; // a function that the guest reports; in the request
};

struct submit_decision {
    enum class action { answer, forward };
    action what = action::answer;
    vgpu_response response{};       // answer
    worker::request_view request{}; // forward: views of the request and of the fsm, valid until the next call
    std::span<const awaited_event> awaited; // forward: not before these events are no longer pending
    launch_runs repeats;                    // forward: in the stream of `request`; as long as that is
    request_work work{};
    const char* broken_rule = nullptr; // answer: why the request was refused; a static sentence
};

struct done_decision {
    bool violation = false; // the worker broke its protocol: kill it; nothing else is set
    const char* broken_rule = nullptr;
    std::uint64_t token = 0; // the guest's
    log_range entries;
    vgpu_response response{};
    // Guest memory that the worker wrote for the request and that written_decision did not tell; a view of
    // the fsm, valid until the next call.
    std::span<const kagemusha_segment> written;
};

struct written_decision {
    const char* broken_rule = nullptr;          // the worker broke its protocol: kill it
    std::span<const kagemusha_segment> written; // as in done_decision
};

struct record_decision {
    const char* broken_rule = nullptr;      // the worker broke its protocol: kill it
    bool completed = false, failed = false; // an event
    std::uint64_t text_bytes = 0, dropped_text_bytes = 0;
};

// Length of each region, by number; 0: no such region.
using region_sizes = std::span<const std::uint64_t>;

class session_fsm {
public:
    // `usage` outlives the fsm. All requests have ended when the fsm ends.
    // `of_log`: the limits of what comes by a primary's log.
    session_fsm(std::uint32_t file, const file_limits& limits, const file_limits& of_log, device_usage& usage,
                std::uint64_t hash_seed);
    session_fsm(std::uint32_t file, const file_limits& limits, device_usage& usage, std::uint64_t hash_seed)
        : session_fsm(file, limits, limits, usage, hash_seed) {}

    // `of_log`: on a standby, which executes what its primary's log says: ids with VGPU_HOST_ID_BIT and AWAIT
    // are allowed, because replication added them to the guest's commands, and the log has limits of its own.
    // What of it has not ended does not count against the guest's requests and events after a takeover: the
    // guest may have been told of its end.
    submit_decision on_submit(const kagemusha_request& request, region_sizes regions, bool of_log = false);
    // For tests: without what is known of launches that repeat others every decision is the same.
    void look_at_every_launch() { knows_repeats_ = false; }
    // The next request that is forwarded waits for those of these events that are pending.
    void await(std::span<const guest_id> events);
    // Where the forwarded request with this token is in the log.
    void note_log_range(std::uint64_t token, const log_range& range);
    done_decision on_done(std::uint64_t token, const vgpu_response& response);
    // Of the request that on_done() ended last: everything is over.
    request_progress last_progress() const;
    // The worker has written this payload of a request that it has not answered yet.
    written_decision on_written(std::uint64_t token, std::uint32_t payload);
    record_decision on_record(std::span<const std::byte> record);

    // What the worker may have written for requests in flight beyond what was told: when it has ended, before
    // end_all(). It stays unknown which of it is there.
    std::span<const kagemusha_segment> rest_of_writes();
    // The worker is gone. Then end_all(VGPU_STATUS_LOST).
    void on_lost(vgpu_lost_reason reason, std::uint32_t detail);
    bool lost() const { return lost_; }

    // Ends every forwarded request: f(token, response) for each.
    template <class F>
    void end_all(vgpu_status status, F&& f) {
        vgpu_response response{};
        response.status = status;
        for (std::uint32_t slot = 0; slot < requests_.size(); ++slot) {
            if (requests_[slot].used) {
                const std::uint64_t token = requests_[slot].token;
                free_slot(slot);
                f(token, response);
            }
        }
    }

    // Records for the guest.
    bool has_record() const { return !records_.empty(); }
    std::span<const std::byte> front_record();
    void on_record_taken();

    void checkpoint(file_checkpoint& out) const;
    // As it is elsewhere: a command was refused there, and its event is known to the guest.
    void add_refused(const file_checkpoint::refused_event& event);

    // Whether the worker has work that does not wait for the guest. A user event without a status may hold up
    // everything else, for as long as the guest likes, so a file that has one is never called hung.
    bool busy() const {
        return !lost_ && (requests_in_flight_ != 0 || table_.pending_events() != 0) &&
               table_.unset_user_events() == 0;
    }

    std::uint32_t requests_in_flight() const { return requests_in_flight_; }
    // Whether the worker may be reading or writing memory of the guest for one of them.
    bool in_guest_memory() const {
        return std::ranges::any_of(requests_,
                                   [](const request_slot& r) { return r.used && r.in_guest_memory; });
    }
    std::uint32_t guests_requests_in_flight() const { return requests_in_flight_ - log_requests_in_flight_; }
    const object_table& objects() const { return table_; }

private:
    struct request_slot {
        bool used = false;
        bool in_guest_memory = false; // names memory of the guest
        bool is_call = false;
        bool of_log = false;
        bool result_overridden = false;     // the call was refused here; the rest of the stream was forwarded
        bool keeps_on_link_failure = false; // a program whose link failed exists all the same, for its log
        std::uint32_t generation = 0;
        std::int32_t result = 0;
        std::uint64_t token = 0;
        log_range entries;
        created_object created;
        bool tracks_writes = false; // of the guest: for the log they go to memory of a standby's own
        request_writes writes;
        std::vector<std::uint32_t> refused; // request_progress::refused
    };
    struct refusal {
        guest_id queue, event;
        std::int32_t error;
        std::uint32_t opcode;
    };

    const char* check_tables(const kagemusha_request& request, region_sizes regions, bool of_log) const;
    request_slot* in_flight(std::uint64_t token);
    void cut(std::span<const std::byte> stream, std::uint32_t offset, std::uint32_t bytes);
    void push_completion(guest_id event, std::int32_t status);
    void push_queue_error(guest_id queue, std::int32_t error, std::uint32_t opcode);
    void push_text(std::span<const std::byte> record, record_decision& d);
    void push_text_dropped(std::uint64_t bytes);
    template <class Record>
    void push(Record record, std::uint32_t type, std::span<const std::byte> body = {});
    void free_slot(std::uint32_t slot);

    const std::uint32_t file_;
    const file_limits limits_, log_limits_;
    device_usage& usage_;
    object_table table_;
    event_credit events_;
    record_queue records_;
    std::size_t text_queued_bytes_ = 0;
    std::uint64_t dropped_text_bytes_ = 0; // since the guest took the last TEXT_DROPPED
    bool text_dropped_queued_ = false;
    std::uint32_t queue_errors_queued_ = 0;
    std::vector<request_slot> requests_;
    std::vector<std::uint32_t> free_slots_;
    std::uint32_t requests_in_flight_ = 0, log_requests_in_flight_ = 0; // the first has both
    bool lost_ = false;
    // Of the request in hand; members so that their memory is used again.
    std::vector<refusal> refusals_;
    std::vector<std::uint32_t> refused_; // by their place in the stream
    std::vector<kagemusha_segment> written_;
    std::uint32_t last_done_ = 0; // slot
    std::vector<std::uint64_t> cut_stream_;
    std::uint32_t copied_to_ =
        0; // the part of the stream before this offset is in cut_stream_ or was left out
    repeated_launches repeats_;
    bool knows_repeats_ = true;
    // Of the next forwarded request; of the last one while its decision is valid.
    std::vector<awaited_event> awaited_;
    bool awaited_told_ = false;
};

} // namespace kagemusha::core
