// SPDX-License-Identifier: GPL-2.0-or-later
// primary_log: what of the log a standby has, may have and has done, and so what is sent next. Part of
// replication_primary_fsm, which knows the link, the device and the state; this knows sequences, room and
// epochs.
//
//   dropped <= received (acked)           freed: bytes and entries that the standby has room for again
//   executed <= committed <= received <= sent <= appended
//   sent - freed <= what the standby holds
//
// How far the standby's GPU is behind. Acknowledgements do not tell: a launch counts as executed when the
// GPU's queue has it. Comparisons (digests) do: one stands at one point of the order and behind everything
// before it on both GPUs, so while this side has its result and the standby's answer has not come, the
// standby's GPU has not done what this one had done then.
//
//   behind   = now - the time of the oldest result here that is not answered; 0 without one
//   too far  from max_behind_ms on, until it is less than half of that: the guest's requests wait
//
// So a takeover finds at most about max_behind_ms and the interval of comparisons to catch up with. What
// comes before that costs the guest nothing, and what is waited for never needs the guest: this side's GPU
// had it, so everything that it depends on is in the log, and checkpoints go on. Without comparisons (digest
// interval 0, a file with an unset user event, nothing written) nobody knows, and only the log's size is a
// bound. A long read of the guest's counts against it: what is behind it in its file does not run on the
// standby before it is answered (in-flight requests).
//
// Cost: an entry is looked at when it is appended, when it is sent and when it is dropped; sums over the log
// give the rest, whatever lies in it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "mirror/log/sequence_ring.hpp"
#include "mirror/primary/primary_followups.hpp"
#include "mirror/primary/replication_primary_fsm.hpp"
#include "mirror/primary/unexecuted.hpp"
#include "mirror/protocol/action_queue.hpp"

namespace kagemusha::mirror {

class primary_log {
public:
    // Both outlive this.
    primary_log(const primary_config& config, action_queue<primary_action>& actions)
        : config_(config), actions_(actions), followups_(actions), checkpoints_(config.epoch_ms == 0) {}

    // A run of the mirror, towards a standby that holds so much.
    void begin(const hello& standby);
    void end(); // gives everything up; says that the guest may go on
    void note_stale(log_sequence s) { last_ever_ = std::max(last_ever_, s); }

    // From the device. A sentence: why the mirror can't go on.
    std::string on_entry(const entry_meta& meta, std::uint64_t now);
    void on_outcome(log_sequence entry, bool canceled, std::int32_t result, std::uint64_t now);
    void on_late_content(log_sequence entry, std::uint32_t payload, std::uint64_t bytes, std::uint64_t now);
    void on_digests(log_sequence entry, std::vector<std::uint64_t> hashes, std::uint64_t now);
    void on_synced(log_sequence last);

    // From the standby. A sentence: which rule it broke.
    std::string on_ack(const ack& a);
    std::string on_digest_result(const digest_result& r, std::uint64_t now);
    void on_standby_full(std::uint64_t now);

    void on_link_queue(std::uint64_t bytes) { link_queued_ = bytes; }
    // Whether there is room for a pack of the compiler's; true: it is sent.
    bool may_send_built(std::uint64_t bytes);
    // Hands to the link what it and the standby have room for. A sentence: why the mirror can't go on.
    std::string pump(std::uint64_t now);
    std::string on_tick(std::uint64_t now);
    std::uint64_t next_tick() const;
    std::uint64_t close_epoch(std::uint64_t now);
    // Whether checkpoints close epochs, or time does.
    void use_checkpoints(bool on);
    bool checkpoints() const { return checkpoints_; }

    // The state transfer has arrived and was executed.
    bool copied() const {
        return run_.synced_mark != 0 && run_.acked.committed_epoch >= run_.synced_mark &&
               run_.acked.executed >= run_.synced_at;
    }
    log_sequence appended() const { return run_.appended; }
    // The standby has executed all up to this entry, and all that it could have for longer than max_behind_ms;
    // or what it has to do next awaits something of this side.
    bool keeps_up(log_sequence up_to, std::uint64_t now) const;
    std::uint64_t unexecuted_ms(std::uint64_t now) const;
    void fill(primary_status& s, std::uint64_t now) const;

private:
    // One entry of the log; sums over this run of the mirror up to it, itself included.
    struct logged {
        std::uint64_t hold = 0; // what standbys hold for it
        std::uint64_t log = 0;  // what this side holds for it, without late content
    };
    struct closed_epoch {
        std::uint64_t epoch;
        log_sequence sequence;
        std::uint64_t hold; // sum up to it
        bool checkpoint;
    };

    std::uint64_t sent_count() const { return run_.sent == 0 ? 0 : run_.sent - run_.first + 1; }
    std::uint64_t committed_count() const { return run_.first == 0 ? 0 : run_.committed - (run_.first - 1); }
    std::uint64_t log_bytes() const {
        return run_.appended_log - run_.dropped_log + followups_.waiting_bytes();
    }
    void drop(log_sequence up_to);
    void check_congestion();
    void check_behind(std::uint64_t now);
    bool standby_could_go_on() const; // what it has to do next awaits nothing of this side
    void note_through(log_sequence entry, std::uint64_t now);
    std::uint64_t behind(std::uint64_t now) const;
    bool held_up_by_standby() const;
    bool send_content();
    bool send_entries(std::uint64_t now);
    void send_synced();
    void send_mark(const closed_epoch& e);
    void close_at(log_sequence sequence, std::uint64_t hold);
    void want_epoch();
    std::string pressure(std::uint64_t now);

    static constexpr std::uint64_t never = UINT64_MAX;

    const primary_config& config_;
    action_queue<primary_action>& actions_;

    std::uint64_t hold_bytes_ = 0, hold_entries_ = 0; // of the standby
    std::uint64_t link_queued_ = 0; // bytes handed to the link that it did not send, as far as is known
    primary_followups followups_;

    log_sequence last_ever_ = 0; // of earlier runs
    bool content_turn_ = false;

    // This run of the mirror: as it is here while the device is off.
    struct run {
        log_sequence first = 0, appended = 0; // 0: nothing yet
        log_sequence sent = 0, dropped = 0;
        sequence_ring<logged> log; // dropped + 1 … appended
        std::uint64_t appended_hold = 0, sent_hold = 0;
        std::uint64_t appended_log = 0, sent_log = 0, dropped_log = 0;
        std::uint64_t stalled_since = never; // the standby has been full, and freed nothing
        ack acked;
        bool congested = false;
        bool too_far_behind = false; // the standby's GPU
        log_sequence synced_at = 0;  // 0: not yet
        bool synced_sent = false;
        // The first epoch whose marker followed synced(): committed means that it arrived.
        std::uint64_t synced_mark = 0;
        std::deque<std::pair<log_sequence, std::uint64_t>> times; // first entry of a millisecond, which
        mirror::unexecuted unexecuted;
        std::uint64_t too_far_since = 0;
        bool lag_reported = false;

        std::deque<closed_epoch> unsent_marks; // checkpoints: closed at an entry that was not sent
        std::deque<closed_epoch> sent_marks;   // not committed
        log_sequence marked = 0;               // last entry that belongs to a closed epoch
        std::uint64_t marked_hold = 0;
        std::uint64_t sent_epoch = 0; // its marker was sent
        log_sequence committed = 0;
        std::uint64_t committed_hold = 0;
        std::uint64_t epoch_ends = never;
        bool epoch_wanted = false;
    };
    run run_;

    // ---- epochs, of all runs
    bool checkpoints_ = false;
    log_sequence checkpoints_from_ = 0; // what lies before it was committed by time, or will be
    std::uint64_t epoch_ = 0;           // closed last

    // ---- for people
    std::uint64_t built_sent_ = 0, built_bytes_ = 0, built_dropped_ = 0;
    std::uint64_t sent_bytes_ = 0, digests_compared_ = 0, digests_different_ = 0;
};

} // namespace kagemusha::mirror
