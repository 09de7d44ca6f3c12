// SPDX-License-Identifier: GPL-2.0-or-later
//
// primary_fsm: the marks of the disks' images, and whether a VM may be started from them.
#include "control/ha/primary_fsm.hpp"

#include <fmt/format.h>

#include <utility>

namespace kagemusha::ha {

using mirror::supervision;
using mirror::supervision_kind;

namespace {

constexpr std::uint64_t mark_again_ms = 1000; // after one that could not be written
// Comparing: on_tick is due twice in it (deadline()). In less nobody starts the VM elsewhere and stops it.
constexpr std::uint64_t stood_still_ms = 1000;

} // namespace

// ---- may it start?

void primary_fsm::begin_comparing(std::uint64_t now) {
    const auto why = why_not_start(mark_, config_.image);
    if (mark_.state != disk_state::protected_ || !config_.has_standby)
        return end(false, why);
    compare_by_ = now + config_.opening_ms;
    awake_ms_ = now;
    degraded_ = why + ". Waiting for the standby's supervisor, to compare the disks";
    become(primary_state::comparing, degraded_);
    connect_if_due(now);
}

// A supervisor that stood still reads what may be old by now, or acts on it: meanwhile a person may have
// started the VM on the other host. So it asks again.
bool primary_fsm::compares_again(std::uint64_t now) {
    const bool has_compared = state_ == primary_state::opening && partner_has_nothing_ && !opened_;
    if (state_ != primary_state::comparing && !has_compared)
        return false;
    if (now < std::exchange(awake_ms_, now) + stood_still_ms)
        return false;
    if (has_compared) {
        request_ = 0; // its answer, if any comes, is nobody's
        partner_has_nothing_ = false;
        connect_at_ = now;
        begin_comparing(now);
    } else if (link_ >= link_state::greeting) {
        drop_link(mirror::goodbye_reason::other, "this supervisor stood still: what was said may be old",
                  now);
    }
    return true;
}

// `m`: what the standby has; none: it can't be asked.
void primary_fsm::compare_or_end(const supervision* m, std::uint64_t now) {
    if (!m)
        return end(false, why_not_start(mark_, config_.image) +
                              (tells_lineage_ || link_ < link_state::greeted
                                   ? ". The standby's supervisor does not answer, so the disks could not be "
                                     "compared: " +
                                         lost_why_
                                   : ". The standby's supervisor is of a release that does not say what its "
                                     "disks have"));
    const auto theirs = parse_disk_mark(m->text);
    if (!theirs)
        return drop_link(mirror::goodbye_reason::protocol_error, "a lineage of disks that is none", now);
    const auto why = why_not_start(mark_, *theirs, m->term != 0);
    if (m->term != 0) { // it takes over, or loses that right: ask again
        degraded_ = why;
        return drop_link(mirror::goodbye_reason::shutdown, why, now);
    }
    if (!why.empty())
        return end(false, why);
    drop_link(mirror::goodbye_reason::shutdown, "the VM is started from the primary's disks", now);
    partner_has_nothing_ = true;
    degraded_ = "no standby has been there yet";
    become(primary_state::opening, "the standby's disks are not newer");
    begin_opening(now);
}

// ---- marks

void primary_fsm::mark(disk_mark next, bool flush) {
    marking_.push_back(next);
    actions_.push_back(act_mark{std::move(next), flush});
}

bool primary_fsm::may_be_behind() const {
    if (!config_.disks)
        return false;
    return last_mark().state == disk_state::protected_ || generation_told_;
}

// What the standby has from now on is of an older generation.
void primary_fsm::mark_alone() {
    mark_problem_.clear();
    generation_told_ = false;
    mark(gone_on(last_mark(), config_.instance));
}

void primary_fsm::on_marked(const std::string& problem, std::uint64_t now) {
    if (marking_.empty())
        return;
    const auto done = std::move(marking_.front());
    marking_.pop_front();
    if (problem.empty()) {
        mark_ = done;
        report_lineage();
    }
    const bool is_pairs = done.state == disk_state::protected_ && marking_.empty();
    switch (state_) {
    case primary_state::opening:
        return problem.empty() ? start_vm(now) : end(false, problem);
    case primary_state::alone:
        if (marking_.empty()) {
            mark_problem_ = problem;
            mark_again_at_ = now + mark_again_ms;
        }
        return replicate_if_ready(now);
    case primary_state::recording:
        if (!is_pairs)
            return;
        if (!problem.empty())
            return lost_standby(problem, now);
        marked_ = true;
        return ask_next(now);
    case primary_state::leaving:
        if (!is_pairs || !record_pair_)
            return;
        if (!problem.empty())
            return end(false, how_ + "; " + problem);
        marked_ = true;
        return ask_next(now);
    default:
        return;
    }
}

// A standby overwrites its disks when it knows that the ones here continue them. Not before it is known that
// the VM is ours: one that took it over may have the newest disks under a mark without a lineage.
void primary_fsm::report_lineage() {
    if (config_.disks && tells_lineage_ && link_ >= link_state::greeted && state_ == primary_state::alone)
        say(supervision_kind::lineage, 0, to_text(mark_));
}

} // namespace kagemusha::ha
