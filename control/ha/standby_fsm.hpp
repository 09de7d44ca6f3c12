// SPDX-License-Identifier: GPL-2.0-or-later
//
// standby_fsm: what the supervisor of a VM's standby decides: when the VM may start here. Pure, as
// primary_fsm.hpp.
//
//   starting ──▶ listening ──primary's hello──▶ greeted ──PAIR──▶ synced ──silence──▶ claiming
//      ▲                                                            │                    │ the arbiter
//      granted it │                                               DIED: proof  └──▶ taking_over ◀───┘ └──
//      outdated: what it has is no copy any more                        │ QEMU runs, lease granted
//                                                                           ▼ running: primary_fsm goes on
//
// Transitions; all others are a programmer's error:
//
//   from        to           when
//   starting    listening    QEMU waits for the VM
//   listening   greeted      a primary's hello fits
//   greeted     synced       PAIR: its state is here, and the VM may be taken over with that term
//   greeted     listening    the connection ended
//   synced      claiming     nothing heard for the budget, whether the connection stands or is closed
//   claiming    synced       the primary is heard again, and the claim was not granted
//   synced, claiming  taking_over  DIED or HANDED_OVER with our term (proof), or the claim was granted
//   taking_over running      QEMU runs the VM, and the arbiter granted the claim
//   greeted, synced, claiming  outdated   UNPAIRED; the arbiter says that the primary goes on alone or that
//   the
//                                         term is over; our QEMU died: act_restart_qemu
//   outdated    starting     act_restart_qemu was carried out
//   any         ended        stopped; the takeover failed
//
// The promise. A heartbeat is answered only while nothing is claimed, and nothing is claimed before
// heartbeat_budget_ms after the last one that came. The primary relies on it (primary_fsm.hpp, the gate).
//
// A GPU that has no copy any more (one of its workers died, an entry of the log failed) makes this no
// standby: LOST is said, and the primary has `alone` recorded, then says UNPAIRED. A primary that dies before
// that leaves nothing better than what is here, so the VM is taken over all the same, and the reason of the
// takeover says what is missing: its programs get errors from their GPU, everything else goes on. A GPU whose
// connection was cut still has its copy (virtio-vgpu's hold-failures), so nobody tells us; the primary
// notices and says UNPAIRED.
//
// With proof the VM starts before the arbiter is asked; its gate stays closed until the claim is granted.
#pragma once

#include "control/ha/arbiter_request.hpp"
#include "mirror/message.hpp"

#include <cstdint>
#include <deque>
#include <string>
#include <variant>

namespace kagemusha::ha {

struct standby_config {
    std::string vm;
    std::string description;
    std::uint64_t instance = 0;
    std::uint32_t heartbeat_budget_ms = 500;
    std::uint32_t retry_ms = 100; // an arbiter that could not be reached is asked again after this
};

enum class standby_state {
    starting,
    listening,
    greeted,
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
};
struct act_running { // the VM runs here: primary_fsm::start_after_takeover
    std::uint64_t term;
    std::uint64_t lease_until;
};
struct act_standby_ended {
    bool in_order;
    std::string why; // QEMU is killed
};
using standby_action =
    std::variant<act_standby_state, act_standby_ask, act_standby_send, act_standby_close_link, act_take_over,
                 act_restart_qemu, act_running, act_standby_ended>;

class standby_fsm {
public:
    explicit standby_fsm(standby_config config) : config_(std::move(config)) {}

    void on_qemu_ready(std::uint64_t now);
    void on_qemu_died(const std::string& how, std::uint64_t now);
    void on_gpu_lost(const std::string& why, std::uint64_t now); // it had a copy, and has none any more
    void on_link_up(std::uint64_t now); // a connection was taken; the thin layer takes one at a time
    void on_message(const mirror::message& m, std::uint64_t now);
    void on_link_closed(const std::string& why, std::uint64_t now);
    void on_arbiter(const arbiter_answer& answer, std::uint64_t now);
    void on_qemu_running(std::uint64_t now); // after act_take_over
    void on_takeover_failed(const std::string& why, std::uint64_t now);
    void on_stop(std::uint64_t now);
    void on_tick(std::uint64_t now);

    bool next(standby_action& out);
    std::uint64_t deadline() const;

    standby_state state() const { return state_; }
    std::uint64_t term() const { return term_; }
    const std::string& gpu_lost() const { return gpu_lost_; } // why a takeover would be without its state
    const std::string& waiting_for() const { return waiting_for_; } // claiming: why it has not started yet

private:
    void become(standby_state to, std::string why);
    void send(mirror::message m);
    void ask(std::uint64_t now);
    void drop_link(mirror::goodbye_reason reason, const std::string& why);
    void heard(std::uint64_t now);
    void out_of_date(const std::string& why);
    void with_proof(const mirror::supervision& m, const char* what, std::uint64_t now);
    void take_over(std::string why);
    void tell_gpu_lost();
    void run_if_allowed();
    void end(bool in_order, const std::string& why);
    void on_hello(const mirror::hello& m, std::uint64_t now);
    void on_supervision(const mirror::supervision& m, std::uint64_t now);
    bool over() const {
        return state_ == standby_state::running || state_ == standby_state::ended ||
               state_ == standby_state::taking_over;
    }

    standby_config config_;
    standby_state state_ = standby_state::starting;
    bool linked_ = false, greeted_ = false, described_ = false;
    std::uint64_t link_since_ = 0;
    std::uint64_t term_ = 0; // with which we may take over; 0: we may not
    std::uint64_t last_heard_ = 0;
    bool heard_again_ = false; // while a claim is under way
    std::uint64_t request_ = 0, last_number_ = 0, ask_at_ = 0;
    bool proven_ = false, qemu_running_ = false;
    std::uint64_t granted_term_ = 0, lease_until_ = 0;
    std::string waiting_for_, gpu_lost_;
    std::deque<standby_action> actions_;
};

} // namespace kagemusha::ha
