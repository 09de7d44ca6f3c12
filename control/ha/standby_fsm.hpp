// SPDX-License-Identifier: GPL-2.0-or-later
//
// standby_fsm: what the supervisor of a VM's standby decides: when the VM may start here. Pure, as
// primary_fsm.hpp.
//
//   starting ─▶ listening ─hello─▶ greeted ─PAIR─▶ proving ─record read─▶ synced ─silence─▶ claiming
//      ▲                                                                  │                │
//      │                                                      DIED: proof └─▶ taking_over ◀┘ granted
//   outdated: what it has is no copy any more                                    │ QEMU runs, granted
//                                                                                ▼
//                                                                      running: primary_fsm goes on
//
// Transitions; all others are a programmer's error:
//
//   from         to           when
//   starting     listening    QEMU waits for the VM
//   listening    greeted      a primary's hello and description fit, its disks continue what the images
//                             here have, and these are marked as a copy: READY
//   greeted      proving      PAIR: its state is here. The arbiter is asked for the record (`look`):
//                             who can't read it could not claim either
//   proving      synced       it was read, and is the primary's, and the images are marked `paired`, and
//                             without a shared record the primary lives: PAIRED, the VM may be taken over
//                             with that term
//   synced       claiming     nothing heard for the budget, whether the connection stands or not
//   claiming     synced       the primary is heard again, and the claim was not granted
//   synced, claiming
//                taking_over  DIED or HANDED_OVER with our term (proof), or the claim was granted
//   taking_over  running      QEMU runs the VM, the arbiter granted the claim, and the images are marked
//                             `newest`
//   listening, greeted, proving, synced, claiming
//                outdated     UNPAIRED; the arbiter says that the primary goes on alone or that the
//                             term is over; what is here is too old; our QEMU or GPU failed; before
//                             PAIRED also when the connection ended: act_restart_qemu
//   taking_over  outdated     of a switchover: it does not run here (TAKEOVER_FAILED), or was taken
//                             back
//   outdated     starting     act_restart_qemu was carried out
//   any          ended        stopped; the takeover failed
//
// The promise. A heartbeat is answered only while nothing is claimed, and nothing is claimed before
// heartbeat_budget_ms after the last one that came. The primary relies on it (primary_fsm.hpp, the gate).
//
// A primary that lives. PAIR may be read long after it was said: this supervisor stood still, or the
// connection did, and the primary died, and a person started the VM anew. A shared record refuses the claim
// that follows. Without one PAIRED waits for a heartbeat of the primary that answers one of ours, said when
// nothing else was missing and less than the budget ago. And after standing still DIED is no proof, and what
// is read is no sign of life as far as the arbiter is told: both are as old as we stood still.
//
// What it believes is told (BELIEF) at each greeting, when it changes, and as the answer to UNPAIRED. While
// synced it looks at the record now and then, and at once after it left `claiming` without an answer. A
// record that it can't read is told to the primary, as the reason why a takeover would have to wait.
//
// A GPU that has no copy any more (one of its workers died, an entry of the log failed) makes this no
// standby: LOST is said, and the primary has `alone` recorded, then says UNPAIRED. A primary that dies before
// that leaves nothing better than what is here, so the VM is taken over all the same, and the reason of the
// takeover says what is missing: its programs get errors from their GPU, everything else goes on. A GPU whose
// connection was cut still has its copy (virtio-vgpu's hold-failures), so nobody tells us; the primary
// notices and says UNPAIRED.
//
// With proof of death the VM starts before the arbiter is asked; its gate stays closed until the claim is
// granted. In a switchover the source still has the VM, and takes it back if it does not run here: so it is
// claimed when it runs, and not before. Without a shared record (fence) no claim decides against a source
// that takes it back. So RUNNING is said first, and the source's DIED is waited for; a source that is not
// heard is cut off, as after any silence. And while that command runs nothing here is thrown away.
//
// Its disks (disk_mark.hpp). Nothing is written to the images before the primary has said that its own
// continue them, or a person said that it may be (`overwrite`). Nothing leaves a VM that was taken over
// before its generation is durable here: so a host that had it before can be told that its disks are older,
// even after both have lost their power. A primary that only compares is heard by nobody else: it is silent
// as far as a takeover is concerned.
//
// Nothing of a primary counts before it has said what the VM is made of, and that is the same here. A VM that
// another release started has other files for its guest (guest_files.hpp). If this host has kept them, QEMU is
// started anew with them while nothing is at stake (act_standby_use_files, on_files_ready, act_restart_qemu),
// and the primary, which comes again, finds them. They stay until a primary comes that names others.
#pragma once

#include "control/ha/arbiter_request.hpp"
#include "control/ha/disk_mark.hpp"
#include "control/ha/guest_files.hpp"
#include "control/ha/peer_identity.hpp"
#include "mirror/protocol/message.hpp"

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <variant>

namespace kagemusha::ha {

struct standby_config {
    std::string vm;
    std::string description; // primary_config has what these are
    description_parts parts;
    std::set<std::string> kept_files = {}; // digests of those that this host has of its guest's files
    std::uint64_t instance = 0;
    std::uint32_t heartbeat_budget_ms = 500;
    std::uint32_t retry_ms = 100; // an arbiter that could not be reached is asked again after this
    std::uint32_t look_ms = 5000; // how often the record is looked at
    bool shared_record = true;    // primary_config has what it means
    bool disks = false;           // the VM has writable ones, so their mark counts
    disk_mark mark;               // what it says
    bool overwrite = false;       // their content is not wanted, whatever it is
};

enum class standby_state {
    starting,
    listening,
    greeted,
    proving,
    synced,
    claiming,
    taking_over,
    running,
    outdated,
    ended
};
const char* to_text(standby_state state);

struct act_standby_state {
    standby_state state;
    std::string why;
};
struct act_standby_ask {
    arbiter_request request;
};
struct act_standby_send {
    mirror::message what;
};
struct act_standby_close_link {}; // after what was sent
struct act_take_over {
    std::string why;
};
struct act_restart_qemu {
    std::string why;
    std::uint64_t qemu; // the new one's number
};
struct act_standby_mark { // the images, durably; then on_marked. In their order
    disk_mark mark;
    bool flush = false; // before that, what was written to the images
};
// QEMU's next start is from the guest's files that this names; then on_files_ready.
struct act_standby_use_files {
    description_parts parts;
};
struct act_running { // the VM runs here: primary_fsm::start_after_takeover
    std::uint64_t term;
    std::uint64_t lease_until;
    disk_mark mark;               // of its disks
    bool gpu_failed = false;      // the former primary's GPU
    std::string description = {}; // what it is made of here
    description_parts parts = {};
};
struct act_standby_ended {
    bool in_order;
    std::string why; // QEMU is killed
};
using standby_action =
    std::variant<act_standby_state, act_standby_ask, act_standby_send, act_standby_close_link, act_take_over,
                 act_restart_qemu, act_standby_mark, act_standby_use_files, act_running, act_standby_ended>;

class standby_fsm {
public:
    explicit standby_fsm(standby_config config) : config_(std::move(config)) {}

    // Of the QEMU with this number: what is said of a former one does not count.
    // `replica`: what READY says of the images (control/pilot/replica.hpp); empty: nothing is known of them.
    void on_qemu_ready(std::uint64_t qemu, std::uint64_t now, const std::string& replica = {});
    void on_qemu_died(const std::string& how, std::uint64_t qemu, std::uint64_t now);
    std::uint64_t qemu() const { return qemu_; } // the present one; the first has 1
    // It does not get on: no standby as long as that is so. Said again and again.
    void on_qemu_stuck(const std::string& why, std::uint64_t now);
    void on_gpu_lost(const std::string& why, std::uint64_t now); // it had a copy, and has none any more
    void on_link_up(std::uint64_t now); // a connection was taken; the thin layer takes one at a time
    void on_message(const mirror::message& m, std::uint64_t now);
    void on_link_closed(const std::string& why, std::uint64_t now);
    void on_arbiter(const arbiter_answer& answer, std::uint64_t now);
    void on_qemu_running(std::uint64_t now);                       // after act_take_over
    void on_marked(const std::string& problem, std::uint64_t now); // of an act_standby_mark; empty: durable
    // Of an act_standby_use_files. Empty: QEMU will have them.
    void on_files_ready(const std::string& problem);
    void on_takeover_failed(const std::string& why, std::uint64_t now);
    void on_stop(std::uint64_t now);
    void on_tick(std::uint64_t now);

    bool next(standby_action& out);
    std::uint64_t deadline() const;

    standby_state state() const { return state_; }
    std::uint64_t term() const { return term_; }
    std::uint64_t last_heard() const { return last_heard_; }  // a primary with our VM; ms
    const std::string& gpu_lost() const { return gpu_lost_; } // why a takeover would be without its state
    // listening: why the primary is refused; claiming, taking_over: why it has not started yet;
    // otherwise why it could not claim now
    const std::string& waiting_for() const { return waiting_for_; }
    const peer_identity& peer() const { return peer_; }

private:
    static constexpr std::uint64_t no_deadline = UINT64_MAX;

    void become(standby_state to, std::string why);
    void send(mirror::message m);
    void say(mirror::supervision_kind kind, std::uint64_t term, const std::string& text = {});
    void report_belief();

    // The connection
    void drop_link(mirror::goodbye_reason reason, const std::string& why);
    std::uint64_t silence_limit_ms() const;
    void on_hello(const mirror::hello& m, std::uint64_t now);
    void on_supervision(const mirror::supervision& m, std::uint64_t now);
    void on_description(const mirror::supervision& m, std::uint64_t now);
    const std::string& description() const;
    std::optional<description_parts> other_files_for(const mirror::supervision& m) const;
    void use_files(description_parts parts);
    void heard(std::uint64_t now);
    void heard_while_claiming(std::uint64_t now);

    // The disks (standby_fsm_disks.cpp)
    void be_ready();
    void on_lineage(const mirror::supervision& m);
    void refuse_primary(const std::string& why);
    void note_refusal(const std::string& why);
    void pair_with_the_living(std::uint64_t now);
    void be_paired();
    void mark(disk_state state, lineage of);
    bool marks(disk_state state) const { return !marking_.empty() && marking_.back().state == state; }

    // The arbiter (standby_fsm_arbiter.cpp)
    void ask(arbiter_request::kind what, std::uint64_t now);
    void ask_next(std::uint64_t now);
    std::uint64_t ask_at() const;
    void on_look(const arbiter_answer& answer, std::uint64_t now);
    void on_claimed(const arbiter_answer& answer, std::uint64_t now);
    std::string record_problem(const arbiter_answer& answer) const; // of a look before the pair is recorded
    void has_problem(const std::string& why);
    void claim(const std::string& why, std::uint64_t now);

    void out_of_date(const std::string& why);
    void with_proof(const mirror::supervision& m, const char* what, std::uint64_t now);
    void take_over(std::string why);
    void did_not_run(const std::string& why);
    void report_gpu_lost();
    void run_if_allowed();
    void end(bool in_order, const std::string& why);
    bool over() const { return state_ == standby_state::running || state_ == standby_state::ended; }
    // Without a shared record: handed over, and the source has not ended yet.
    bool awaits_source() const { return handed_over_ && !config_.shared_record; }
    bool is_proven() const { return proven_ && !awaits_source(); }
    // Somebody may be cut off at this moment.
    bool is_cutting_off() const {
        return !config_.shared_record && request_ != 0 && asked_ == arbiter_request::kind::claim;
    }
    bool may_claim() const { return state_ == standby_state::synced || state_ == standby_state::claiming; }

    standby_config config_;
    standby_state state_ = standby_state::starting;
    std::deque<standby_action> actions_;

    bool linked_ = false, greeted_ = false, described_ = false, tells_belief_ = false;
    peer_identity peer_;
    description_parts parts_ = config_.parts;       // with the files that QEMU was started with
    std::optional<description_parts> files_wanted_; // act_standby_use_files is under way
    bool tells_lineage_ = false, only_compares_ = false, echoes_ = false; // the peer
    std::optional<disk_mark> theirs_;                                     // its disks', of this connection
    disk_mark mark_ = config_.mark;                                       // of ours, that is durable
    std::deque<disk_mark> marking_;                                       // those that are being made durable
    std::string replica_;                                                 // of the present QEMU
    std::uint64_t mark_again_at_ = 0;    // taking_over: one could not be written. 0: none
    bool record_is_theirs_ = false;      // proving: it was seen
    std::uint64_t may_be_paired_at_ = 0; // proving: since then only a sign of life is missing; 0: more is
    std::uint64_t link_heard_ = 0;       // anything, on this connection
    std::uint64_t last_heard_ = 0;       // of a primary with our VM
    std::uint64_t surely_heard_ = 0;     // the same, but what may be old does not count
    bool heard_again_ = false;           // while a claim is under way
    std::uint64_t qemu_ = 1;
    std::uint64_t link_up_at_ = 0; // what decides anything is said after our hello, so it is younger
    std::uint64_t late_until_ = 0; // we stood still for the budget: what is read until then may be old

    std::uint64_t term_ = 0;     // with which we may take over, or may after `proving`; 0: none
    std::uint64_t recorded_ = 0; // proving: the record's term, as the primary says; 0: it does not
    arbiter_request::kind asked_ = arbiter_request::kind::look;
    std::uint64_t request_ = 0, last_number_ = 0;
    std::uint64_t ask_at_ = 0;        // the next request, if none is under way
    bool gone_ = false;               // the record, when it was claimed
    bool unpaired_meanwhile_ = false; // UNPAIRED was said while somebody may be cut off: if nobody is
    std::string waiting_for_, gpu_lost_;

    bool proven_ = false, unreleased_ = false, handed_over_ = false, gpu_failed_ = false,
         qemu_running_ = false;
    std::uint64_t granted_term_ = 0, lease_until_ = 0;
};

} // namespace kagemusha::ha
