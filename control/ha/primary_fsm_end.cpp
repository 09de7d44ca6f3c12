// SPDX-License-Identifier: GPL-2.0-or-later
//
// primary_fsm: how a VM ends on this host: its QEMU or its GPU fails, a person stops it, or it moves to the
// standby and perhaps back.
#include "control/ha/primary_fsm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kagemusha::ha {

using mirror::supervision_kind;

void primary_fsm::on_gpu_failed(const std::string& why, std::uint64_t now) {
    switch (state_) {
    case primary_state::protecting:
        // Without a connection the standby may be as dead as the GPU: the connection comes back, or the
        // standby is lost.
        if (now < no_gpu_takeover_until_) {
            std::string said;
            if (!std::exchange(tells_gpu_failure_, true))
                said = fmt::format("the VM was taken over for a failed GPU less than {} s ago, so its "
                                   "programs are told of this "
                                   "failure of the GPU, and its standby stays (gpu-takeover-ms): {}",
                                   config_.gpu_takeover_ms / 1000, why);
            actions_.push_back(act_report_gpu_failure{std::move(said)});
            return;
        }
        if (may_hand_over()) {
            gpu_failed_ = true;
            kill_for_standby("its GPU failed: " + why, now);
        }
        return;
    case primary_state::announcing:
    case primary_state::recording:
    case primary_state::unpairing:
    case primary_state::handing_over:
    case primary_state::reclaiming:
        return; // soon protecting, alone, or elsewhere
    case primary_state::comparing:
    case primary_state::opening:
    case primary_state::alone:
    case primary_state::replicating:
        actions_.push_back(act_report_gpu_failure{});
        return;
    case primary_state::leaving:
    case primary_state::ended:
        return;
    }
}

void primary_fsm::on_qemu_stuck(const std::string& why, std::uint64_t now) {
    if (may_hand_over())
        kill_for_standby(why, now);
}

// Once. A process that a driver holds may not end for long.
void primary_fsm::kill_for_standby(const std::string& why, std::uint64_t now) {
    if (killing_by_ != 0)
        return;
    killing_by_ = now + killing_ms;
    actions_.push_back(act_kill_qemu{why});
}

// ---- QEMU has ended

void primary_fsm::on_qemu_died(const std::string& how, bool in_order, std::uint64_t now) {
    if (over() || qemu_gone_)
        return;
    qemu_gone_ = true;
    how_ = how;
    if (stopping_ && (state_ == primary_state::unpairing || state_ == primary_state::reclaiming))
        return; // as a person wanted; what a standby may do is still being settled
    if (in_order && (state_ == primary_state::recording || state_ == primary_state::protecting ||
                     state_ == primary_state::unpairing))
        return begin_stop(how, now);
    switch (state_) {
    case primary_state::announcing: // soon the standby can go on: on_supervision
        if (link_ >= link_state::greeted && !in_order) {
            leave_by_ = now + leaving_ms;
            return;
        }
        break;
    case primary_state::recording:
    case primary_state::protecting:
    case primary_state::unpairing:
    case primary_state::reclaiming:
        if (standby_has_vm_)
            return leave(how, now);
        break;
    case primary_state::handing_over: // nobody takes it back any more
        return leave(how, now);
    default:
        break;
    }
    unpair(how, now);
    end(in_order, how, in_order && !is_paired());
}

void primary_fsm::leave(const std::string& how, std::uint64_t now) {
    how_ = how;
    leave_by_ = now + leaving_ms;
    record_pair_ = reported_term_ > term_; // it was told a term that may not be recorded yet
    become(primary_state::leaving, how);
    if (!record_pair_) {
        report_leaving();
        ask(arbiter_request::kind::release, now);
    } else if (request_ == 0) {
        ask_next(now);
    }
    connect_if_due(now);
}

void primary_fsm::report_leaving() {
    if (link_ < link_state::greeted || record_pair_)
        return;
    const bool lives = state_ == primary_state::handing_over;
    say(lives ? supervision_kind::handed_over : supervision_kind::died, term_, how_);
    reported_ = true;
}

void primary_fsm::on_answer_leaving(arbiter_request::kind asked, const arbiter_answer& answer,
                                    std::uint64_t now) {
    using kind = arbiter_request::kind;
    using verdict = arbiter_answer::verdict;
    if (asked == kind::look) {
        if (answer.what == verdict::granted && answer.term > term_)
            end(true, "the standby goes on");
        return;
    }
    if (!record_pair_) {
        released_ = true; // or its lease runs out
        return;
    }
    if (asked == kind::pair && answer.what == verdict::refused)
        return end(false, fmt::format("{}; the standby can't go on: {}", how_, answer.why));
    if (asked == kind::pair && answer.what == verdict::granted) {
        term_ = answer.term;
        pair_asked_ = record_pair_ = false;
        leave_by_ = std::max(leave_by_, now + leaving_ms);
        report_leaving();
        return ask(kind::release, now);
    }
    // on_tick asks again
}

// ---- a switchover

void primary_fsm::on_qemu_handed_over(std::uint64_t replication, std::uint64_t now) {
    if (state_ != primary_state::protecting || replication != replication_)
        return;
    close_gate();
    hand_by_ = now + config_.switchover_ms;
    how_ = "handed over";
    become(primary_state::handing_over, {});
    report_leaving();
}

void primary_fsm::on_cancel_switchover(std::uint64_t now) {
    if (state_ == primary_state::handing_over)
        take_back("the switchover was cancelled", now);
}

// The standby claims the VM when it runs there, and not before; we ask for `alone` with the same term. One of
// both gets it. Without a shared record the standby waits for our DIED, or cuts us off; so before we have
// said that, we may cut it off.
void primary_fsm::take_back(const std::string& why, std::uint64_t now) {
    if (state_ != primary_state::handing_over)
        return;
    hand_by_ = UINT64_MAX;
    degraded_ = why;
    resync_.failed(now);
    become(primary_state::reclaiming, why);
    ask_alone_at_ = now;
    if (!config_.shared_record)
        unpair_before_alone(why, now);
    ask_next(now);
}

void primary_fsm::gone_over() {
    actions_.push_back(act_kill_qemu{"the VM was handed over"});
    if (!config_.shared_record && link_ >= link_state::greeted)
        say(supervision_kind::died, term_, "the VM was handed over");
    end(!stopping_, stopping_ ? "the standby has the VM already: stop it there" : "the standby goes on");
}

// ---- a person wants the VM to end

void primary_fsm::on_stop(std::uint64_t now) {
    if (state_ == primary_state::leaving)
        stopping_ = true; // the standby is not waited for any longer than to tell it
    else if (!over() && !stopping_)
        begin_stop("stopped", now);
}

// Nobody may start what was ended: the arbiter records that, or the standby confirms it. Until then it is
// told and asked again.
void primary_fsm::begin_stop(const std::string& why, std::uint64_t now) {
    stopping_ = true;
    stop_why_ = why;
    stop_by_ = now + config_.stop_ms;
    const std::string told = "the VM is stopped";
    switch (state_) {
    case primary_state::announcing:
        if (config_.shared_record)
            break;
        [[fallthrough]];
    case primary_state::recording:
    case primary_state::protecting:
        return lose(told, now);
    case primary_state::unpairing:
        degraded_ = told;
        unpair(told, now);
        return;
    case primary_state::handing_over:
        return take_back(told, now);
    case primary_state::reclaiming:
        return;
    default:
        break;
    }
    unpair(told, now);
    end(true, why, state_ > primary_state::opening);
}

// ---- what ends when its time is over

void primary_fsm::ends_if_due(std::uint64_t now) {
    // It never speaks again: its gate is closed for good, and what it still computes goes nowhere.
    if (state_ == primary_state::protecting && killing_by_ != 0 && now >= killing_by_ && standby_has_vm_) {
        close_gate();
        return leave("QEMU was killed and does not end; its output is closed", now);
    }
    if (stopping_ && (state_ == primary_state::unpairing || state_ == primary_state::reclaiming) &&
        now >= stop_by_) {
        const auto problem = arbiter_problem_.empty() ? "the arbiter does not answer" : arbiter_problem_;
        return end(confirmed_, confirmed_
                                   ? stop_why_ +
                                         "; the arbiter could not be told, so the VM starts again "
                                         "only with --force-new: " +
                                         problem
                                   : "stopped, but neither the arbiter nor the standby heard of it: the "
                                     "standby may start the VM: " +
                                         problem);
    }
    if (state_ == primary_state::handing_over && now >= hand_by_)
        take_back(
            fmt::format("the standby has not said within {} ms that it runs the VM", config_.switchover_ms),
            now);
    if (state_ == primary_state::announcing && qemu_gone_ && now >= leave_by_)
        return end(false, how_);
    if (state_ == primary_state::leaving && now >= leave_by_ && !standby_takes_over())
        end(reported_ && !tells_belief_,
            !reported_      ? "the standby could not be told; it has to wait for the arbiter"
            : tells_belief_ ? "the standby was told, and has not said that it runs the VM"
                            : "the standby goes on");
}

void primary_fsm::end(bool in_order, const std::string& why, bool alone) {
    const bool held = in_order && (alone || state_ == primary_state::unpairing);
    if (link_ >= link_state::greeting) {
        send(mirror::goodbye{mirror::goodbye_reason::shutdown, why});
        actions_.push_back(act_close_link{});
    }
    link_ = link_state::down;
    if (alone && may_be_behind()) // it ended here, and nobody goes on with it
        mark_alone();
    become(primary_state::ended, why);
    if (held)
        ask(arbiter_request::kind::release, last_asked_, alone);
    actions_.push_back(act_ended{in_order, why, alone});
}

} // namespace kagemusha::ha
