// SPDX-License-Identifier: GPL-2.0-or-later
//
// standby_fsm: the arbiter: when it is asked, and what its answers mean for a standby.
#include "control/ha/standby_fsm.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kagemusha::ha {

using mirror::supervision_kind;

void standby_fsm::ask(arbiter_request::kind what, std::uint64_t now) {
    arbiter_request request;
    request.what = what;
    request.number = ++last_number_;
    request.term = what == arbiter_request::kind::restore ? term_ + 1 : term_;
    if (what == arbiter_request::kind::claim) {
        request.proven_dead = is_proven();
        request.unreleased = unreleased_;
    }
    request.heard_ms = surely_heard_;
    request_ = request.number;
    asked_ = what;
    ask_at_ = now + config_.retry_ms;
    heard_again_ = false;
    actions_.push_back(act_standby_ask{request});
}

void standby_fsm::ask_next(std::uint64_t now) {
    if (state_ == standby_state::proving || state_ == standby_state::synced)
        return ask(arbiter_request::kind::look, now);
    // A record that is gone, and a primary that said itself that its QEMU has ended: nobody else can have the
    // VM. Not one that was handed over: its source may have taken it back.
    ask(gone_ && proven_ && !handed_over_ ? arbiter_request::kind::restore : arbiter_request::kind::claim,
        now);
}

std::uint64_t standby_fsm::ask_at() const {
    if (request_ != 0)
        return no_deadline;
    switch (state_) {
    case standby_state::proving:
    case standby_state::synced:
    case standby_state::claiming:
        return ask_at_;
    case standby_state::taking_over:
        if (granted_term_ != 0 || (handed_over_ && !qemu_running_))
            return no_deadline;
        return awaits_source() ? std::max(ask_at_, last_heard_ + config_.heartbeat_budget_ms) : ask_at_;
    default:
        return no_deadline;
    }
}

void standby_fsm::on_arbiter(const arbiter_answer& answer, std::uint64_t now) {
    if (request_ == 0 || answer.number != request_)
        return;
    request_ = 0;
    if (asked_ == arbiter_request::kind::look)
        on_look(answer, now);
    else
        on_claimed(answer, now);
}

// What can't be read now could not be claimed either.
void standby_fsm::has_problem(const std::string& why) {
    if (why == waiting_for_)
        return;
    waiting_for_ = why;
    report_belief();
}

std::string standby_fsm::record_problem(const arbiter_answer& answer) const {
    if (answer.what != arbiter_answer::verdict::granted)
        return answer.why.empty() ? "the arbiter does not show the record" : answer.why;
    const bool is_primarys = recorded_ == 0 ? answer.term <= term_ : answer.term == recorded_;
    if (config_.shared_record && !is_primarys)
        return fmt::format(
            "the arbiter's record has term {} here, and {} for the primary: both hosts need the "
            "same arbiter",
            answer.term, recorded_);
    return {};
}

void standby_fsm::on_look(const arbiter_answer& answer, std::uint64_t now) {
    if (state_ == standby_state::proving) {
        const auto problem = record_problem(answer);
        ask_at_ = now + (problem.empty() ? config_.look_ms : config_.retry_ms);
        record_is_theirs_ = problem.empty();
        if (record_is_theirs_ && may_be_paired_at_ != 0)
            return has_problem(fmt::format("a heartbeat and its answer take longer than "
                                           "heartbeat-budget-ms ({} ms), so whether the primary lives is "
                                           "not known. Look at the network, or make it longer",
                                           config_.heartbeat_budget_ms));
        has_problem(problem);
        may_be_paired_at_ = 0;
        if (!record_is_theirs_)
            return;
        if (!config_.disks)
            return pair_with_the_living(now);
        if (!marks(disk_state::paired))
            mark(disk_state::paired, theirs_ ? theirs_->of : lineage());
        return;
    }
    if (state_ != standby_state::synced)
        return;
    ask_at_ = now + config_.look_ms;
    if (answer.what != arbiter_answer::verdict::granted)
        return has_problem(record_problem(answer));
    has_problem({});
    if (!config_.shared_record || answer.term < term_ || (answer.term == term_ && answer.paired))
        return;
    // A claim that was done, and whose answer was lost. Heartbeats have been answered since, so the primary
    // may speak; its next renewal is refused, it ends, and after its silence the claim is granted again.
    if (answer.term == term_ + 1 && answer.ours)
        return;
    // A primary that had `alone` recorded says UNPAIRED, or that it has let nothing out since.
    if (answer.term == term_ && linked_ && greeted_ && tells_belief_)
        return report_belief();
    out_of_date(answer.term == term_ ? "the primary goes on alone"
                                     : fmt::format("the arbiter's record has term {} by now", answer.term));
}

// Nothing else is missing.
void standby_fsm::pair_with_the_living(std::uint64_t now) {
    if (config_.shared_record || !echoes_)
        return be_paired();
    may_be_paired_at_ = now;
}

void standby_fsm::be_paired() {
    may_be_paired_at_ = 0;
    has_problem({});
    become(standby_state::synced, {});
    say(supervision_kind::paired, term_);
}

void standby_fsm::on_claimed(const arbiter_answer& answer, std::uint64_t now) {
    using verdict = arbiter_answer::verdict;
    const bool taking_over = state_ == standby_state::taking_over;
    switch (answer.what) {
    case verdict::granted:
        granted_term_ = answer.term;
        lease_until_ = answer.until_ms;
        waiting_for_.clear();
        if (!taking_over)
            take_over(
                fmt::format("the primary was silent for {} ms, and the arbiter granted the VM to this host",
                            now - last_heard_));
        return run_if_allowed();
    case verdict::refused:
        if (taking_over && !handed_over_)
            return end(false, "the arbiter does not allow the takeover: " + answer.why);
        return out_of_date("the arbiter does not allow a takeover: " + answer.why);
    case verdict::gone:
    case verdict::held:
    case verdict::unreachable:
        gone_ = answer.what == verdict::gone;
        if (unpaired_meanwhile_)
            return out_of_date("the primary goes on without this standby");
        waiting_for_ = answer.why;
        ask_at_ = answer.what == verdict::held ? std::max(answer.until_ms, now + 1) : now + config_.retry_ms;
        if (taking_over && is_proven() && (answer.what == verdict::held || (gone_ && !handed_over_)) &&
            asked_ == arbiter_request::kind::claim)
            return ask_next(now); // that one was asked without the proof, or there is no record
        if (!taking_over && heard_again_)
            heard_while_claiming(now);
        return;
    }
}

void standby_fsm::claim(const std::string& why, std::uint64_t now) {
    if (linked_) // a new connection is only taken when this one is gone
        drop_link(mirror::goodbye_reason::other, why);
    become(standby_state::claiming, why);
    ask(arbiter_request::kind::claim, now);
}

} // namespace kagemusha::ha
