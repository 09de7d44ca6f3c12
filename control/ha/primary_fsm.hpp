// SPDX-License-Identifier: GPL-2.0-or-later
//
// primary_fsm: what the supervisor of a running VM decides. Pure: events go in, actions come out through
// next(), time is an argument (milliseconds of CLOCK_BOOTTIME).
//
//   (comparing ─▶) opening ─lease─▶ alone ─ready─▶ replicating ─▶ announcing ─told─▶ recording ─▶ protecting
//                     ▲  ▲              │             │               │             │    │
//                     │  └──────────────┴─────────────┘           unpairing ◀───────┘    │
//                     └── `alone` recorded ──┬────────────────────────┘                  │
//                                       reclaiming ◀─── does not run ─── handing_over ◀──┘
//
// Transitions; all others are a programmer's error (one function makes them and emits act_state):
//
//   from          to            when
//   opening       comparing     a standby may have gone on with newer disks: it is asked
//   comparing     opening       it has not. And back, if this supervisor stood still meanwhile
//   opening       alone         the arbiter granted the first lease, and the disks are marked:
//                               act_start_qemu
//   alone         replicating   a standby is ready, and may have a transfer now: act_replicate
//   replicating   announcing    checkpoints reach the standby: PAIR is sent, with the next term
//   announcing    recording     the standby answered PAIRED: act_mark (protected), on_marked,
//                               then the arbiter is asked
//   recording     protecting    the arbiter has recorded the pair
//   replicating   alone         the standby is lost: act_go_on_alone
//   announcing    alone         the same, where a shared record refuses who was told and never recorded
//   announcing, recording, protecting
//                 unpairing     the standby is lost, another one is wanted, or the VM is stopped: the
//                               arbiter is asked to record `alone`
//   unpairing     alone         it has: act_go_on_alone, UNPAIRED
//   protecting    handing_over  a switchover: the VM stands still, all of it is on the standby,
//                               which is told
//   handing_over  reclaiming    it does not run there: the arbiter is asked for `alone`, so that
//                               it never will
//   reclaiming    alone         it has recorded that: act_go_on_alone, the VM runs here again
//   announcing, recording, protecting, unpairing, handing_over, reclaiming
//                 leaving       QEMU died, and the standby has what was let out: DIED is told
//   any           ended         the standby runs the VM; stopped; QEMU died with nobody to take
//                               over; another term: somebody took over
//
// The gate. Output may leave the VM while now < until of the last act_gate. That is extended by
//   * the arbiter's lease, and
//   * each answered heartbeat while protecting: the standby claims nothing before it was silent around it
//     for its budget, which began when it got the heartbeat, so not before we sent it.
// A supervisor that was frozen finds its gate closed, because nobody extended it. It learns from the next
// answer of the arbiter whether its term still counts.
//
// What a standby believes. A message can get lost with its connection, so a standby may think that it can
// take over when it can't any more. Each greeting tells what both believe (BELIEF). A standby that must not
// take over is told UNPAIRED, once on a connection until it says that it has nothing any more: READY, LOST or
// BELIEF 0. READY is also proof that the QEMU which was paired before is gone. Between PAIR and PAIRED such a
// word proves nothing: it may have been said before the standby had PAIR, and PAIRED may follow it. Where
// only the standby's word ends its right (fence), it counts when a heartbeat that was sent after UNPAIRED is
// answered: messages keep their order, so the last word before that answer was said after UNPAIRED.
//
// A record that is gone (arbiter_answer::verdict::gone) is not another's. The gate closes at once, and the VM
// is not killed. The record is made again by who may know that nobody took over: no pair was recorded; or our
// lease was valid when the record was found missing (nobody can have claimed before, and afterwards there is
// no record to claim from); or that very standby answers heartbeats that were sent later, or has nothing to
// take over with. A second VM that was opened elsewhere meanwhile has made a record of its own: then we are
// refused.
//
// Which disks are newer (disk_mark.hpp). A VM starts from images that nobody can have gone on with; otherwise
// the standby is asked first, as one that only compares (it answers no heartbeats, and its right to take over
// stays what it is). A generation is told to a standby when it is durable here, and the state is sent to one
// after that. So a mark here is never behind what a standby has. It is only told in alone: in the other
// states no standby needs it to be ready, and this host may have lost the VM without knowing it.
//
// A GPU that failed. QEMU does not tell the guest (virtio-vgpu's hold-failures), and the supervisor hands the
// VM to its standby as if QEMU had died: it kills it. The standby goes on from the last checkpoint, as the
// guest was before the failure. Only while protecting, with a standby that can be told now; otherwise the
// guest is told (act_report_gpu_failure, or with act_go_on_alone), as without a standby. It is told, too, for a
// while after a takeover that had this reason: a program can make its worker fail as often as it likes.
//
// A QEMU that dies in announcing or recording. Its checkpoints already went to the standby, and its output was
// held for them (on_qemu_protecting came after that began), so the standby has all that was let out. Only its
// right is missing: the pair is recorded first, then DIED is told.
//
// Ordering contract (what the thin layer must keep)
//   1. Actions are carried out in the order of next().
//   2. After act_kill_qemu nothing is reported of QEMU but on_qemu_died.
//   3. act_go_on_alone releases what was held, lets a VM go on that stands still for a switchover,
//      and tells the guest of a GPU that failed. It is only emitted after the arbiter has recorded
//      `alone`, or while no standby that was told could take over.
//   4. Each act_replicate has a number, and what is reported of a replication has its number. Orders and
//      reports cross, and QEMU's thread may be held up for long (a disk): what is reported of a former
//      replication is none of this one's, whose output nobody holds yet. Such a report is dropped.
//   5. on_marked comes for each act_mark, in their order, when it (and the flush before it) is durable or has
//      failed. Only then the
//      VM is started, a state sent to a standby, or the arbiter asked to record the pair. So an image that
//      is not marked `protected` was never one of a recorded pair.
#pragma once

#include "control/ha/arbiter_request.hpp"
#include "control/ha/disk_mark.hpp"
#include "control/ha/peer_identity.hpp"
#include "control/ha/resync_backoff.hpp"
#include "mirror/protocol/message.hpp"

#include <cstdint>
#include <deque>
#include <string>
#include <variant>

namespace kagemusha::ha {

enum class loss_policy { degraded, stop };

struct primary_config {
    std::string vm;
    std::string description; // fingerprint of what the VM is made of: must be the same on both hosts
    description_parts parts; // the same, one by one, for a peer that knows them
    std::uint64_t instance = 0;
    std::uint32_t heartbeat_ms = 50;
    std::uint32_t heartbeat_budget_ms = 500;
    std::uint32_t renew_ms = 100; // how often the lease is extended
    loss_policy policy = loss_policy::degraded;
    bool has_standby = false;    // an address to connect to
    std::string standby_address; // that one; only passed on
    bool anew = false;           // start although a standby may have what was there (arbiter_request::anew)
    bool disks = false;          // the VM has writable ones, so their mark counts
    disk_mark mark;              // what it says
    std::string image;           // one of them, for sentences
    // The arbiter keeps one record for both hosts (lock, etcd), so it refuses a standby whose pair was never
    // recorded. Without (fence), each host keeps its own: that a standby is told its term is recorded before
    // it is said, and going on alone cuts the standby off, unless it has confirmed UNPAIRED.
    bool shared_record = true;
    std::uint32_t opening_ms = 15000; // another's lease holds a start up for so long; longer than any lease
    // After a takeover for a failed GPU another failure makes none for so long: a program that takes its own
    // worker down again and again must not take the VM's standby away each time. 0: each failure makes one.
    std::uint32_t gpu_takeover_ms = 3'600'000;
    std::uint32_t switchover_ms = 10000; // the VM runs on the standby by then, or goes on here
    std::uint32_t stop_ms = 30000;       // a stop that neither arbiter nor standby hears ends then
    std::uint32_t stop_confirmed_ms =
        2000; // how long the arbiter is asked after the standby has confirmed it
    resync_config resync;
};

enum class primary_state {
    comparing,
    opening,
    alone,
    replicating,
    announcing,
    recording,
    protecting,
    unpairing,
    handing_over,
    reclaiming,
    leaving,
    ended
};
const char* to_text(primary_state state);

struct act_state {
    primary_state state;
    std::string why; // a sentence, or empty
};
struct act_ask {
    arbiter_request request;
};
struct act_gate {
    std::uint64_t until_ms;
};
struct act_connect {
    std::string address; // primary_config::standby_address, or what on_protect gave since
};
struct act_close_link {}; // after what was sent
struct act_send {
    mirror::message what;
};
struct act_start_qemu {};
struct act_replicate {
    std::uint64_t replication; // counts up; reports of it say this number
    std::string replica;       // what the standby said of its images; empty: nothing
    bool page_changes;         // the standby's QEMU knows pages of which only what has changed comes
};
struct act_mark { // the images, durably; then on_marked
    disk_mark mark;
    bool flush = false; // before that, what was written to the images: the mark says that they have it
};
struct act_go_on_alone {};
struct act_report_gpu_failure { // QEMU tells the guest what it has held back
    std::string why = {}; // a sentence where a standby would have gone on; said once, and empty otherwise
};
struct act_kill_qemu {
    std::string why;
};
struct act_ended {
    bool in_order; // the VM was stopped, or runs on the standby
    std::string why;
    bool alone = false; // the record says that nobody else may go on: this host's images are the newest
};
using primary_action =
    std::variant<act_state, act_ask, act_gate, act_connect, act_close_link, act_send, act_start_qemu,
                 act_replicate, act_mark, act_go_on_alone, act_report_gpu_failure, act_kill_qemu, act_ended>;

class primary_fsm {
public:
    explicit primary_fsm(primary_config config) : config_(std::move(config)), resync_(config_.resync) {}

    void start(std::uint64_t now); // a VM that does not run yet
    // A VM that runs here since a takeover, with the arbiter's record of it.
    // `gpu_failed`: because the former primary's GPU failed.
    void start_after_takeover(std::uint64_t term, std::uint64_t lease_until, std::uint64_t now,
                              bool gpu_failed = false);

    void on_arbiter(const arbiter_answer& answer, std::uint64_t now);
    void on_link_up(std::uint64_t now);
    void on_message(const mirror::message& m, std::uint64_t now);
    void on_link_closed(const std::string& why, std::uint64_t now);
    // `replication`: of which act_replicate. A checkpoint is on the standby, and output is held.
    void on_qemu_protecting(std::uint64_t replication, std::uint64_t now);
    // It asks whether to go on.
    void on_qemu_replication_lost(std::uint64_t replication, const std::string& why, std::uint64_t now);
    void on_marked(const std::string& problem, std::uint64_t now); // of an act_mark; empty: it is durable
    // Its GPU failed, and it holds that back from the guest. Said again and again until it has an effect.
    void on_gpu_failed(const std::string& why, std::uint64_t now);
    // It does not get on. Said again and again while that is so. It is killed if a standby that can be told
    // now goes on; a VM that is late is better than none.
    void on_qemu_stuck(const std::string& why, std::uint64_t now);
    void on_qemu_died(const std::string& how, bool in_order, std::uint64_t now);
    // The last checkpoint is on the standby, QEMU stands still.
    void on_qemu_handed_over(std::uint64_t replication, std::uint64_t now);
    void on_cancel_switchover(std::uint64_t now); // a person does not want to wait for the standby any more
    // A person wants it protected: there is an address now, and it is tried at once. Empty: the known one.
    void on_protect(const std::string& address, std::uint64_t now);
    void on_stop(std::uint64_t now); // a person wants the VM to end
    void on_tick(std::uint64_t now);

    bool next(primary_action& out);
    std::uint64_t deadline() const; // when on_tick is due at the latest

    primary_state state() const { return state_; }
    std::uint64_t replication() const { return replication_; } // the last one that was begun
    std::uint64_t term() const { return term_; }
    const std::string& degraded() const { return degraded_; } // why nobody stands by; empty: somebody does
    // Why a takeover would have to wait, though somebody stands by: the standby does not reach the arbiter.
    const std::string& standby_problem() const { return standby_problem_; }
    const peer_identity& peer() const { return peer_; }
    std::string waiting_for(std::uint64_t now) const; // what holds the next step up; empty: nothing
    bool may_hand_over() const { return state_ == primary_state::protecting && link_ >= link_state::greeted; }

private:
    enum class link_state { down, connecting, greeting, greeted, ready };

    void become(primary_state to, std::string why);
    void send(mirror::message m);
    void say(mirror::supervision_kind kind, std::uint64_t term, const std::string& text);
    void open_gate(std::uint64_t until);
    void close_gate();

    // The arbiter.
    // `ends_alone`: a release after which nobody may go on with the VM.
    void ask(arbiter_request::kind what, std::uint64_t now, bool ends_alone = false);
    void ask_next(std::uint64_t now); // what the state wants to know now
    std::uint64_t ask_at() const;
    void renew_if_due(std::uint64_t now);
    void begin_opening(std::uint64_t now);
    void on_opened(const arbiter_answer& answer, std::uint64_t now);
    void start_vm(std::uint64_t now);
    void on_granted(arbiter_request::kind asked, std::uint64_t now);
    void on_refused(const std::string& why, std::uint64_t now);
    void on_answer_leaving(arbiter_request::kind asked, const arbiter_answer& answer, std::uint64_t now);
    void record_gone(const std::string& why, std::uint64_t now);
    bool may_restore() const;
    void superseded(const std::string& why);

    // The disks (primary_fsm_disks.cpp).
    void begin_comparing(std::uint64_t now);
    bool compares_again(std::uint64_t now);
    void compare_or_end(const mirror::supervision* m, std::uint64_t now);
    void mark(disk_mark next, bool flush = false);
    const disk_mark& last_mark() const { return marking_.empty() ? mark_ : marking_.back(); }
    bool may_be_behind() const; // a standby may have all of the disk's present generation
    void mark_alone();
    void report_lineage();

    // The connection and the standby.
    void surely_heard(std::uint64_t said_ms);
    void heartbeat_if_due(std::uint64_t now);
    void connect_if_due(std::uint64_t now);
    void drop_link(mirror::goodbye_reason reason, const std::string& why, std::uint64_t now);
    void link_down(const std::string& why, std::uint64_t now);
    bool is_urgent() const; // the standby has our state, or must be told something
    std::uint64_t silence_limit_ms() const;
    void watch_link(std::uint64_t now);
    void on_hello(const mirror::hello& m, std::uint64_t now);
    void on_supervision(const mirror::supervision& m, std::uint64_t now);
    void on_description(const mirror::supervision& m, std::uint64_t now);
    void on_belief(const mirror::supervision& m, std::uint64_t now);
    void standby_of_another_time(std::uint64_t now);
    bool is_parting() const { return link_ != link_state::down && link_address_ != config_.standby_address; }
    bool may_part(std::uint64_t now) const;
    void part_if_due(std::uint64_t now);
    void report_pair();
    void on_goodbye(const mirror::goodbye& m, std::uint64_t now);
    void standby_has_nothing(const std::string& why, std::uint64_t now);
    void settle_open_pair(std::uint64_t answer_to_ms, std::uint64_t now);
    void replicate_if_ready(std::uint64_t now);
    void lost_standby(const std::string& why, std::uint64_t now);
    void lose(const std::string& why, std::uint64_t now);
    void go_on_alone(const std::string& why, std::uint64_t now);
    void unpair(const std::string& why, std::uint64_t now);
    void unpair_before_alone(const std::string& why, std::uint64_t now);
    void unpair_if_due(std::uint64_t now);
    void alone_recorded(std::uint64_t now);
    std::uint64_t believed_term() const; // with which a standby may take over; 0: none may

    // The end, and switchovers.
    void leave(const std::string& how, std::uint64_t now);
    void report_leaving();
    // It was told, and answers: it may have to wait for the arbiter.
    bool standby_takes_over() const { return reported_ && link_ >= link_state::greeted && !stopping_; }
    void kill_for_standby(const std::string& why, std::uint64_t now);
    void begin_stop(const std::string& why, std::uint64_t now);
    void take_back(const std::string& why, std::uint64_t now);
    void gone_over(); // the standby has the VM that stands still here
    void ends_if_due(std::uint64_t now);
    void end(bool in_order, const std::string& why, bool alone = false);

    bool is_paired() const { // a standby may have been recorded, or is about to be
        return state_ >= primary_state::recording && state_ <= primary_state::reclaiming;
    }
    bool over() const { return state_ == primary_state::leaving || state_ == primary_state::ended; }

    static constexpr std::uint64_t killing_ms = 3000; // for a killed QEMU to end
    static constexpr std::uint64_t leaving_ms =
        10000; // for telling the standby; after that it has the arbiter

    primary_config config_;
    primary_state state_ = primary_state::opening;
    disk_mark mark_ = config_.mark; // that is durable
    std::deque<disk_mark> marking_; // those that are being made durable
    std::string mark_problem_;      // of the last one
    std::uint64_t mark_again_at_ = 0, compare_by_ = 0;
    std::uint64_t awake_ms_ = 0;       // until it starts the VM after comparing: when it last did anything
    bool opened_ = false;              // the arbiter has granted it; the disks are being marked
    bool partner_has_nothing_ = false; // it said so: the record of our pair is of no use to anybody
    std::deque<primary_action> actions_;

    // The arbiter's record
    std::uint64_t term_ = 0;
    std::uint64_t lease_until_ = 0, gate_ = 0;
    std::uint64_t last_asked_ = 0;
    std::uint64_t request_ = 0; // the number of the one that is under way; 0: none
    arbiter_request::kind asked_ = arbiter_request::kind::open;
    bool tells_next_ = false; // the last one says that a standby is told its term next
    std::uint64_t last_number_ = 0;
    std::uint64_t replication_ = 0;   // the last one that was begun
    std::string replica_;             // of the standby that is ready
    std::uint64_t reported_term_ = 0; // the last one that a standby was told; used once
    std::uint64_t opening_by_ = 0;    // until then another's lease may run out
    bool pair_asked_ = false;         // with reported_term_; whether it was done is not known
    bool pair_told_ = false;          // PAIR was said with reported_term_
    bool generation_told_ = false; // PAIR was said in the disks' present generation: who heard it marks it so
    bool alone_asked_ = false;     // the same of `alone`, in unpairing and reclaiming
    bool gone_ = false, lease_was_valid_ = false; // the record; and our lease at that moment
    std::uint64_t gone_at_ = 0;
    bool answered_since_gone_ = false; // the standby, a heartbeat
    std::string arbiter_problem_;      // of its last answer

    // The connection
    link_state link_ = link_state::down;
    std::uint64_t connect_at_ = 0, link_since_ = 0;
    std::uint64_t last_heard_ = 0, last_beat_ = 0;
    std::uint64_t surely_heard_ = 0; // the standby lived then: it answered what we said at that time
    std::uint64_t their_beat_ = 0;   // the time that the standby's last one says; 0: none yet
    std::uint32_t budget_ms_ = 0;    // the shorter one of both ends
    bool described_ = false, tells_belief_ = false, tells_lineage_ = false;
    peer_identity peer_;
    std::uint64_t peer_instance_ = 0, paired_instance_ = 0; // who greeted; who was told the last term
    std::string link_address_, paired_address_;             // where the connection goes; where that one is
    std::uint64_t part_by_ = 0; // until then it may confirm UNPAIRED, though another one is wanted

    // The standby
    bool standby_has_vm_ = false;   // it was paired with term_, and did not say that its QEMU has ended
    bool standby_is_clean_ = false; // on this connection it said that it has nothing, and got nothing since
    bool confirmed_ = false;        // the one that was told the last term said that it will not take over
    // PAIR was said on this connection, and not answered. What the standby says may be older than PAIR, or
    // from before PAIRED, so it confirms nothing before an answer to what was said after UNPAIRED.
    bool pair_is_open_ = false, said_nothing_left_ = false;
    bool unpairing_ = false;               // UNPAIRED was said on this connection, and is not confirmed
    std::uint64_t unpaired_ms_ = 0;        // when it was said first since PAIR; 0: it was not
    std::uint64_t unpair_at_ = UINT64_MAX; // when it is said to an older release (again)
    std::uint64_t ask_alone_at_ = 0;       // until then the standby may confirm it
    std::string standby_problem_;
    std::string degraded_ = "no standby has been there yet";
    std::string lost_why_;
    resync_backoff resync_;
    bool marked_ = false;
    std::uint64_t no_gpu_takeover_until_ = 0; // primary_config::gpu_takeover_ms
    bool tells_gpu_failure_ = false;          // that was said
    bool gpu_failed_ = false;                 // QEMU is killed for it
    std::uint64_t killing_by_ =
        0; // act_kill_qemu was given, and on_qemu_died follows until then. 0: it was not

    // The end
    bool stopping_ = false, qemu_gone_ = false;
    std::string stop_why_;
    std::uint64_t stop_by_ = 0, hand_by_ = 0, leave_by_ = 0;
    std::string how_;
    bool reported_ = false;
    bool record_pair_ = false; // leaving: before the last word
    bool released_ = false;
};

} // namespace kagemusha::ha
