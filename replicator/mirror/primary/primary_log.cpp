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
    if (run_.congested)
        actions_.push(act_congestion{false});
    last_ever_ = std::max(last_ever_, run_.appended);
    run_ = {};
    followups_.clear();
    use_checkpoints(config_.epoch_ms == 0);
}

// ---- what a standby says

std::string primary_log::on_ack(const ack& a) {
    if (a.received < run_.acked.received || a.executed < run_.acked.executed ||
        a.committed_epoch < run_.acked.committed_epoch || a.freed_bytes < run_.acked.freed_bytes ||
        a.freed_entries < run_.acked.freed_entries ||
        a.complete_checkpoint < run_.acked.complete_checkpoint) {
        return "an acknowledgement went backwards";
    }
    if (a.received > run_.sent || (a.received != 0 && a.received < run_.first)) {
        return "it acknowledged entry " + std::to_string(a.received) + " as received, the last one sent is " +
               std::to_string(run_.sent);
    }
    if (a.executed > a.received) {
        return "it acknowledged entry " + std::to_string(a.executed) + " as executed and only " +
               std::to_string(a.received) + " as received";
    }
    if (a.freed_bytes > run_.sent_hold || a.freed_entries > sent_count())
        return "it freed more than was sent";
    if (a.committed_epoch != run_.acked.committed_epoch &&
        (run_.sent_marks.empty() || a.committed_epoch < run_.sent_marks.front().epoch ||
         a.committed_epoch > run_.sent_epoch)) {
        return "it committed epoch " + std::to_string(a.committed_epoch) +
               ", the last one that was closed is " + std::to_string(run_.sent_epoch);
    }
    if (a.complete_checkpoint > run_.sent_epoch) {
        return "it has all of epoch " + std::to_string(a.complete_checkpoint) +
               ", the last one that was closed is " + std::to_string(run_.sent_epoch);
    }
    while (!run_.sent_marks.empty() && run_.sent_marks.front().epoch <= a.committed_epoch) {
        run_.committed = run_.sent_marks.front().sequence;
        run_.committed_hold = run_.sent_marks.front().hold;
        run_.sent_marks.pop_front();
    }
    if (run_.committed > a.received)
        return "it committed an epoch whose entries it has not received";
    if (a.executed > run_.committed)
        return "it executed entry " + std::to_string(a.executed) + " before its epoch was committed";
    if (a.freed_bytes > run_.committed_hold || a.freed_entries > committed_count())
        return "it freed entries before their epoch was committed";
    if (a.freed_bytes != run_.acked.freed_bytes || a.freed_entries != run_.acked.freed_entries)
        run_.stalled_since = never;
    run_.acked = a;
    run_.unexecuted.on_executed(a.executed, run_.appended);
    while (run_.times.size() > 1 && run_.times[1].first <= run_.acked.received + 1)
        run_.times.pop_front();
    if (!run_.times.empty() && run_.appended == run_.acked.received)
        run_.times.clear();
    drop(run_.acked.received);
    check_congestion();
    return {};
}

void primary_log::drop(log_sequence up_to) {
    if (up_to <= run_.dropped)
        return;
    run_.dropped_log = run_.log[up_to].log;
    while (run_.log.first() <= up_to)
        run_.log.pop_front();
    run_.dropped = up_to;
    actions_.push(act_drop_log{up_to});
}

std::string primary_log::on_digest_result(const digest_result& r, std::uint64_t now) {
    if (r.sequence == 0 || r.sequence > run_.sent)
        return "it compared digests of entry " + std::to_string(r.sequence) + ", which was not sent";
    // None: the entry's file has ended while the answer was under way.
    const std::optional<std::uint64_t> hashes = followups_.take_comparison(r.sequence);
    if (!hashes)
        return {};
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
    if (run_.first == 0) {
        assert(meta.kind == entry_kind::reset && "a state transfer begins with a reset");
        assert(meta.sequence > last_ever_ && "numbers are never used twice");
        run_.first = meta.sequence;
        run_.sent = run_.dropped = run_.marked = run_.committed = run_.first - 1;
        run_.log.restart(run_.first);
    } else {
        assert(meta.sequence == run_.appended + 1 && "numbers have no gaps");
    }
    const std::uint64_t hold = meta.stream_bytes + meta.content_bytes;
    assert(hold >= meta.stream_bytes);
    if (hold > hold_bytes_) {
        run_.appended = meta.sequence;
        return "one request of the guest needs " + std::to_string(hold) +
               " bytes, and the standby can hold " + std::to_string(hold_bytes_) + ": give it a larger hold";
    }
    run_.appended = meta.sequence;
    run_.appended_hold += hold;
    run_.appended_log += (meta.flags & entry_late_content) != 0 ? meta.stream_bytes : hold;
    run_.log.push_back({run_.appended_hold, run_.appended_log});
    if (run_.times.empty() || run_.times.back().second != now)
        run_.times.emplace_back(run_.appended, now);
    run_.unexecuted.on_entry(run_.appended, now);
    if (meta.kind != entry_kind::submit || meta.flags != 0)
        followups_.on_entry(meta, run_.sent);
    check_congestion();
    return {};
}

// How far the guest is ahead of the last commit matters only where nobody but a checkpoint closes epochs:
// an epoch that does not fit into the standby could never be committed.
void primary_log::check_congestion() {
    const std::uint64_t bytes = log_bytes(), entries = run_.appended - run_.dropped;
    const std::uint64_t ahead = checkpoints_ ? run_.appended_hold - run_.committed_hold : 0;
    const std::uint64_t entries_ahead = checkpoints_ ? run_.appended - run_.committed : 0;
    if (!run_.congested &&
        (run_.too_far_behind || bytes >= config_.log_bytes || entries >= config_.log_entries ||
         ahead > hold_bytes_ / 2 || entries_ahead > hold_entries_ / 2)) {
        run_.congested = true;
        actions_.push(act_congestion{true});
    } else if (run_.congested && !run_.too_far_behind && bytes <= config_.log_bytes / 2 &&
               entries <= config_.log_entries / 2 && ahead <= hold_bytes_ / 4 &&
               entries_ahead <= hold_entries_ / 4) {
        run_.congested = false;
        actions_.push(act_congestion{false});
    }
    if (checkpoints_ && !run_.epoch_wanted && run_.appended > run_.marked &&
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
    const bool too_far = most != 0 && (run_.too_far_behind ? ms != 0 && ms >= most / 2 : ms >= most);
    const std::uint64_t since = run_.too_far_since;
    if (too_far != run_.too_far_behind) {
        run_.too_far_behind = too_far;
        run_.too_far_since = now;
        check_congestion();
    }
    if (too_far && !run_.lag_reported && now - run_.too_far_since >= lag_note_ms) {
        run_.lag_reported = true;
        actions_.push(act_lagging{lag::guest_waits, ms});
    } else if (run_.lag_reported && !too_far) {
        run_.lag_reported = false;
        actions_.push(act_lagging{lag::over, now - since});
    }
}

bool primary_log::standby_could_go_on() const {
    return !run_.unexecuted.empty() && !followups_.awaits_this_side(run_.unexecuted.oldest());
}

std::uint64_t primary_log::unexecuted_ms(std::uint64_t now) const {
    return standby_could_go_on() ? now - std::min(now, run_.unexecuted.since()) : 0;
}

bool primary_log::keeps_up(log_sequence up_to, std::uint64_t now) const {
    if (config_.max_behind_ms == 0 || !standby_could_go_on())
        return true;
    return run_.acked.executed >= up_to && unexecuted_ms(now) <= config_.max_behind_ms;
}

void primary_log::note_through(log_sequence entry, std::uint64_t now) {
    if (!followups_.awaits_this_side(entry))
        run_.unexecuted.on_through(entry, now);
}

bool primary_log::held_up_by_standby() const {
    return run_.sent < run_.appended &&
           (run_.log[run_.sent + 1].hold > run_.acked.freed_bytes + hold_bytes_ ||
            sent_count() + 1 > run_.acked.freed_entries + hold_entries_);
}

// Hands to the link what it and the standby have room for.
std::string primary_log::pump(std::uint64_t now) {
    if (run_.first == 0)
        return {};
    while (link_queued_ < config_.window_bytes) {
        // By turns: neither may starve the other.
        if (content_turn_ && send_content())
            content_turn_ = false;
        else if (send_entries(now))
            content_turn_ = true;
        else if (!send_content())
            break;
    }
    return pressure(now);
}

bool primary_log::send_content() {
    content piece;
    if (!followups_.next_content(piece))
        return false;
    link_queued_ += piece.bytes;
    sent_bytes_ += piece.bytes;
    actions_.push(act_send_content{piece});
    return true;
}

bool primary_log::may_send_built(std::uint64_t bytes) {
    const bool room = link_queued_ + bytes <= max_built_queue_bytes;
    if (room) {
        link_queued_ += bytes;
        sent_bytes_ += bytes;
        built_bytes_ += bytes;
    }
    ++(room ? built_sent_ : built_dropped_);
    return room;
}

bool primary_log::send_entries(std::uint64_t now) {
    if (run_.sent == run_.appended)
        return false;
    const std::uint64_t most_hold = run_.acked.freed_bytes + hold_bytes_;
    const log_sequence most_sequence = std::min(
        run_.appended, run_.first - 1 + std::min(run_.acked.freed_entries + hold_entries_, most_that_counts));
    log_sequence last = run_.sent;
    while (last < most_sequence) {
        const logged& e = run_.log[last + 1];
        // One entry may be larger than the window.
        const std::uint64_t queued = link_queued_ + (e.log - run_.sent_log);
        if (e.hold > most_hold || (queued > config_.window_bytes && (link_queued_ != 0 || last != run_.sent)))
            break;
        ++last;
    }
    if (last == run_.sent)
        return false;
    actions_.push(act_send_entries{run_.sent + 1, last});
    const logged& e = run_.log[last];
    link_queued_ += e.log - run_.sent_log;
    sent_bytes_ += e.log - run_.sent_log;
    run_.sent_log = e.log;
    run_.sent_hold = e.hold;
    run_.sent = last;
    followups_.on_sent(run_.sent);
    send_synced();
    while (!run_.unsent_marks.empty() && run_.unsent_marks.front().sequence <= run_.sent) {
        send_mark(run_.unsent_marks.front());
        run_.unsent_marks.pop_front();
    }
    if (!checkpoints_ && run_.epoch_ends == never && run_.sent > run_.marked)
        run_.epoch_ends = now + config_.epoch_ms;
    return true;
}

void primary_log::send_synced() {
    if (run_.synced_at != 0 && !run_.synced_sent && run_.synced_at <= run_.sent) {
        run_.synced_sent = true;
        actions_.push(act_send{synced{run_.synced_at}});
        if (!checkpoints_)
            close_at(run_.sent, run_.sent_hold);
        else if (!run_.epoch_wanted)
            want_epoch();
    }
}

// ---- epochs

void primary_log::send_mark(const closed_epoch& e) {
    actions_.push(act_send{marker{.epoch = e.epoch, .sequence = e.sequence, .checkpoint = e.checkpoint}});
    run_.sent_marks.push_back(e);
    run_.sent_epoch = e.epoch;
    if (run_.synced_sent && run_.synced_mark == 0)
        run_.synced_mark = e.epoch;
}

void primary_log::close_at(log_sequence sequence, std::uint64_t hold) {
    ++epoch_;
    run_.epoch_ends = never;
    run_.epoch_wanted = false;
    if (run_.first == 0 || sequence < run_.first)
        return; // nothing of this run belongs to it
    run_.marked = sequence;
    run_.marked_hold = hold;
    const closed_epoch e{epoch_, sequence, hold, checkpoints_};
    if (sequence <= run_.sent)
        send_mark(e);
    else
        run_.unsent_marks.push_back(e);
}

std::uint64_t primary_log::close_epoch(std::uint64_t now) {
    if (checkpoints_) {
        close_at(run_.appended, run_.appended_hold);
    } else {
        pump(now); // a failure is found again by the next one
        close_at(run_.sent, run_.sent_hold);
    }
    return epoch_;
}

// What was sent belongs to an epoch that time closes, if it did not before: no checkpoint covers it.
void primary_log::use_checkpoints(bool on) {
    if (on == checkpoints_)
        return;
    if (on && run_.sent > run_.marked)
        close_at(run_.sent, run_.sent_hold);
    checkpoints_ = on;
    if (!on) {
        // Epochs of checkpoints that the standby has not heard of: told later, they would come behind those that
        // time closes from now on.
        run_.unsent_marks.clear();
        if (run_.marked > run_.sent) {
            run_.marked = run_.sent;
            run_.marked_hold = run_.sent_hold;
        }
        // Even if it is empty: nothing waits for the guest's answers any more.
        if (run_.sent != 0)
            close_at(run_.sent, run_.sent_hold);
    }
    checkpoints_from_ = run_.marked + 1;
    run_.epoch_ends = never;
    run_.epoch_wanted = false;
}

void primary_log::on_standby_full(std::uint64_t now) {
    if (!checkpoints_) {
        pump(now);
        if (run_.sent > run_.marked)
            close_at(run_.sent, run_.sent_hold);
    } else if (!run_.epoch_wanted && run_.appended > run_.marked) {
        want_epoch();
    }
}

// An epoch is closed early rather than that the standby is full of what it may not run.
std::string primary_log::pressure(std::uint64_t now) {
    if (!held_up_by_standby())
        run_.stalled_since = never;
    else if (run_.stalled_since == never)
        run_.stalled_since = now;
    if (!checkpoints_) {
        const bool much = run_.sent_hold - run_.marked_hold > hold_bytes_ / 2 ||
                          run_.sent - run_.marked > hold_entries_ / 2;
        if (run_.sent > run_.marked && (much || held_up_by_standby()))
            close_at(run_.sent, run_.sent_hold);
        return {};
    }
    // Nothing that was sent can end any more, and the next entries do not fit.
    if (!run_.unsent_marks.empty() && held_up_by_standby() && run_.sent_marks.empty() &&
        run_.acked.freed_bytes == run_.committed_hold && run_.acked.freed_entries == committed_count()) {
        return "epoch " + std::to_string(run_.unsent_marks.front().epoch) + " needs " +
               std::to_string(run_.unsent_marks.front().hold - run_.committed_hold) +
               " bytes, and the standby can hold " + std::to_string(hold_bytes_) + ": give it a larger hold";
    }
    return {};
}

void primary_log::want_epoch() {
    run_.epoch_wanted = true;
    actions_.push(act_epoch_wanted{});
}

// ---- what the device tells of entries

void primary_log::on_outcome(log_sequence entry, bool canceled, std::int32_t result, std::uint64_t now) {
    followups_.on_outcome(entry, canceled, result, run_.sent);
    note_through(entry, now);
    check_congestion();
}

void primary_log::on_late_content(log_sequence entry, std::uint32_t payload, std::uint64_t bytes,
                                  std::uint64_t now) {
    followups_.on_late_content(entry, payload, bytes, run_.sent);
    note_through(entry, now);
    check_congestion();
}

void primary_log::on_digests(log_sequence entry, std::vector<std::uint64_t> hashes, std::uint64_t now) {
    followups_.on_digests(entry, std::move(hashes), run_.sent, now);
    note_through(entry, now);
}

void primary_log::on_synced(log_sequence last) {
    assert(run_.synced_at == 0 && last >= run_.first && last <= run_.appended && last != 0 &&
           "synced() comes once, for an entry of this state transfer");
    run_.synced_at = last;
    send_synced();
}

// ---- time

std::string primary_log::on_tick(std::uint64_t now) {
    if (run_.stalled_since != never && now >= run_.stalled_since + config_.stall_budget_ms) {
        return "the standby is full and has freed nothing for " + std::to_string(now - run_.stalled_since) +
               " ms: what it holds may wait for the guest; a larger hold would help";
    }
    check_behind(now);
    std::string why = pump(now);
    if (why.empty() && now >= run_.epoch_ends)
        close_at(run_.sent, run_.sent_hold);
    return why;
}

std::uint64_t primary_log::next_tick() const {
    const std::uint64_t since = followups_.unanswered_since();
    const bool watched = config_.max_behind_ms != 0 && !run_.too_far_behind && since != never;
    return std::min({run_.epoch_ends,
                     run_.stalled_since == never ? never : run_.stalled_since + config_.stall_budget_ms,
                     watched ? since + config_.max_behind_ms : never,
                     run_.too_far_behind && !run_.lag_reported ? run_.too_far_since + lag_note_ms : never});
}

void primary_log::fill(primary_status& s, std::uint64_t now) const {
    s.epoch = epoch_;
    s.committed_epoch = run_.acked.committed_epoch;
    s.complete_checkpoint = run_.acked.complete_checkpoint;
    s.checkpoints = checkpoints_;
    s.checkpoints_from = checkpoints_from_;
    s.appended = run_.appended;
    s.sent = run_.sent;
    s.received = run_.acked.received;
    s.executed = run_.acked.executed;
    s.log_bytes = log_bytes();
    s.log_entries = run_.appended - run_.dropped;
    s.late_bytes = followups_.waiting_bytes();
    s.open_entries = followups_.size();
    s.lag_ms = run_.times.empty() ? 0 : now - std::min(now, run_.times.front().second);
    s.behind_ms = behind(now);
    s.unexecuted_ms = unexecuted_ms(now);
    s.sent_bytes = sent_bytes_;
    s.built_sent = built_sent_;
    s.built_bytes = built_bytes_;
    s.built_dropped = built_dropped_;
    s.digests_compared = digests_compared_;
    s.digests_different = digests_different_;
}

} // namespace kagemusha::mirror
