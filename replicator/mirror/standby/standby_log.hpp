// SPDX-License-Identifier: GPL-2.0-or-later
// standby_log: the entries that a standby holds and the order in which they may run. Part of
// replication_standby_fsm, which knows the link, the time and the epochs; this knows sequences.
//
//   arrived ──ready and in order──▶ given (act_run) ──on_executed──▶ ended: its bytes are free
//      └───────────canceled, or its call had failed──(act_skip)──────▲
//
// Cost: each entry is looked at once when it arrives, once when its epoch is committed, once when it is given
// and once when it has ended, whatever else is held.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "mirror/log/sequence_ring.hpp"
#include "mirror/protocol/action_queue.hpp"
#include "mirror/standby/replication_standby_fsm.hpp"

namespace kagemusha::mirror {

class standby_log {
public:
    standby_log(const standby_config& config, action_queue<standby_action>& actions);

    void clear();

    // What a primary says. Empty, or the rule that it broke.
    std::string on_entry(const entries::entry& e);
    std::string on_content(const content& c);
    std::string on_outcome(const outcome& o);

    // What the device says.
    struct ended {
        entry_meta meta; // kind, file, flags, sequence
        bool failed = false;
        bool failure_expected = false; // it failed on the primary too, or nobody can know
    };
    ended on_executed(log_sequence entry, std::int32_t result);

    // Everything up to here may run, except what comes in its file after the first request that the guest has
    // no answer to: that is known only by the next commit.
    void commit(log_sequence up_to, std::span<const open_request> open = {});
    // Skips what lies beyond the last commit; outcomes are not waited for any more. In place of the entries
    // of the in-flight requests of the last commit the requests themselves are wanted (act_resume).
    void take_over(log_sequence synced);
    // After take_over(): everything was given.
    bool all_given() const;
    // Gives nothing to the device any more.
    void stop() { stopped_ = true; }
    // Gives what may run.
    void advance();

    // The first entry whose late content is not complete; UINT64_MAX: none.
    log_sequence first_incomplete() const { return late_.empty() ? UINT64_MAX : late_.begin()->first; }
    bool waits(log_sequence s) { // neither given nor skipped
        const held* h = find(s);
        return h != nullptr && h->at == stage::arrived;
    }
    bool file_is_open(std::uint32_t file) const; // at the end of the log, and not lost
    bool file_lives(std::uint32_t file) const;   // the device has it: open_file was given and its end was not

    log_sequence received() const { return received_; }
    log_sequence committed() const { return committed_; }
    log_sequence executed() const; // the last one before the first that is held
    std::uint64_t held_bytes() const { return held_bytes_; }
    std::uint64_t held_entries() const { return held_entries_; }
    std::uint64_t freed_bytes() const { return freed_bytes_; }
    std::uint64_t freed_entries() const { return freed_entries_; }
    std::size_t memory_slots() const { return ring_.capacity() + stragglers_.size(); }

private:
    enum class stage : std::uint8_t { arrived, given, ended };
    struct held {
        std::uint64_t cost = 0;
        log_sequence next = 0; // of its file
        std::uint32_t file = 0;
        std::uint32_t flags = 0;
        entry_kind kind = entry_kind::submit;
        stage at = stage::ended;
        std::uint16_t payloads = 0;
        bool incomplete = false; // late content
        bool outcome_known = false, failed = false, canceled = false;
    };
    struct file_state {
        bool open = false, lost = false; // at the end of the log
        bool lives = false;              // on the device
        log_sequence head = 0, tail = 0; // arrived, not given
        log_sequence end_given = 0;      // the last close or loss that was given
        std::uint32_t running = 0;
        std::deque<open_request> open_requests; // of the last commit
        bool resumed = false;                   // after a takeover: one of them was
    };
    struct payload_state {
        std::uint64_t bytes, arrived;
        bool writable;
    };
    // What came of a payload before what is in front of it, which a lane of the link still brings: ranges that
    // do not touch, (payload, begin) to end.
    using early_ranges = std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t>;
    struct late_state {
        std::uint64_t missing = 0;
        std::vector<payload_state> payloads;
        early_ranges early;
    };
    // Entries between resets; a reset is the end of its part.
    struct part {
        log_sequence reset = 0; // 0: none yet
        std::uint64_t not_given = 0;
    };

    held* find(log_sequence s); // null: not held
    std::string check(const entries::entry& e) const;
    file_state& file(std::uint32_t number);
    void give_file(std::uint32_t number, file_state& f);
    void resume(file_state& f);
    void resume_rest();
    void set_head(file_state& f, log_sequence head);
    void give_reset();
    void give(log_sequence s, held& h);
    void end(log_sequence s, held& h);
    void pop_ended();
    bool arrive(late_state& late, payload_state& p, const content& c);
    void forget_late(log_sequence s);
    void offer(log_sequence s);
    log_sequence limit() const;
    bool ready(const held& h) const;
    void erase_if_gone(std::uint32_t number, const file_state& f);

    const standby_config& config_;
    action_queue<standby_action>& actions_;

    log_sequence first_ = 0, received_ = 0, committed_ = 0; // first_ 0: no entry yet
    log_sequence offered_ = 0;
    sequence_ring<held> ring_;
    // What a later entry had to wait for long, taken out of the ring so that it can go on.
    std::map<log_sequence, held> stragglers_;
    std::unordered_map<std::uint32_t, file_state> files_;
    std::uint32_t open_files_ = 0;
    std::uint32_t waiting_files_ = 0; // with a head
    std::map<log_sequence, late_state> late_;
    std::uint64_t late_payloads_ = 0, held_payloads_ = 0;
    std::size_t early_ranges_ = 0;
    std::deque<part> parts_;
    bool reset_given_ = false; // the one that ends the first part
    bool taken_over_ = false, stopped_ = false;
    log_sequence synced_ = 0; // after a takeover: the state transfer's last entry
    std::uint64_t held_bytes_ = 0, held_entries_ = 0, freed_bytes_ = 0, freed_entries_ = 0;
};

} // namespace kagemusha::mirror
