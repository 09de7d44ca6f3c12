// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/primary/primary_log.hpp"

#include <cassert>
#include <optional>

namespace kagemusha::mirror {

namespace {

// A standby may say any number; this one is as good as infinite and can be added to.
constexpr std::uint64_t most_that_counts = std::uint64_t{1} << 62;

} // namespace

void primary_log::begin(const hello& standby) {
    hold_bytes_ = std::min(standby.hold_bytes, most_that_counts);
    hold_entries_ = std::min(standby.hold_entries, most_that_counts);
}

void primary_log::end() {
    if (congested_) {
        actions_.push(act_congestion{false});
    }
    last_ever_ = std::max(last_ever_, appended_);
    first_ = appended_ = sent_ = dropped_ = 0;
    log_.restart(1);
    appended_hold_ = sent_hold_ = appended_log_ = sent_log_ = dropped_log_ = 0;
    followups_.clear();
    acked_ = {};
    congested_ = too_far_behind_ = false;
    stalled_since_ = never;
    synced_at_ = 0;
    synced_sent_ = false;
    synced_mark_ = 0;
    times_.clear();
    unsent_marks_.clear();
    sent_marks_.clear();
    marked_ = committed_ = 0;
    marked_hold_ = committed_hold_ = sent_epoch_ = 0;
    epoch_ends_ = never;
    epoch_wanted_ = false;
    use_checkpoints(config_.epoch_ms == 0);
}

// ---- what a standby says

std::string primary_log::on_ack(const ack& a) {
    if (a.received < acked_.received || a.executed < acked_.executed ||
        a.committed_epoch < acked_.committed_epoch || a.freed_bytes < acked_.freed_bytes ||
        a.freed_entries < acked_.freed_entries || a.complete_checkpoint < acked_.complete_checkpoint) {
        return "an acknowledgement went backwards";
    }
    if (a.received > sent_ || (a.received != 0 && a.received < first_)) {
        return "it acknowledged entry " + std::to_string(a.received) + " as received, the last one sent is " +
               std::to_string(sent_);
    }
    if (a.executed > a.received) {
        return "it acknowledged entry " + std::to_string(a.executed) + " as executed and only " +
               std::to_string(a.received) + " as received";
    }
    if (a.freed_bytes > sent_hold_ || a.freed_entries > sent_count()) {
        return "it freed more than was sent";
    }
    if (a.committed_epoch != acked_.committed_epoch &&
        (sent_marks_.empty() || a.committed_epoch < sent_marks_.front().epoch ||
         a.committed_epoch > sent_epoch_)) {
        return "it committed epoch " + std::to_string(a.committed_epoch) +
               ", the last one that was closed is " + std::to_string(sent_epoch_);
    }
    if (a.complete_checkpoint > sent_epoch_) {
        return "it has all of epoch " + std::to_string(a.complete_checkpoint) +
               ", the last one that was closed is " + std::to_string(sent_epoch_);
    }
    while (!sent_marks_.empty() && sent_marks_.front().epoch <= a.committed_epoch) {
        committed_ = sent_marks_.front().sequence;
        committed_hold_ = sent_marks_.front().hold;
        sent_marks_.pop_front();
    }
    if (committed_ > a.received) {
        return "it committed an epoch whose entries it has not received";
    }
    if (a.executed > committed_) {
        return "it executed entry " + std::to_string(a.executed) + " before its epoch was committed";
    }
    if (a.freed_bytes > committed_hold_ || a.freed_entries > committed_count()) {
        return "it freed entries before their epoch was committed";
    }
    if (a.freed_bytes != acked_.freed_bytes || a.freed_entries != acked_.freed_entries) {
        stalled_since_ = never;
    }
    acked_ = a;
    while (times_.size() > 1 && times_[1].first <= acked_.received + 1) {
        times_.pop_front();
    }
    if (!times_.empty() && appended_ == acked_.received) {
        times_.clear();
    }
    drop(acked_.received);
    check_congestion();
    return {};
}

void primary_log::drop(log_sequence up_to) {
    if (up_to <= dropped_) {
        return;
    }
    dropped_log_ = log_[up_to].log;
    while (log_.first() <= up_to) {
        log_.pop_front();
    }
    dropped_ = up_to;
    actions_.push(act_drop_log{up_to});
}

std::string primary_log::on_digest_result(const digest_result& r, std::uint64_t now) {
    if (r.sequence == 0 || r.sequence > sent_) {
        return "it compared digests of entry " + std::to_string(r.sequence) + ", which was not sent";
    }
    // None: the entry's file has ended while the answer was under way.
    const std::optional<std::uint64_t> hashes = followups_.take_comparison(r.sequence);
    if (!hashes) {
        return {};
    }
    std::uint64_t least = 0;
    for (const std::uint64_t index : r.different) {
        if (index < least || index >= *hashes) {
            return "it found a difference in hash " + std::to_string(index) + " of " +
                   std::to_string(*hashes);
        }
        least = index + 1;
    }
    check_behind(now);
    digests_compared_ += *hashes;
    digests_different_ += r.different.size();
    actions_.push(act_digest_result{r});
    return {};
}

std::string primary_log::on_entry(const entry_meta& meta, std::uint64_t now) {
    if (first_ == 0) {
        assert(meta.kind == entry_kind::reset && "a state transfer begins with a reset");
        assert(meta.sequence > last_ever_ && "numbers are never used twice");
        first_ = meta.sequence;
        sent_ = dropped_ = marked_ = committed_ = first_ - 1;
        log_.restart(first_);
    } else {
        assert(meta.sequence == appended_ + 1 && "numbers have no gaps");
    }
    const std::uint64_t hold = meta.stream_bytes + meta.content_bytes;
    assert(hold >= meta.stream_bytes);
    if (hold > hold_bytes_) {
        appended_ = meta.sequence;
        return "one request of the guest needs " + std::to_string(hold) +
               " bytes, and the standby can hold " + std::to_string(hold_bytes_) + ": give it a larger hold";
    }
    appended_ = meta.sequence;
    appended_hold_ += hold;
    appended_log_ += (meta.flags & entry_late_content) != 0 ? meta.stream_bytes : hold;
    log_.push_back({appended_hold_, appended_log_});
    if (times_.empty() || times_.back().second != now) {
        times_.emplace_back(appended_, now);
    }
    if (meta.kind != entry_kind::submit || meta.flags != 0) {
        followups_.on_entry(meta, sent_);
    }
    check_congestion();
    return {};
}

// How far the guest is ahead of the last commit matters only where nobody but a checkpoint closes epochs:
// an epoch that does not fit into the standby could never be committed.
void primary_log::check_congestion() {
    const std::uint64_t bytes = log_bytes(), entries = appended_ - dropped_;
    const std::uint64_t ahead = checkpoints_ ? appended_hold_ - committed_hold_ : 0;
    const std::uint64_t entries_ahead = checkpoints_ ? appended_ - committed_ : 0;
    if (!congested_ && (too_far_behind_ || bytes >= config_.log_bytes || entries >= config_.log_entries ||
                        ahead > hold_bytes_ / 2 || entries_ahead > hold_entries_ / 2)) {
        congested_ = true;
        actions_.push(act_congestion{true});
    } else if (congested_ && !too_far_behind_ && bytes <= config_.log_bytes / 2 &&
               entries <= config_.log_entries / 2 && ahead <= hold_bytes_ / 4 &&
               entries_ahead <= hold_entries_ / 4) {
        congested_ = false;
        actions_.push(act_congestion{false});
    }
    if (checkpoints_ && !epoch_wanted_ && appended_ > marked_ &&
        (ahead > hold_bytes_ / 4 || entries_ahead > hold_entries_ / 4)) {
        want_epoch();
    }
}

std::uint64_t primary_log::behind(std::uint64_t now) const {
    const std::uint64_t since = followups_.unanswered_since();
    return since == never ? 0 : now - std::min(now, since);
}

void primary_log::check_behind(std::uint64_t now) {
    const std::uint64_t ms = behind(now), most = config_.max_behind_ms;
    const bool too_far = most != 0 && (too_far_behind_ ? ms != 0 && ms >= most / 2 : ms >= most);
    if (too_far != too_far_behind_) {
        too_far_behind_ = too_far;
        check_congestion();
    }
}

bool primary_log::held_up_by_standby() const {
    return sent_ < appended_ && (log_[sent_ + 1].hold > acked_.freed_bytes + hold_bytes_ ||
                                 sent_count() + 1 > acked_.freed_entries + hold_entries_);
}

// Hands to the link what it and the standby have room for.
std::string primary_log::pump(std::uint64_t now) {
    if (first_ == 0) {
        return {};
    }
    while (link_queued_ < config_.window_bytes) {
        // By turns: neither may starve the other.
        if (content_turn_ && send_content()) {
            content_turn_ = false;
        } else if (send_entries(now)) {
            content_turn_ = true;
        } else if (!send_content()) {
            break;
        }
    }
    return pressure(now);
}

bool primary_log::send_content() {
    content piece;
    if (!followups_.next_content(piece)) {
        return false;
    }
    link_queued_ += piece.bytes;
    sent_bytes_ += piece.bytes;
    actions_.push(act_send_content{piece});
    return true;
}

bool primary_log::send_entries(std::uint64_t now) {
    if (sent_ == appended_) {
        return false;
    }
    const std::uint64_t most_hold = acked_.freed_bytes + hold_bytes_;
    const log_sequence most_sequence =
        std::min(appended_, first_ - 1 + std::min(acked_.freed_entries + hold_entries_, most_that_counts));
    log_sequence last = sent_;
    while (last < most_sequence) {
        const logged& e = log_[last + 1];
        // One entry may be larger than the window.
        const std::uint64_t queued = link_queued_ + (e.log - sent_log_);
        if (e.hold > most_hold || (queued > config_.window_bytes && (link_queued_ != 0 || last != sent_))) {
            break;
        }
        ++last;
    }
    if (last == sent_) {
        return false;
    }
    actions_.push(act_send_entries{sent_ + 1, last});
    const logged& e = log_[last];
    link_queued_ += e.log - sent_log_;
    sent_bytes_ += e.log - sent_log_;
    sent_log_ = e.log;
    sent_hold_ = e.hold;
    sent_ = last;
    followups_.on_sent(sent_);
    send_synced();
    while (!unsent_marks_.empty() && unsent_marks_.front().sequence <= sent_) {
        send_mark(unsent_marks_.front());
        unsent_marks_.pop_front();
    }
    if (!checkpoints_ && epoch_ends_ == never && sent_ > marked_) {
        epoch_ends_ = now + config_.epoch_ms;
    }
    return true;
}

void primary_log::send_synced() {
    if (synced_at_ != 0 && !synced_sent_ && synced_at_ <= sent_) {
        synced_sent_ = true;
        actions_.push(act_send{synced{synced_at_}});
        if (!checkpoints_) {
            close_at(sent_, sent_hold_);
        } else if (!epoch_wanted_) {
            want_epoch();
        }
    }
}

// ---- epochs

void primary_log::send_mark(const closed_epoch& e) {
    actions_.push(act_send{marker{.epoch = e.epoch, .sequence = e.sequence, .checkpoint = e.checkpoint}});
    sent_marks_.push_back(e);
    sent_epoch_ = e.epoch;
    if (synced_sent_ && synced_mark_ == 0) {
        synced_mark_ = e.epoch;
    }
}

void primary_log::close_at(log_sequence sequence, std::uint64_t hold) {
    ++epoch_;
    epoch_ends_ = never;
    epoch_wanted_ = false;
    if (first_ == 0 || sequence < first_) {
        return; // nothing of this run belongs to it
    }
    marked_ = sequence;
    marked_hold_ = hold;
    const closed_epoch e{epoch_, sequence, hold, checkpoints_};
    if (sequence <= sent_) {
        send_mark(e);
    } else {
        unsent_marks_.push_back(e);
    }
}

std::uint64_t primary_log::close_epoch(std::uint64_t now) {
    if (checkpoints_) {
        close_at(appended_, appended_hold_);
    } else {
        pump(now); // a failure is found again by the next one
        close_at(sent_, sent_hold_);
    }
    return epoch_;
}

// What was sent belongs to an epoch that time closes, if it did not before: no checkpoint covers it.
void primary_log::use_checkpoints(bool on) {
    if (on == checkpoints_) {
        return;
    }
    if (on && sent_ > marked_) {
        close_at(sent_, sent_hold_);
    }
    checkpoints_ = on;
    if (!on && sent_ != 0) {
        close_at(sent_, sent_hold_); // even if it is empty: nothing waits for the guest's answers any more
    }
    checkpoints_from_ = marked_ + 1;
    epoch_ends_ = never;
    epoch_wanted_ = false;
}

void primary_log::on_standby_full(std::uint64_t now) {
    if (!checkpoints_) {
        pump(now);
        if (sent_ > marked_) {
            close_at(sent_, sent_hold_);
        }
    } else if (!epoch_wanted_ && appended_ > marked_) {
        want_epoch();
    }
}

// An epoch is closed early rather than that the standby is full of what it may not run.
std::string primary_log::pressure(std::uint64_t now) {
    if (!held_up_by_standby()) {
        stalled_since_ = never;
    } else if (stalled_since_ == never) {
        stalled_since_ = now;
    }
    if (!checkpoints_) {
        const bool much = sent_hold_ - marked_hold_ > hold_bytes_ / 2 || sent_ - marked_ > hold_entries_ / 2;
        if (sent_ > marked_ && (much || held_up_by_standby())) {
            close_at(sent_, sent_hold_);
        }
        return {};
    }
    // Nothing that was sent can end any more, and the next entries do not fit.
    if (!unsent_marks_.empty() && held_up_by_standby() && sent_marks_.empty() &&
        acked_.freed_bytes == committed_hold_ && acked_.freed_entries == committed_count()) {
        return "epoch " + std::to_string(unsent_marks_.front().epoch) + " needs " +
               std::to_string(unsent_marks_.front().hold - committed_hold_) +
               " bytes, and the standby can hold " + std::to_string(hold_bytes_) + ": give it a larger hold";
    }
    return {};
}

void primary_log::want_epoch() {
    epoch_wanted_ = true;
    actions_.push(act_epoch_wanted{});
}

// ---- what the device tells of entries

void primary_log::on_outcome(log_sequence entry, bool canceled, std::int32_t result) {
    followups_.on_outcome(entry, canceled, result, sent_);
    check_congestion();
}

void primary_log::on_late_content(log_sequence entry, std::uint32_t payload, std::uint64_t bytes) {
    followups_.on_late_content(entry, payload, bytes, sent_);
    check_congestion();
}

void primary_log::on_digests(log_sequence entry, std::vector<std::uint64_t> hashes, std::uint64_t now) {
    followups_.on_digests(entry, std::move(hashes), sent_, now);
}

void primary_log::on_synced(log_sequence last) {
    assert(synced_at_ == 0 && last >= first_ && last <= appended_ && last != 0 &&
           "synced() comes once, for an entry of this state transfer");
    synced_at_ = last;
    send_synced();
}

// ---- time

std::string primary_log::on_tick(std::uint64_t now) {
    if (stalled_since_ != never && now >= stalled_since_ + config_.stall_budget_ms) {
        return "the standby is full and has freed nothing for " + std::to_string(now - stalled_since_) +
               " ms: what it holds may wait for the guest; a larger hold would help";
    }
    check_behind(now);
    std::string why = pump(now);
    if (why.empty() && now >= epoch_ends_) {
        close_at(sent_, sent_hold_);
    }
    return why;
}

std::uint64_t primary_log::next_tick() const {
    const std::uint64_t since = followups_.unanswered_since();
    const bool watched = config_.max_behind_ms != 0 && !too_far_behind_ && since != never;
    return std::min({epoch_ends_, stalled_since_ == never ? never : stalled_since_ + config_.stall_budget_ms,
                     watched ? since + config_.max_behind_ms : never});
}

void primary_log::fill(primary_status& s, std::uint64_t now) const {
    s.epoch = epoch_;
    s.committed_epoch = acked_.committed_epoch;
    s.complete_checkpoint = acked_.complete_checkpoint;
    s.checkpoints = checkpoints_;
    s.checkpoints_from = checkpoints_from_;
    s.appended = appended_;
    s.sent = sent_;
    s.received = acked_.received;
    s.executed = acked_.executed;
    s.log_bytes = log_bytes();
    s.log_entries = appended_ - dropped_;
    s.late_bytes = followups_.waiting_bytes();
    s.open_entries = followups_.size();
    s.lag_ms = times_.empty() ? 0 : now - std::min(now, times_.front().second);
    s.behind_ms = behind(now);
    s.sent_bytes = sent_bytes_;
    s.digests_compared = digests_compared_;
    s.digests_different = digests_different_;
}

} // namespace kagemusha::mirror
