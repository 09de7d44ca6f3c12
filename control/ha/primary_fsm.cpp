// SPDX-License-Identifier: GPL-2.0-or-later
//
// See primary_fsm.hpp. Here: states, the gate, the arbiter, time. primary_fsm_standby.cpp has the connection
// and the standby, primary_fsm_end.cpp the ends of a VM on this host and switchovers.
#include "control/ha/primary_fsm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace kagemusha::ha {

namespace {

constexpr std::uint64_t never = UINT64_MAX;
constexpr std::uint64_t hello_ms = 5000;
constexpr std::uint64_t look_ms = 500;  // leaving: whether the standby has the VM by now
constexpr std::uint64_t awake_ms = 500; // comparing: how often it looks whether it stood still

bool is_legal(primary_state from, primary_state to) {
    using s = primary_state;
    if (to == s::ended)
        return from != s::ended;
    switch (from) {
    case s::comparing:
        return to == s::opening;
    case s::opening:
        return to == s::comparing || to == s::alone;
    case s::alone:
        return to == s::replicating;
    case s::replicating:
        return to == s::announcing || to == s::alone;
    case s::announcing:
        return to == s::recording || to == s::alone || to == s::unpairing || to == s::leaving;
    case s::recording:
        return to == s::protecting || to == s::unpairing || to == s::leaving;
    case s::protecting:
        return to == s::unpairing || to == s::handing_over || to == s::leaving;
    case s::unpairing:
        return to == s::alone || to == s::leaving;
    case s::handing_over:
        return to == s::reclaiming || to == s::leaving;
    case s::reclaiming:
        return to == s::alone || to == s::leaving;
    case s::leaving:
    case s::ended:
        return false;
    }
    return false;
}

} // namespace

const char* to_text(primary_state state) {
    static constexpr const char* names[] = {"comparing",    "opening",    "alone",      "replicating",
                                            "announcing",   "recording",  "protecting", "unpairing",
                                            "handing-over", "reclaiming", "leaving",    "ended"};
    return names[static_cast<std::size_t>(state)];
}

const char* to_text(arbiter_request::kind what) {
    static constexpr const char* names[] = {"open",  "renew",   "alone", "pair",
                                            "claim", "release", "look",  "restore"};
    return names[static_cast<std::size_t>(what)];
}

const char* to_text(arbiter_answer::verdict what) {
    static constexpr const char* names[] = {"granted", "refused", "held", "unreachable", "gone"};
    return names[static_cast<std::size_t>(what)];
}

// The only place where the state changes.
void primary_fsm::become(primary_state to, std::string why) {
    if (!is_legal(state_, to)) {
        fmt::print(stderr, "kage: primary_fsm: illegal transition {} -> {}\n", to_text(state_), to_text(to));
        std::abort();
    }
    state_ = to;
    actions_.push_back(act_state{to, std::move(why)});
}

bool primary_fsm::next(primary_action& out) {
    if (actions_.empty())
        return false;
    out = std::move(actions_.front());
    actions_.pop_front();
    return true;
}

void primary_fsm::send(mirror::message m) {
    actions_.push_back(act_send{std::move(m)});
}

// ---- the gate

// While a standby may have the VM already, nothing opens it but `alone`.
void primary_fsm::open_gate(std::uint64_t until) {
    if (until <= gate_ || state_ == primary_state::handing_over || over())
        return;
    gate_ = until;
    actions_.push_back(act_gate{until});
}

void primary_fsm::close_gate() {
    gate_ = lease_until_ = 0;
    actions_.push_back(act_gate{0});
}

// ---- beginnings

void primary_fsm::start(std::uint64_t now) {
    actions_.push_back(act_state{state_, {}});
    if (config_.disks && !config_.anew && !why_not_start(mark_, config_.image).empty())
        return begin_comparing(now);
    begin_opening(now);
}

void primary_fsm::begin_opening(std::uint64_t now) {
    opening_by_ = now + config_.opening_ms;
    ask(arbiter_request::kind::open, now);
}

void primary_fsm::start_after_takeover(std::uint64_t term, std::uint64_t lease_until, std::uint64_t now,
                                       bool gpu_failed) {
    no_gpu_takeover_until_ = gpu_failed ? now + config_.gpu_takeover_ms : 0;
    term_ = reported_term_ = term;
    lease_until_ = lease_until;
    last_asked_ = now;
    degraded_ = "the VM was taken over here; give it a standby with `kage protect`";
    become(primary_state::alone, degraded_);
    open_gate(lease_until);
    connect_if_due(now);
}

// ---- the arbiter

void primary_fsm::ask(arbiter_request::kind what, std::uint64_t now, bool ends_alone) {
    using kind = arbiter_request::kind;
    arbiter_request request;
    request.what = what;
    request.number = ++last_number_;
    request.term = term_;
    if (what == kind::pair) {
        request.new_term = reported_term_;
        request.whom = paired_address_;
        pair_asked_ = true;
    }
    request.anew = what == kind::open && (config_.anew || partner_has_nothing_);
    if (what == kind::alone) {
        request.confirmed = confirmed_;
        request.whom = paired_address_;
        alone_asked_ = true;
    }
    // In unpairing it is to say `alone`, and in recording the pair is asked for once it is there again.
    request.paired = (what == kind::restore && state_ == primary_state::protecting) ||
                     (what == kind::renew && state_ == primary_state::announcing && !config_.shared_record);
    tells_next_ = what == kind::renew && request.paired;
    // The other states ask for what the record is to say.
    request.alone =
        (what == kind::renew && (state_ == primary_state::alone || state_ == primary_state::replicating ||
                                 state_ == primary_state::announcing)) ||
        ends_alone;
    request.heard_ms = surely_heard_;
    request_ = request.number;
    asked_ = what;
    last_asked_ = now;
    actions_.push_back(act_ask{request});
}

void primary_fsm::ask_next(std::uint64_t now) {
    using kind = arbiter_request::kind;
    if (request_ != 0)
        return;
    if (gone_ && !over() && may_restore())
        return ask(kind::restore, now);
    switch (state_) {
    case primary_state::opening:
        return ask(opened_ ? kind::renew : kind::open, now);
    case primary_state::recording:
        return ask(marked_ ? kind::pair : kind::renew, now);
    case primary_state::unpairing:
        if (now < ask_alone_at_)
            return;
        // Whether an unanswered `pair` was done is not known: once more first, it is granted again.
        // A host's own record (fence) does not leave that open.
        return ask(config_.shared_record && pair_asked_ && reported_term_ > term_ ? kind::pair : kind::alone,
                   now);
    case primary_state::reclaiming:
        return now < ask_alone_at_ ? void() : ask(kind::alone, now);
    case primary_state::leaving:
        if (record_pair_)
            return marked_ ? ask(kind::pair, now) : void();
        return ask(released_ ? kind::look : kind::release, now);
    case primary_state::comparing:
    case primary_state::handing_over: // the standby claims
    case primary_state::ended:
        return;
    default:
        return ask(kind::renew, now);
    }
}

// When ask_next() has something to ask.
std::uint64_t primary_fsm::ask_at() const {
    if (request_ != 0 || state_ == primary_state::comparing || state_ == primary_state::handing_over ||
        state_ == primary_state::ended)
        return never;
    const auto at = last_asked_ + config_.renew_ms;
    if (state_ == primary_state::unpairing || state_ == primary_state::reclaiming)
        return std::max(at, ask_alone_at_);
    if (state_ == primary_state::leaving) {
        if (record_pair_)
            return marked_ ? at : never;
        if (released_)
            return config_.shared_record ? std::max(at, last_asked_ + look_ms) : never;
    }
    return at;
}

void primary_fsm::renew_if_due(std::uint64_t now) {
    if (now >= ask_at())
        ask_next(now);
}

void primary_fsm::on_arbiter(const arbiter_answer& answer, std::uint64_t now) {
    using verdict = arbiter_answer::verdict;
    if (request_ == 0 || answer.number != request_ || state_ == primary_state::ended || compares_again(now))
        return;
    request_ = 0;
    arbiter_problem_ = answer.what == verdict::granted ? std::string() : answer.why;
    const auto asked = asked_;
    if (state_ == primary_state::leaving)
        return on_answer_leaving(asked, answer, now);
    if (answer.what == verdict::granted) {
        gone_ = false;
        lease_until_ = std::max(lease_until_, answer.until_ms);
        term_ = answer.term;
        reported_term_ = std::max(reported_term_, term_);
        // In reclaiming only `alone` says that the standby does not speak.
        if (state_ != primary_state::reclaiming || asked == arbiter_request::kind::alone)
            open_gate(lease_until_);
    }
    if (asked == arbiter_request::kind::open)
        return on_opened(answer, now);
    switch (answer.what) {
    case verdict::granted:
        return on_granted(asked, now);
    case verdict::refused:
        return on_refused(answer.why, now);
    case verdict::gone:
        return record_gone(answer.why, now);
    case verdict::held:
    case verdict::unreachable:
        return; // on_tick asks again
    }
}

void primary_fsm::on_opened(const arbiter_answer& answer, std::uint64_t now) {
    if (answer.what == arbiter_answer::verdict::granted) {
        opened_ = true;
        if (!config_.disks)
            return start_vm(now);
        // The life before may have ended with its host's cache full of what it wrote.
        return mark(started(mark_, config_.instance), true);
    }
    // It runs elsewhere, so an image of which nothing is known is not what ran last.
    if (answer.what == arbiter_answer::verdict::held && config_.disks && !config_.anew &&
        mark_.state == disk_state::unmarked) {
        mark(waits(mark_));
        return end(false, answer.why + "; " + why_not_start(waits(mark_), config_.image));
    }
    if (answer.what == arbiter_answer::verdict::refused || now >= opening_by_)
        end(false, answer.why);
}

void primary_fsm::start_vm(std::uint64_t now) {
    become(primary_state::alone, degraded_);
    actions_.push_back(act_start_qemu{});
    connect_if_due(now);
}

void primary_fsm::on_granted(arbiter_request::kind asked, std::uint64_t now) {
    using kind = arbiter_request::kind;
    switch (state_) {
    case primary_state::unpairing: // also after a record that was made again: what it says was decided before
    case primary_state::reclaiming:
        return asked == kind::alone ? alone_recorded(now) : ask_next(now);
    case primary_state::recording:
        if (asked != kind::pair)
            return marked_ ? ask_next(now) : void();
        pair_asked_ = false;
        degraded_.clear();
        standby_has_vm_ = true;
        resync_.protecting(now);
        return become(primary_state::protecting, {});
    case primary_state::announcing:
        return pair_told_ ? void() : tells_next_ ? report_pair() : ask_next(now);
    default:
        return;
    }
}

void primary_fsm::on_refused(const std::string& why, std::uint64_t) {
    // Only the standby that it was handed over to can have claimed it.
    if (state_ == primary_state::handing_over || state_ == primary_state::reclaiming)
        return gone_over();
    superseded(why);
}

// Nobody else was given the VM, but nobody knows any more that it is ours either.
void primary_fsm::record_gone(const std::string& why, std::uint64_t now) {
    if (!gone_) {
        gone_ = true;
        gone_at_ = now;
        lease_was_valid_ = now < lease_until_;
        answered_since_gone_ = false;
        close_gate();
    }
    arbiter_problem_ = why;
    if (may_restore())
        return ask_next(now);
    // A standby that runs it does not answer any more; one that waits for the arbiter gives it up.
    if (state_ == primary_state::reclaiming)
        unpair(degraded_, now);
}

bool primary_fsm::may_restore() const {
    if (!is_paired())
        return true; // nobody could claim it
    if (state_ == primary_state::handing_over || state_ == primary_state::reclaiming)
        return confirmed_; // it may claim without an expired lease
    return lease_was_valid_ || answered_since_gone_ || confirmed_;
}

void primary_fsm::superseded(const std::string& why) {
    actions_.push_back(act_kill_qemu{why});
    end(false, "this VM must not run here any more: " + why);
}

std::string primary_fsm::waiting_for(std::uint64_t now) const {
    if (state_ == primary_state::comparing)
        return degraded_;
    if (state_ == primary_state::alone && !mark_problem_.empty())
        return mark_problem_;
    if (gone_)
        return arbiter_problem_ + (may_restore() ? std::string()
                                                 : "; the standby may have taken over, so nothing leaves "
                                                   "this VM before it is heard");
    if (state_ == primary_state::unpairing || state_ == primary_state::reclaiming ||
        state_ == primary_state::recording)
        return arbiter_problem_;
    if (state_ == primary_state::handing_over)
        return "the standby has not said yet that it runs the VM";
    if (state_ == primary_state::alone && link_ == link_state::ready && resync_.failures() > 1 &&
        now < resync_.not_before())
        return fmt::format(
            "the standby failed {} times in a row: the next transfer of the VM's state begins in "
            "{} s; `kage protect` begins it now",
            resync_.failures(), (resync_.not_before() - now + 999) / 1000);
    return {};
}

// ---- time

void primary_fsm::on_tick(std::uint64_t now) {
    if (state_ == primary_state::ended)
        return;
    if (state_ == primary_state::comparing && now >= compare_by_)
        return compare_or_end(nullptr, now);
    compares_again(now);
    renew_if_due(now);
    ends_if_due(now);
    if (state_ == primary_state::ended)
        return;
    part_if_due(now);
    watch_link(now);
    heartbeat_if_due(now);
    unpair_if_due(now);
    if (state_ == primary_state::alone && !mark_problem_.empty() && now >= mark_again_at_)
        mark_alone();
    replicate_if_ready(now);
    connect_if_due(now);
}

std::uint64_t primary_fsm::deadline() const {
    using s = primary_state;
    if (state_ == s::ended)
        return never;
    std::uint64_t at = unpair_at_;
    if (state_ == s::comparing)
        at = compare_by_;
    if (state_ == s::comparing || (state_ == s::opening && partner_has_nothing_ && !opened_))
        at = std::min(at, awake_ms_ + awake_ms);
    if (is_parting() && may_part(part_by_))
        at = may_part(0) ? 0 : std::min(at, part_by_);
    if (state_ == s::alone && !mark_problem_.empty())
        at = std::min(at, mark_again_at_);
    if ((state_ == s::leaving && !standby_takes_over()) || (state_ == s::announcing && qemu_gone_))
        at = std::min(at, leave_by_);
    if (state_ == s::handing_over)
        at = std::min(at, hand_by_);
    if (stopping_ && (state_ == s::unpairing || state_ == s::reclaiming))
        at = std::min(at, stop_by_);
    if (state_ == s::alone && link_ == link_state::ready && !stopping_ && marking_.empty() &&
        mark_problem_.empty())
        at = std::min(at, resync_.not_before());
    at = std::min(at, ask_at());
    if (link_ == link_state::greeting)
        at = std::min(at, link_since_ + hello_ms);
    if (link_ >= link_state::greeted && state_ != s::comparing)
        at = std::min({at, last_beat_ + config_.heartbeat_ms, last_heard_ + silence_limit_ms()});
    if (state_ == s::protecting)
        at = std::min(at, killing_by_ == 0  ? last_heard_ + budget_ms_
                          : standby_has_vm_ ? killing_by_
                                            : never);
    if (link_ == link_state::down && config_.has_standby && state_ != s::opening)
        at = std::min(at, connect_at_);
    return at;
}

} // namespace kagemusha::ha
