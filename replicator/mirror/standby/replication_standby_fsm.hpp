// SPDX-License-Identifier: GPL-2.0-or-later
// replication_standby_fsm: the standby's end, decided in pure code: what it believes of a primary, what it
// holds, when an entry may run. It knows entries by their metadata; the bytes are with the thin layer under
// the same numbers.
//
//   listening ──on_connected──▶ greeting ──hello agrees──▶ following ──synced executed──▶ ready
//       ▲                                                     │                             │
//       └──────────── link closed, refused, protocol error ───┴─────────────────────────────┘
//
// Transitions; all others are a programmer's error (one function makes them, and emits act_standby_state):
//
//   from                    to          when
//   listening               greeting    on_connected()
//   greeting                following   its hello fits and the last copy is forgotten (act_forget_all and
//                                       on_forgotten()): only now the primary gets a hello
//   following               ready       synced() came and everything up to it was executed
//   greeting … ready        listening   link closed, silence, refused, goodbye, a rule broken
//   listening … ready       taken_over  takeover() with a complete copy
//                           ended       takeover() without one, and why
//   any but ended           ended       on_shutdown()
//   any                     itself      another reason: a fault is told with the state it happened in;
//                                       nothing runs any more
//
// An entry runs when
//   - its epoch is committed (commit(): at once when a marker arrives, or when the VM's checkpoint was
//   applied),
//   - all of its content is there, its outcome is known where it needs one (a failed call is skipped), and
//   - every earlier entry of its file was given to the device (act_run) or skipped. It need not have ended: a
//     write may wait for a user event that a later entry sets. Files do not wait for each other; reset waits
//     until all earlier ones were given, and all later ones until it has ended.
// Losing the link keeps what is held (a takeover needs it) until takeover() or the next connection.
//
// Ordering contract
//   1. act_run of one file come in log order, at most running_per_file of them without their on_executed(),
//      which may come in another order. on_executed() comes once for each act_run, also for those whose file
//      a later close_file, lose_session or reset ended; after act_forget_all for none before it.
//   2. Nothing beyond the last committed marker runs. Nothing runs twice.
//   3. An ack never says more than what was told by on_entries/on_content/on_executed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "mirror/log/limits.hpp"
#include "mirror/protocol/link_actions.hpp"

namespace kagemusha::mirror {

// A request of the guest's that has no answer at a checkpoint. What the log has of it are the entries after
// `after` and up to `last` (none, if the two are equal: a query).
struct open_request {
    std::uint64_t token = 0; // the primary's name for it
    std::uint32_t file = 0;
    log_sequence after = 0, last = 0;
    friend bool operator==(const open_request&, const open_request&) = default;
};

struct standby_config {
    std::string vm;
    std::string gpu;
    std::uint64_t instance = 0;
    std::uint64_t hold_bytes = default_hold_bytes;
    std::uint64_t hold_entries = default_hold_entries;
    std::uint32_t heartbeat_ms = default_heartbeat_ms;
    std::uint32_t heartbeat_budget_ms = default_heartbeat_budget_ms;
    // true: a marker commits its epoch as soon as everything up to it was received, unless it says that a
    // checkpoint does. false: only commit() does.
    bool commit_at_marker = true;
    // act_run beyond on_executed(), per file; the device must accept as many requests.
    std::uint32_t running_per_file = default_running_per_file;
    bool compression = false;
    std::vector<std::string> gpu_capabilities = {}; // agreement.hpp
    std::string built_capability = {};              // the whole of it; empty: none
    guest_limits limits;                            // no log of a guest that may have more is followed
};

enum class standby_state : std::uint8_t { listening, greeting, following, ready, taken_over, ended };

struct act_run {
    log_sequence sequence;
}; // device: execute; on_executed() follows
struct act_skip {
    log_sequence sequence;
}; // free its bytes, do not run it
// After a takeover: execute the guest's request with this token in place of the entries that it left in the
// log, which are held until then (content that the guest may have changed since comes from them). Nothing
// follows.
struct act_resume {
    open_request request;
    std::vector<log_sequence> entries = {}; // those of its file, ascending
};
// After a takeover: everything was given, new requests of the guest may follow.
struct act_live {};
// A new primary run begins: end every file, free everything held; on_forgotten() follows.
struct act_forget_all {};
// Give the bytes of the last message to the compiler of this file; on_built_stored() follows.
struct act_store_built {
    built what;
};
struct act_standby_state {
    standby_state state;
    std::string why;
};

using standby_action = std::variant<act_send, act_close_link, act_run, act_skip, act_resume, act_live,
                                    act_forget_all, act_store_built, act_standby_state>;

struct standby_status {
    standby_state state = standby_state::listening;
    std::string why;   // of the last change, for people
    std::string fault; // not empty: what is here is no copy any more, and why
    // Closed by a marker; everything up to its marker is here (it may be committed); committed.
    std::uint64_t epoch = 0, complete_epoch = 0, committed_epoch = 0;
    std::uint64_t complete_checkpoint = 0, committed_checkpoint = 0; // of epochs that checkpoints commit
    std::uint64_t primary_instance = 0;                              // whose log this is
    log_sequence received = 0, executed = 0, committed = 0;
    std::uint64_t held_bytes = 0, held_entries = 0;
    std::uint64_t received_bytes = 0;
    std::uint64_t digests_compared = 0, digests_different = 0;
    std::uint64_t faults = 0;
    std::uint64_t built_stored = 0, built_bytes = 0, built_dropped = 0; // packs, their bytes; packs
    std::string primary_gpu;
    bool compression = false;      // both ends know how to
    std::uint64_t bookkeeping = 0; // records in memory, used or not: bounded by what may be held
};

class replication_standby_fsm {
public:
    replication_standby_fsm(const standby_config& config, std::uint64_t now_ms);
    ~replication_standby_fsm();

    // From the link. A message's bytes (streams, content) have arrived with it.
    void
    on_connected(std::uint64_t now_ms); // a second connection while one lives is the thin layer's to refuse
    void on_message(const message& m, std::uint64_t now_ms);
    void on_closed(const std::string& why, std::uint64_t now_ms);

    // From the device. `result`: of the entry's call, 0 if it has none.
    void on_executed(log_sequence entry, std::int32_t result, std::uint64_t now_ms);
    void on_digests(log_sequence entry, std::vector<std::uint64_t> hashes, std::uint64_t now_ms);
    void on_file_lost(std::uint32_t file, const std::string& why, std::uint64_t now_ms);

    // A worker has it, or nobody wanted it.
    void on_built_stored(std::uint64_t bytes);

    // After act_forget_all: the memory is free again. Only then the primary gets a hello. What the device
    // says until then is of what was forgotten, and ignored.
    void on_forgotten(std::uint64_t now_ms);

    // The VM's checkpoint of this epoch was applied. Not beyond status().complete_epoch. `open`: the guest's
    // requests without an answer in that state, in the order in which they were made. They, and what comes
    // after the first of them in its file, do not run before a later checkpoint says that they were answered:
    // at a takeover they have to be executed for a guest that still waits for them.
    void commit(std::uint64_t epoch, std::uint64_t now_ms, std::span<const open_request> open = {});
    // Whether a copy that belongs to a VM's checkpoint is kept when a primary comes with another one: a
    // takeover may need it, because whoever decides about takeovers does not know yet that the connection
    // was cut. The primary is refused; who looks after the VM begins this standby anew. Without: the copy is
    // forgotten, a new one is made, and no takeover succeeds until a checkpoint follows.
    void keep_copy(bool on);
    // The primary is dead: drop what lies beyond the last commit, run the rest, wait for nothing from the
    // link. Done when held_entries is 0. Without a complete copy the state is `ended`, and why.
    // checkpoint: what the VM's state is of, and the copy must be, too; 0: there is no VM.
    void takeover(std::uint64_t now_ms, std::uint64_t checkpoint = 0);

    void on_tick(std::uint64_t now_ms);
    std::uint64_t next_tick_ms() const;
    void on_shutdown(std::uint64_t now_ms);

    bool next(standby_action& out);
    standby_status status(std::uint64_t now_ms) const;
    log_sequence received() const; // status().received, cheaper

private:
    struct impl;
    std::unique_ptr<impl> impl_;
};

} // namespace kagemusha::mirror
