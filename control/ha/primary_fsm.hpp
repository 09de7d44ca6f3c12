// SPDX-License-Identifier: GPL-2.0-or-later
//
// primary_fsm: what the supervisor of a running VM decides. Pure: events go in, actions come out through
// next(), time is an argument (milliseconds of CLOCK_BOOTTIME).
//
//   opening ──lease──▶ alone ──standby ready──▶ replicating ──checkpoints──▶ telling ──told──▶ recording ──▶
//   protecting
//                        ▲                           │                         │                │ │ └────
//                        QEMU goes on alone ◀──┴─────────────────────────┘             losing ◀───────────┘
//
// Transitions; all others are a programmer's error (one function makes them and emits act_state):
//
//   from         to           when
//   opening      alone        the arbiter granted the first lease: act_start_qemu
//   alone        replicating  a standby is ready: act_replicate
//   replicating  telling      checkpoints reach the standby: PAIR is sent, with the next term
//   telling      recording    the standby answered PAIRED
//   recording    protecting   the arbiter has recorded the pair
//   replicating, telling    alone    the standby is lost: act_go_on_alone
//   recording, protecting   losing   the standby is lost: the arbiter is asked to record `alone`
//   losing       alone        it has: act_go_on_alone, UNPAIRED
//   protecting   leaving      QEMU died, policy `stop` and standby lost, or it was handed over: DIED is told
//   losing       leaving      QEMU died before `alone` was recorded: the standby has what was let out
//   leaving      ended        the standby knows, or it can't be told in time
//   any          ended        stopped; QEMU died with nobody to take over; another term: somebody took over
//
// The gate. Output may leave the VM while now < until of the last act_gate. That is extended by
//   * the arbiter's lease, and
//   * each answered heartbeat while protecting: the standby claims nothing before it was silent around it
//     for its budget, which began when it got the heartbeat, so not before we sent it.
// A GPU that failed. QEMU does not tell the guest (virtio-vgpu's hold-failures), and the supervisor hands the
// VM to its standby as if QEMU had died: it kills it. The standby goes on from the last checkpoint, as the
// guest was before the failure. Only while protecting, with a standby that can be told now; otherwise the
// guest is told (act_tell_gpu_failure, or with act_go_on_alone), as without a standby.
//
// A supervisor that was frozen finds its gate closed, because nobody extended it. It learns from the next
// answer of the arbiter whether its term still counts.
//
// Ordering contract (what the thin layer must keep)
//   1. Actions are carried out in the order of next().
//   2. After act_kill_qemu nothing is reported of QEMU but on_qemu_died.
//   3. act_go_on_alone also tells the guest of a GPU that failed. It releases what was held; it is only
//   emitted after the arbiter has recorded `alone`, or
//      while no standby has ever been told that it may take over.
#pragma once

#include "control/ha/arbiter_request.hpp"
#include "mirror/message.hpp"

#include <cstdint>
#include <deque>
#include <string>
#include <variant>

namespace kagemusha::ha {

enum class loss_policy { degraded, stop };

struct primary_config {
    std::string vm;
    std::string description; // fingerprint of what the VM is made of: must be the same on both hosts
    std::uint64_t instance = 0;
    std::uint32_t heartbeat_ms = 50;
    std::uint32_t heartbeat_budget_ms = 500;
    std::uint32_t renew_ms = 100; // how often the lease is extended
    loss_policy policy = loss_policy::degraded;
    bool has_standby = false; // an address to connect to
    bool anew = false;        // start although a standby may have what was there (arbiter_request::anew)
};

enum class primary_state {
    opening,
    alone,
    replicating,
    telling,
    recording,
    protecting,
    losing,
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
struct act_connect {};
struct act_close_link {}; // after what was sent
struct act_send {
    mirror::message what;
};
struct act_start_qemu {};
struct act_replicate {};
struct act_go_on_alone {};
struct act_tell_gpu_failure {}; // QEMU tells the guest what it has held back
struct act_kill_qemu {
    std::string why;
};
struct act_ended {
    bool in_order; // the VM was stopped, or runs on the standby
    std::string why;
};
using primary_action =
    std::variant<act_state, act_ask, act_gate, act_connect, act_close_link, act_send, act_start_qemu,
                 act_replicate, act_go_on_alone, act_tell_gpu_failure, act_kill_qemu, act_ended>;

class primary_fsm {
public:
    explicit primary_fsm(primary_config config) : config_(std::move(config)) {}

    void start(std::uint64_t now); // a VM that does not run yet
    // A VM that runs here since a takeover, with the arbiter's record of it.
    void start_after_takeover(std::uint64_t term, std::uint64_t lease_until, std::uint64_t now);

    void on_arbiter(const arbiter_answer& answer, std::uint64_t now);
    void on_link_up(std::uint64_t now);
    void on_message(const mirror::message& m, std::uint64_t now);
    void on_link_closed(const std::string& why, std::uint64_t now);
    void on_qemu_protecting(std::uint64_t now); // a checkpoint is on the standby
    void on_qemu_replication_lost(const std::string& why, std::uint64_t now); // it asks whether to go on
    // Its GPU failed, and it holds that back from the guest. Said again and again until it has an effect.
    void on_gpu_failed(const std::string& why, std::uint64_t now);
    void on_qemu_died(const std::string& how, bool in_order, std::uint64_t now);
    void on_qemu_handed_over(std::uint64_t now); // the last checkpoint is on the standby, QEMU stands still
    void on_protect(std::uint64_t now);          // there is an address now (again)
    void on_stop(std::uint64_t now);             // a person wants the VM to end
    void on_tick(std::uint64_t now);

    bool next(primary_action& out);
    std::uint64_t deadline() const; // when on_tick is due at the latest

    primary_state state() const { return state_; }
    std::uint64_t term() const { return term_; }
    const std::string& degraded() const { return degraded_; } // why nobody stands by; empty: somebody does
    // A standby that was paired does not say READY again when the connection comes back.
    bool may_hand_over() const { return state_ == primary_state::protecting && link_ >= link_state::greeted; }

private:
    enum class link_state { down, connecting, greeting, greeted, ready };

    void become(primary_state to, std::string why);
    void send(mirror::message m);
    void ask(arbiter_request::kind what, std::uint64_t now);
    void open_gate(std::uint64_t until);
    void renew_if_due(std::uint64_t now);
    void heartbeat_if_due(std::uint64_t now);
    void connect_if_due(std::uint64_t now);
    void drop_link(mirror::goodbye_reason reason, const std::string& why, std::uint64_t now);
    void link_down(const std::string& why, std::uint64_t now);
    void lost_standby(const std::string& why, std::uint64_t now);
    void replicate_if_ready();
    void alone_recorded(std::uint64_t now);
    void superseded(const std::string& why);
    void leave(mirror::supervision_kind kind, const std::string& how, std::uint64_t now);
    void tell_leaving(std::uint64_t now);
    void end(bool in_order, const std::string& why);
    void on_hello(const mirror::hello& m, std::uint64_t now);
    void on_supervision(const mirror::supervision& m, std::uint64_t now);
    bool over() const { return state_ == primary_state::leaving || state_ == primary_state::ended; }

    primary_config config_;
    primary_state state_ = primary_state::opening;
    std::uint64_t term_ = 0;
    std::uint64_t lease_until_ = 0, gate_ = 0;
    std::uint64_t last_asked_ = 0;
    std::uint64_t request_ = 0; // the number of the one that is under way; 0: none
    arbiter_request::kind asked_ = arbiter_request::kind::open;
    std::uint64_t last_number_ = 0;
    link_state link_ = link_state::down;
    std::uint64_t connect_at_ = 0, link_since_ = 0;
    std::uint64_t last_heard_ = 0, last_beat_ = 0;
    std::uint32_t budget_ms_ = 0;  // the shorter one of both ends
    std::uint64_t told_term_ = 0;  // the last one that a standby was told; used once
    std::uint64_t opening_by_ = 0; // until then another's lease may run out
    bool stopping_ = false;
    std::string degraded_ = "no standby has been there yet";
    std::string lost_why_;
    mirror::supervision_kind last_word_ = mirror::supervision_kind::died;
    std::string how_;
    std::uint64_t leave_by_ = 0;
    bool told_ = false;
    bool standby_has_vm_ = false; // it was paired with term_, and did not say that its QEMU has ended
    bool gpu_failed_ = false;     // act_kill_qemu was given for it
    std::deque<primary_action> actions_;
};

} // namespace kagemusha::ha
