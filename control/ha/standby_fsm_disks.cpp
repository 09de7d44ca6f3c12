// SPDX-License-Identifier: GPL-2.0-or-later
//
// standby_fsm: its disks' images: whether a primary may overwrite them, and their marks.
#include "control/ha/standby_fsm.hpp"

namespace kagemusha::ha {

using mirror::supervision;
using mirror::supervision_kind;

// READY: from then on the primary may send its state, which overwrites the images; and a QEMU that may have
// got some of it has to be started anew when the connection ends.
void standby_fsm::be_ready() {
    if (state_ != standby_state::listening || !linked_ || !described_ || only_compares_ || files_wanted_)
        return;
    if (config_.disks) {
        if ((tells_lineage_ && !theirs_) || !marking_.empty())
            return;
        const auto why = theirs_ ? why_not_overwrite(mark_, *theirs_) : why_not_overwrite(mark_);
        if (!why.empty() && !config_.overwrite)
            return refuse_primary(why);
        if (mark_.state != disk_state::copy)
            return mark(disk_state::copy, mark_.of);
    }
    waiting_for_.clear();
    become(standby_state::greeted, {});
    say(supervision_kind::ready, 0, replica_);
}

void standby_fsm::refuse_primary(const std::string& why) {
    note_refusal(why);
    drop_link(mirror::goodbye_reason::refused, why);
}

// It comes again: told once, and as long as it lasts in the status.
void standby_fsm::note_refusal(const std::string& why) {
    if (waiting_for_ == why)
        return;
    waiting_for_ = why;
    actions_.push_back(act_standby_state{state_, why});
}

void standby_fsm::on_lineage(const supervision& m) {
    theirs_ = parse_disk_mark(m.text);
    if (!theirs_)
        return drop_link(mirror::goodbye_reason::protocol_error, "a lineage of disks that is none");
    be_ready();
}

// What checkpoints wrote may be in this host's cache only, and the guest had flushed it where it ran.
void standby_fsm::mark(disk_state state, lineage of) {
    marking_.push_back({state, std::move(of)});
    actions_.push_back(act_standby_mark{marking_.back(), state == disk_state::newest});
}

void standby_fsm::on_marked(const std::string& problem, std::uint64_t now) {
    if (marking_.empty())
        return;
    auto done = std::move(marking_.front());
    marking_.pop_front();
    if (problem.empty())
        mark_ = done;
    if (!marking_.empty())
        return;
    switch (state_) {
    case standby_state::listening:
        if (!problem.empty() && linked_)
            return refuse_primary(problem); // it comes again
        return be_ready();
    case standby_state::proving:
        if (done.state != disk_state::paired || !record_is_theirs_)
            return;
        has_problem(problem);
        if (!problem.empty()) { // the next look at the record leads here again
            ask_at_ = now + config_.retry_ms;
            return;
        }
        return pair_with_the_living(now);
    case standby_state::taking_over:
        if (done.state != disk_state::newest)
            return run_if_allowed();
        waiting_for_ = problem;
        mark_again_at_ = problem.empty() ? 0 : now + config_.retry_ms;
        return run_if_allowed();
    default:
        return;
    }
}

} // namespace kagemusha::ha
