// SPDX-License-Identifier: GPL-2.0-or-later
// replication_primary_fsm: the primary's end of the link to a standby, decided in pure code. Events go in,
// actions come out through next(); time is an argument. It knows entries by their metadata; the bytes are in
// the log that the thin layer keeps (pair/op_log), under the same numbers.
//
//   disconnected ──on_connected──▶ greeting ──hello agrees──▶ syncing ──synced, executed──▶ protecting
//        ▲   │ after a delay: action connect    │                │                             │
//        └───┴── link closed, silence, goodbye, fault, refused ──┴─────────────────────────────┘
//
// While disconnected nothing is logged: the device's side is off and the status says degraded with the
// reason.
//
// Transitions; all others are a programmer's error (one function makes them, and emits act_state):
//
//   from          to            when
//   disconnected  greeting      on_connected: hello is sent
//                 disconnected  another reason: the next attempt failed
//   greeting      syncing       its hello fits: act_start_sync
//   syncing       protecting    the first epoch behind synced() is committed and all up to it executed, and
//                               the standby's GPU keeps up (primary_log::keeps_up), or has not for
//                               keep_up_wait_ms: a VM that goes on a bit later is better than one that does not
//                 syncing       it does not yet
//   any of these  disconnected  link closed, silence, no hello, refused by either, goodbye, fault,
//                               a rule broken, on_mirror_failed(), a request or an epoch that can't fit,
//                               a standby that is full and frees nothing for stall_budget_ms
//   any but ended ended         on_shutdown()
//
// The device goes off → on (act_start_sync) → stopping (act_stop_mirror) → off (on_mirror_stopped()) beside
// that; a connection is tried only while it is off. A run of the mirror lasts from one to the other: its log
// begins with a reset, its numbers go on where the last run ended.
//
// What is inside: primary_log (what was sent, acknowledged, may be sent; epochs), primary_followups (what is
// told of an entry after the entry itself).
//
// Ordering contract (what the thin layer must keep)
//   1. Actions are carried out in the order of next().
//   2. drop_log(up_to) is the only licence to free entries.
//   3. An entry is sent before its outcome, its content and any marker that covers it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "mirror/log/limits.hpp"
#include "mirror/protocol/link_actions.hpp"

namespace kagemusha::mirror {

struct primary_config {
    std::string vm;
    std::string gpu;
    std::uint64_t instance = 0;
    std::uint64_t log_bytes = default_log_bytes;
    std::uint64_t log_entries = default_log_entries;
    std::uint32_t epoch_ms = default_epoch_ms; // 0: epochs are closed by close_epoch() only, from the start
    std::uint32_t heartbeat_ms = default_heartbeat_ms;
    std::uint32_t heartbeat_budget_ms = default_heartbeat_budget_ms;
    std::uint32_t stall_budget_ms = default_stall_budget_ms; // full, and frees nothing
    std::uint32_t max_behind_ms = default_max_behind_ms;     // primary_log.hpp; 0: no bound
    std::uint32_t keep_up_wait_ms = default_keep_up_wait_ms;
    bool compression = false;
    std::vector<std::string> gpu_capabilities = {}; // agreement.hpp
    std::string built_capability = {};              // the whole of it; empty: none
    guest_limits limits;
    std::uint64_t window_bytes = link_window_bytes; // handed to the link and not sent
};

enum class primary_state : std::uint8_t { disconnected, greeting, syncing, protecting, ended };

// ---- actions (act_send, act_close_link: mirror/protocol/link_actions.hpp)

struct act_connect {}; // open the link; on_connected or on_closed follows
struct act_send_entries {
    log_sequence first, last;
}; // out of the log, in one message or several
struct act_send_content {
    content what;
}; // bytes out of the log's late content
struct act_drop_log {
    log_sequence up_to;
}; // streams and content that is not late; UINT64_MAX: everything, late content too
struct act_drop_content {
    log_sequence sequence;
}; // its late pieces that were not sent are not wanted any more
struct act_start_sync {
    bool built = false; // the standby has use for what the compiler makes
}; // device: begin a state transfer; entries follow, numbered on
struct act_stop_mirror {};  // device: off; on_mirror_stopped() follows
struct act_epoch_wanted {}; // only with checkpoints: close_epoch() soon, or the guest will be held back
struct act_congestion {
    bool on;
}; // device: take no requests / take them again
struct act_digest_result {
    digest_result what;
}; // device: give it to the agents
// Of the oldest on_built() that has none yet: send it, or drop it.
struct act_built {
    built what;
    bool send;
};
// For people, about the standby's GPU. Protection begins, and it has still to execute what it could have for so
// long; the guest has waited for it for long; it waits no more, and has waited for so long.
enum class lag : std::uint8_t { at_protection, guest_waits, over };
struct act_lagging {
    lag what;
    std::uint64_t ms;
};
struct act_state {
    primary_state state;
    std::string degraded;
}; // for people; empty: protected or on its way

using primary_action =
    std::variant<act_connect, act_close_link, act_send, act_send_entries, act_send_content, act_drop_log,
                 act_drop_content, act_start_sync, act_stop_mirror, act_epoch_wanted, act_congestion,
                 act_digest_result, act_built, act_lagging, act_state>;

struct primary_status {
    primary_state state = primary_state::disconnected;
    std::string degraded;    // empty: not degraded
    std::uint64_t epoch = 0; // closed
    std::uint64_t committed_epoch = 0;
    // Checkpoints close epochs just now; only entries from this one on belong to theirs; the last epoch that
    // they closed and that the standby has all of.
    bool checkpoints = false;
    log_sequence checkpoints_from = 0;
    std::uint64_t complete_checkpoint = 0;
    log_sequence appended = 0, sent = 0, received = 0, executed = 0;
    std::uint64_t log_bytes = 0, log_entries = 0; // held now
    std::uint64_t lag_ms = 0;        // age of the oldest entry that was not acknowledged as received
    std::uint64_t behind_ms = 0;     // of the standby's GPU: primary_log.hpp
    std::uint64_t unexecuted_ms = 0; // for how long the standby could have executed what it has not
    std::uint64_t sent_bytes = 0;    // ever
    std::uint64_t digests_compared = 0, digests_different = 0; // chunks
    std::uint64_t connections = 0;
    std::string standby_gpu;
    std::uint64_t round_trip_ms = 0;
    bool compression = false;     // both ends know how to
    std::uint64_t late_bytes = 0; // of log_bytes: pieces of late content that were not sent
    std::uint64_t built_sent = 0, built_bytes = 0, built_dropped = 0; // packs, their bytes; packs
    std::uint64_t open_entries = 0; // whose outcome, late content or digests are missing
};

class replication_primary_fsm {
public:
    replication_primary_fsm(const primary_config& config, std::uint64_t now_ms);
    ~replication_primary_fsm();

    // From the device, in log order. What it had under way when act_stop_mirror was decided comes too, and is
    // ignored, until on_mirror_stopped() says that there is no more of it. Entries that come while no state
    // transfer was started are a programmer's error.
    void on_entry(const entry_meta& meta, std::uint64_t now_ms);
    void on_outcome(log_sequence entry, bool canceled, std::int32_t result);
    void on_late_content(log_sequence entry, std::uint32_t payload, std::uint64_t bytes); // next piece
    void on_digests(log_sequence entry, std::vector<std::uint64_t> hashes, std::uint64_t now_ms);
    void on_synced(log_sequence last);
    void on_built(std::uint32_t file, std::uint64_t bytes);
    void on_mirror_failed(const std::string& why, std::uint64_t now_ms); // act_stop_mirror follows even so
    void on_mirror_stopped(std::uint64_t now_ms);
    // Closes the epoch. Its number. With checkpoints at the last appended entry; else at the last one that
    // the standby has room for: later ones belong to the next epoch.
    std::uint64_t close_epoch(std::uint64_t now_ms);
    // From now on checkpoints of the VM close epochs (close_epoch(), and nobody else), or time does again.
    // While there is no complete copy time does all the same: a state transfer has nothing to lose. See
    // status().checkpoints.
    void use_checkpoints(bool on, std::uint64_t now_ms);

    // From the link.
    void on_connected(std::uint64_t now_ms);
    void on_message(const message& m, std::uint64_t now_ms);
    void on_closed(const std::string& why, std::uint64_t now_ms);
    void on_sent(std::uint64_t queued_bytes); // the link sent something; so much waits in it now

    void on_tick(std::uint64_t now_ms);
    std::uint64_t next_tick_ms() const; // absolute; when on_tick() is wanted at the latest

    void on_shutdown(std::uint64_t now_ms); // says goodbye

    // To be called until it says false after every event, or after several of on_entry() … on_digests() in a
    // row: entries are sent together.
    bool next(primary_action& out);
    primary_status status(std::uint64_t now_ms) const;

private:
    struct impl;
    std::unique_ptr<impl> impl_;
};

} // namespace kagemusha::mirror
