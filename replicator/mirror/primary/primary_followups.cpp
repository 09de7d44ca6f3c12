// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/primary/primary_followups.hpp"

#include <algorithm>
#include <cassert>

namespace kagemusha::mirror {

void primary_followups::clear() {
    open_.clear();
    of_file_.clear();
    with_unsent_.clear();
    comparing_.clear();
    ready_content_.clear();
    waiting_bytes_ = 0;
}

void primary_followups::on_entry(const entry_meta& meta, log_sequence sent) {
    if (meta.kind == entry_kind::reset)
        while (!of_file_.empty())
            end_file(of_file_.begin()->first, sent);
    else if (meta.kind == entry_kind::close_file || meta.kind == entry_kind::lose_session)
        end_file(meta.file, sent);
    constexpr std::uint32_t open_flags = entry_awaits_outcome | entry_late_content | entry_compare;
    if ((meta.flags & open_flags) == 0)
        return;
    open_entry o;
    o.file = meta.file;
    o.wants_outcome = (meta.flags & entry_awaits_outcome) != 0;
    o.wants_digests = (meta.flags & entry_compare) != 0;
    o.late_bytes = (meta.flags & entry_late_content) != 0 ? meta.content_bytes : 0;
    if (!o.over()) {
        open_.emplace(meta.sequence, std::move(o));
        of_file_[meta.file].insert(meta.sequence);
    }
}

void primary_followups::on_outcome(log_sequence entry, bool canceled, std::int32_t result,
                                   log_sequence sent) {
    const auto at = open_.find(entry);
    if (at == open_.end())
        return; // its file has ended, or everything about it was told: nothing to take back
    if (canceled) {
        cancel(at, sent);
        return;
    }
    assert(at->second.wants_outcome && "an outcome comes once, for an entry that awaits it");
    at->second.wants_outcome = false;
    tell(at, outcome{.sequence = entry, .canceled = false, .result = result}, sent);
    erase_if_over(at);
}

void primary_followups::on_late_content(log_sequence entry, std::uint32_t payload, std::uint64_t bytes,
                                        log_sequence sent) {
    const auto at = open_.find(entry);
    if (at == open_.end() || at->second.late_bytes == 0) {
        actions_.push(act_drop_content{entry}); // it was canceled meanwhile, or its file has ended
        return;
    }
    open_entry& o = at->second;
    auto offset = std::find_if(o.offsets.begin(), o.offsets.end(),
                               [&](const auto& known) { return known.first == payload; });
    if (offset == o.offsets.end())
        offset = o.offsets.insert(o.offsets.end(), {payload, 0});
    assert(offset->second % 8 == 0 && "only the last piece of a payload is no multiple of 8 bytes");
    assert(bytes != 0 && rounded_up(bytes) <= o.late_bytes && "no more than the entry has");
    content piece{.sequence = entry,
                  .payload = payload,
                  .offset = offset->second,
                  .bytes = bytes,
                  .compressed_bytes = 0};
    offset->second += bytes;
    o.late_bytes -= rounded_up(bytes);
    ++o.pieces;
    o.piece_bytes += bytes;
    waiting_bytes_ += bytes;
    if (entry <= sent) {
        ready_content_.push_back(piece);
    } else {
        // Not with those that may be sent: it would stand in the way of pieces that entries before it need.
        tell(at, piece, sent);
    }
}

void primary_followups::on_digests(log_sequence entry, std::vector<std::uint64_t> hashes, log_sequence sent,
                                   std::uint64_t now) {
    const auto at = open_.find(entry);
    if (at == open_.end())
        return; // its file has ended
    open_entry& o = at->second;
    assert(o.wants_digests && "digests come once, for an entry that compares");
    assert(hashes.size() <= max_hashes_per_message);
    o.wants_digests = false;
    o.compares = true;
    o.compared_at = now;
    comparing_.insert(now);
    o.hashes = hashes.size();
    tell(at, digests{.sequence = entry, .hashes = std::move(hashes)}, sent);
}

void primary_followups::on_sent(log_sequence sent) {
    while (!with_unsent_.empty() && *with_unsent_.begin() <= sent) {
        const auto at = open_.find(*with_unsent_.begin());
        assert(at != open_.end());
        with_unsent_.erase(with_unsent_.begin());
        for (message& m : at->second.unsent)
            if (const auto* piece = std::get_if<content>(&m))
                ready_content_.push_back(*piece);
            else
                actions_.push(act_send{std::move(m)});
        at->second.unsent.clear();
        erase_if_over(at);
    }
}

bool primary_followups::next_content(content& out) {
    while (!ready_content_.empty()) {
        out = ready_content_.front();
        ready_content_.pop_front();
        const auto at = open_.find(out.sequence);
        if (at == open_.end() || at->second.pieces == 0)
            continue; // canceled
        --at->second.pieces;
        at->second.piece_bytes -= out.bytes;
        waiting_bytes_ -= out.bytes;
        erase_if_over(at);
        return true;
    }
    return false;
}

std::optional<std::uint64_t> primary_followups::take_comparison(log_sequence entry) {
    const auto at = open_.find(entry);
    if (at == open_.end() || !at->second.compares)
        return std::nullopt;
    end_comparison(at->second);
    const std::uint64_t hashes = at->second.hashes;
    erase_if_over(at);
    return hashes;
}

void primary_followups::tell(iterator at, message m, log_sequence sent) {
    if (at->first <= sent) {
        actions_.push(act_send{std::move(m)});
        return;
    }
    at->second.unsent.push_back(std::move(m));
    with_unsent_.insert(at->first);
}

void primary_followups::cancel(iterator at, log_sequence sent) {
    open_entry& o = at->second;
    if (!o.wants_outcome && !o.wants_digests && o.late_bytes == 0 && o.pieces == 0) {
        end_comparison(o); // all of it crossed, or will as soon as the entry does
        erase_if_over(at);
        return;
    }
    if (o.late_bytes != 0 || o.pieces != 0) {
        actions_.push(act_drop_content{at->first});
        waiting_bytes_ -= o.piece_bytes;
    }
    end_comparison(o);
    open_entry canceled;
    canceled.file = o.file;
    o = std::move(canceled);
    with_unsent_.erase(at->first);
    tell(at, outcome{.sequence = at->first, .canceled = true, .result = 0}, sent);
    erase_if_over(at);
}

void primary_followups::end_file(std::uint32_t file, log_sequence sent) {
    const auto found = of_file_.find(file);
    if (found == of_file_.end())
        return;
    std::vector<log_sequence> entries(found->second.begin(), found->second.end());
    of_file_.erase(found);
    std::sort(entries.begin(), entries.end()); // the same actions whatever the hash table's order
    for (const log_sequence entry : entries) {
        // What was told and is complete stays so; it was only not sent yet.
        const auto at = open_.find(entry);
        assert(at != open_.end());
        open_entry& o = at->second;
        if (o.wants_outcome || o.wants_digests || o.late_bytes != 0) {
            cancel(at, sent);
        } else {
            end_comparison(o);
            erase_if_over(at);
        }
    }
}

void primary_followups::end_comparison(open_entry& o) {
    if (o.compares) {
        o.compares = false;
        comparing_.erase(comparing_.find(o.compared_at));
    }
}

void primary_followups::erase_if_over(iterator at) {
    if (!at->second.over())
        return;
    const auto file = of_file_.find(at->second.file);
    if (file != of_file_.end()) {
        file->second.erase(at->first);
        if (file->second.empty())
            of_file_.erase(file);
    }
    open_.erase(at);
}

} // namespace kagemusha::mirror
