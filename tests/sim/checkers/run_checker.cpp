// SPDX-License-Identifier: GPL-2.0-or-later
#include "sim/checkers/run_checker.hpp"

#include <algorithm>
#include <utility>

namespace kagemusha::sim {

using mirror::entry_kind;
using mirror::log_sequence;

namespace {

std::string entry_text(log_sequence s) {
    return "entry " + std::to_string(s);
}

} // namespace

run_checker::arrival* run_checker::find(log_sequence s) {
    if (arrived_.empty() || s < first() || s - first() >= arrived_.size())
        return nullptr;
    return &arrived_[s - first()];
}

void run_checker::on_new_copy() {
    arrived_.clear();
    last_of_file_.clear();
    markers_.clear();
    committed_ = 0;
    settled_ = 0;
    complete_ = 0;
    synced_ = 0;
    open_.clear();
    resumed_files_.clear();
    taken_over_ = false;
}

void run_checker::on_open(std::vector<mirror::open_request> open) {
    open_ = std::move(open);
}

std::string run_checker::on_resume(const mirror::open_request& r) {
    const auto at = std::find(open_.begin(), open_.end(), r);
    if (!taken_over_ || at == open_.end())
        return "a request after " + entry_text(r.after) + " is resumed, and was not open, or twice";
    for (auto earlier = open_.begin(); earlier != at; ++earlier)
        if (earlier->file == r.file)
            return "a request after " + entry_text(r.after) + " is resumed before an earlier one";
    for (const arrival& a : arrived_) {
        const log_sequence s = a.entry.meta.sequence;
        if (s <= r.after && a.entry.meta.file == r.file && s <= committed_ && !a.settled())
            return "a request after " + entry_text(r.after) + " is resumed before " + entry_text(s);
    }
    open_.erase(at);
    resumed_files_.insert(r.file);
    return {};
}

std::string run_checker::all_resumed() const {
    return open_.empty() ? std::string()
                         : std::to_string(open_.size()) + " requests of the guest were never resumed";
}

std::string run_checker::on_arrival(const body& b) {
    const log_sequence s = b.meta.sequence;
    if (!arrived_.empty() && s != arrived_.back().entry.meta.sequence + 1)
        return entry_text(s) + " arrived after " + std::to_string(arrived_.back().entry.meta.sequence);
    const log_sequence log_first = log_.empty() ? 0 : log_.front().meta.sequence;
    if (log_.empty() || s < log_first || s - log_first >= log_.size())
        return entry_text(s) + " arrived and was never appended";
    if (!(log_[s - log_first].meta == b.meta))
        return entry_text(s) + " is not what was appended";
    if (arrived_.empty() && s != log_first) {
        return "the first entry that arrived is " + std::to_string(s) + ", the log begins with " +
               std::to_string(log_first);
    }
    arrival a;
    a.entry = b;
    if (b.meta.kind == entry_kind::reset) {
        last_of_file_.clear();
    } else {
        log_sequence& last = last_of_file_[b.meta.file];
        a.before = last;
        last = s;
    }
    arrived_.push_back(std::move(a));
    return {};
}

void run_checker::on_content(log_sequence s, std::uint32_t first_word, std::uint32_t words,
                             const std::array<std::uint64_t, max_words>& content) {
    if (arrival* a = find(s)) {
        for (std::uint32_t i = first_word; i < first_word + words; ++i)
            a->entry.words[i] = content[i];
        a->entry.words_here += words;
    }
}

void run_checker::on_outcome(log_sequence s, bool canceled, std::int32_t result) {
    if (arrival* a = find(s)) {
        a->canceled = canceled;
        a->outcome_known = !canceled;
        a->result = result;
    }
}

bool run_checker::on_committed(std::uint64_t epoch) {
    while (complete_ < arrived_.size() &&
           (arrived_[complete_].canceled ||
            arrived_[complete_].entry.words_here == arrived_[complete_].entry.word_count)) {
        ++complete_;
    }
    const auto is_complete = [this](const mark& m) {
        return !arrived_.empty() && m.up_to - first() < complete_;
    };
    if (epoch == 0) {
        for (const auto& [number, m] : markers_) {
            if (!is_complete(m))
                break;
            epoch = m.checkpoint ? epoch : number;
        }
        if (epoch != 0)
            open_.clear(); // time says nothing about what the guest waits for
    }
    bool any = false;
    for (auto m = markers_.begin(); m != markers_.end() && m->first <= epoch && is_complete(m->second);) {
        committed_ = m->second.up_to;
        m = markers_.erase(m);
        any = true;
    }
    return any;
}

std::string run_checker::on_run(const body& b) {
    const log_sequence s = b.meta.sequence;
    arrival* a = find(s);
    if (a == nullptr)
        return entry_text(s) + " runs and has not arrived";
    if (a->ran)
        return entry_text(s) + " runs twice";
    if (a->skipped)
        return entry_text(s) + " runs and was skipped";
    if (s > committed_)
        return entry_text(s) + " runs before it is committed (up to " + std::to_string(committed_) + ")";
    for (const mirror::open_request& r : open_) {
        if (r.file == b.meta.file && s > r.after) {
            return entry_text(s) + " runs, and nobody knows whether the request after " +
                   entry_text(r.after) + " was answered";
        }
    }
    if (b.words_here != b.word_count)
        return entry_text(s) + " runs without all of its content";
    const std::uint32_t flags = a->entry.meta.flags;
    // A comparison may be called off while it is on its way to the device.
    if (a->canceled && (flags & mirror::entry_compare) == 0)
        return entry_text(s) + " runs and was canceled";
    if ((flags & mirror::entry_awaits_outcome) != 0) {
        if (!a->outcome_known && !taken_over_)
            return entry_text(s) + " runs before anybody knows how it went on the primary";
        if (a->outcome_known && a->result != 0 && (flags & mirror::entry_may_fail) == 0)
            return entry_text(s) + " runs and had failed on the primary";
    }
    if (a->before != 0 && !find(a->before)->settled())
        return entry_text(s) + " runs before entry " + std::to_string(a->before) + " of the same file";
    while (settled_ < arrived_.size() && arrived_[settled_].settled())
        ++settled_;
    if (b.meta.kind == entry_kind::reset) {
        if (settled_ != s - first())
            return entry_text(s) + " is a reset and runs before what comes before it";
    } else {
        // No reset between what is settled and this one.
        for (std::size_t i = settled_; i < s - first(); ++i)
            if (arrived_[i].entry.meta.kind == entry_kind::reset)
                return entry_text(s) + " runs before a reset that comes before it";
    }
    a->ran = true;
    return {};
}

std::string run_checker::on_skip(log_sequence s) {
    arrival* a = find(s);
    if (a == nullptr || a->settled())
        return entry_text(s) + " is skipped and has run, or has not arrived";
    const bool failed =
        a->outcome_known && a->result != 0 && (a->entry.meta.flags & mirror::entry_may_fail) == 0;
    // Results of the primary's that nobody saw: what they came from was executed here anew.
    constexpr std::uint32_t content_of_agent = mirror::entry_agent | mirror::entry_late_content;
    const bool outdated = resumed_files_.contains(a->entry.meta.file) && s > synced_ &&
                          (a->entry.meta.flags & content_of_agent) == content_of_agent;
    if (!a->canceled && !failed && !outdated && !(taken_over_ && s > committed_))
        return entry_text(s) + " is skipped without a reason";
    if (!taken_over_ && s > committed_)
        return entry_text(s) + " is skipped before it is committed";
    a->skipped = true;
    return {};
}

std::string run_checker::all_done() const {
    const std::size_t entries = log_.size();
    if (arrived_.size() != entries)
        return std::to_string(arrived_.size()) + " of " + std::to_string(entries) + " entries have arrived";
    for (const arrival& a : arrived_)
        if (!a.settled())
            return entry_text(a.entry.meta.sequence) + " has never run";
    return {};
}

} // namespace kagemusha::sim
