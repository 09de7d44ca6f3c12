// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/standby/standby_log.hpp"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

#include "mirror/log/limits.hpp"

namespace kagemusha::mirror {

namespace {

std::string entry_text(log_sequence s) {
    return "entry " + std::to_string(s);
}

} // namespace

standby_log::standby_log(const standby_config& config, action_queue<standby_action>& actions)
    : config_(config), actions_(actions) {
    clear();
}

void standby_log::clear() {
    first_ = received_ = committed_ = offered_ = 0;
    ring_.restart(1);
    stragglers_.clear();
    files_.clear();
    open_files_ = waiting_files_ = 0;
    late_.clear();
    late_payloads_ = held_payloads_ = 0;
    early_ranges_ = 0;
    parts_.assign(1, {});
    reset_given_ = taken_over_ = stopped_ = false;
    held_bytes_ = held_entries_ = freed_bytes_ = freed_entries_ = 0;
}

// ---- from the primary

// What an entry must be by itself was checked where it was decoded (replicator/messages).
std::string standby_log::check(const entries::entry& e) const {
    const entry_meta& m = e.meta;
    if (first_ == 0 ? m.kind != entry_kind::reset : m.sequence != received_ + 1) {
        return first_ == 0 ? "its log does not begin with a reset"
                           : entry_text(m.sequence) + " came, " + std::to_string(received_ + 1) + " was next";
    }
    const std::uint64_t cost = m.stream_bytes + m.content_bytes;
    if (cost > config_.hold_bytes - held_bytes_ || held_entries_ >= config_.hold_entries) {
        return entry_text(m.sequence) + " of " + std::to_string(cost) + " bytes came, there was room for " +
               std::to_string(config_.hold_bytes - held_bytes_) + " bytes and " +
               std::to_string(config_.hold_entries - held_entries_) + " entries";
    }
    if (m.kind == entry_kind::reset)
        return {};
    const auto f = files_.find(m.file);
    const bool open = f != files_.end() && f->second.open;
    if (m.kind == entry_kind::open_file) {
        if (open)
            return entry_text(m.sequence) + " opens file " + std::to_string(m.file) + ", which is open";
        const std::uint32_t most =
            config_.limits.max_files != 0 ? config_.limits.max_files : max_mirrored_files;
        if (open_files_ >= most) {
            return entry_text(m.sequence) + " opens more than " + std::to_string(most) +
                   " files at once, which is what a guest may have here";
        }
        return {};
    }
    if (!open)
        return entry_text(m.sequence) + " is of file " + std::to_string(m.file) + ", which is not open";
    if (f->second.lost && m.kind != entry_kind::close_file)
        return entry_text(m.sequence) + " is of file " + std::to_string(m.file) + ", which was lost";
    if ((m.flags & entry_late_content) != 0 && late_payloads_ + e.payloads.size() > max_late_payloads)
        return "content of too many payloads is missing";
    if (held_payloads_ + e.payloads.size() > max_held_payloads) {
        return entry_text(m.sequence) + " has " + std::to_string(e.payloads.size()) +
               " payloads, there was room for " + std::to_string(max_held_payloads - held_payloads_);
    }
    return {};
}

std::string standby_log::on_entry(const entries::entry& e) {
    if (std::string broken = check(e); !broken.empty())
        return broken;
    const entry_meta& m = e.meta;
    if (first_ == 0) {
        first_ = m.sequence;
        offered_ = m.sequence - 1;
        ring_.restart(m.sequence);
    }
    received_ = m.sequence;
    held h;
    h.cost = m.stream_bytes + m.content_bytes;
    h.file = m.file;
    h.flags = m.flags;
    h.kind = m.kind;
    h.at = stage::arrived;
    static_assert(VGPU_MAX_PAYLOADS <= UINT16_MAX);
    h.payloads = static_cast<std::uint16_t>(e.payloads.size());
    held_bytes_ += h.cost;
    held_payloads_ += h.payloads;
    ++held_entries_;
    if ((m.flags & entry_late_content) != 0 && m.content_bytes != 0) {
        h.incomplete = true;
        late_state& late = late_[m.sequence];
        late.payloads.reserve(e.payloads.size());
        for (const entry_payload& p : e.payloads) {
            late.payloads.push_back({p.bytes, 0, p.writable});
            late.missing += p.writable ? 0 : p.bytes;
        }
        late_payloads_ += late.payloads.size();
    }
    ring_.push_back(h);
    if (m.kind == entry_kind::reset) {
        for (auto f = files_.begin(); f != files_.end();) {
            f->second.open = false;
            const auto ended = f++;
            erase_if_gone(ended->first, ended->second);
        }
        open_files_ = 0;
        parts_.back().reset = m.sequence;
        parts_.emplace_back();
        return {};
    }
    ++parts_.back().not_given;
    file_state& f = file(m.file);
    if (m.kind == entry_kind::open_file) {
        f.open = true;
        f.lost = false;
        ++open_files_;
    } else if (m.kind == entry_kind::close_file) {
        f.open = false;
        --open_files_;
    } else if (m.kind == entry_kind::lose_session) {
        f.lost = true;
    }
    if (f.head == 0)
        set_head(f, m.sequence);
    else
        find(f.tail)->next = m.sequence;
    f.tail = m.sequence;
    // Long after a hole came about, entries behind it would keep the ring from ever getting shorter.
    while (ring_.size() > 2 * config_.hold_entries && ring_.size() > 64) {
        stragglers_.emplace_hint(stragglers_.end(), ring_.first(), ring_.front());
        ring_.pop_front();
        pop_ended();
    }
    return {};
}

std::string standby_log::on_content(const content& c) {
    held* h = find(c.sequence);
    const auto at = late_.find(c.sequence);
    if (h == nullptr || at == late_.end())
        return "content came for " + entry_text(c.sequence) + ", which lacks none";
    late_state& late = at->second;
    if (c.payload >= late.payloads.size() || late.payloads[c.payload].writable) {
        return "content came for payload " + std::to_string(c.payload) + " of " + entry_text(c.sequence) +
               ", which has no such one";
    }
    payload_state& p = late.payloads[c.payload];
    if (!arrive(late, p, c))
        return "content of " + entry_text(c.sequence) + " came out of order, twice or beyond its length";
    late.missing -= c.bytes;
    if (late.missing == 0) {
        forget_late(c.sequence);
        h->incomplete = false;
        offer(c.sequence);
    }
    return {};
}

// Mostly in order. But a piece that is small or compressed comes over the link's first connection, and what is
// in front of it over a lane perhaps, later. There are as many gaps as such pieces at most.
bool standby_log::arrive(late_state& late, payload_state& p, const content& c) {
    if (c.bytes == 0 || c.offset < p.arrived || c.offset > p.bytes || c.bytes > p.bytes - c.offset)
        return false;
    std::uint64_t begin = c.offset, end = c.offset + c.bytes;
    auto next = late.early.lower_bound({c.payload, begin});
    if (next != late.early.begin()) {
        const auto before = std::prev(next);
        if (before->first.first == c.payload && before->second > begin)
            return false;
        if (before->first.first == c.payload && before->second == begin) {
            begin = before->first.second;
            late.early.erase(before);
            --early_ranges_;
        }
    }
    if (next != late.early.end() && next->first.first == c.payload) {
        if (next->first.second < end)
            return false;
        if (next->first.second == end) {
            end = next->second;
            late.early.erase(next);
            --early_ranges_;
        }
    }
    if (begin == p.arrived) {
        p.arrived = end;
        return true;
    }
    late.early.emplace(std::pair(c.payload, begin), end);
    return ++early_ranges_ <= max_lane_pieces;
}

std::string standby_log::on_outcome(const outcome& o) {
    held* h = find(o.sequence);
    if (h == nullptr || h->at != stage::arrived || h->canceled)
        return "an outcome came for " + entry_text(o.sequence) + ", which awaits none";
    if (o.canceled) {
        const bool awaits = (h->flags & entry_awaits_outcome) != 0 && !h->outcome_known;
        if (!awaits && !h->incomplete && (h->flags & entry_compare) == 0)
            return entry_text(o.sequence) + " was canceled after it could run";
        h->canceled = true;
        h->incomplete = false;
        forget_late(o.sequence);
    } else {
        if ((h->flags & entry_awaits_outcome) == 0 || h->outcome_known)
            return "an outcome came for " + entry_text(o.sequence) + ", which awaits none";
        h->outcome_known = true;
        h->failed = o.result != 0;
    }
    offer(o.sequence);
    return {};
}

// ---- from the device

standby_log::ended standby_log::on_executed(log_sequence entry, std::int32_t result) {
    held* h = find(entry);
    assert(h != nullptr && h->at == stage::given && "only what was given, and once");
    ended e;
    e.meta.sequence = entry;
    e.meta.kind = h->kind;
    e.meta.file = h->file;
    e.meta.flags = h->flags;
    e.failed = result != 0;
    if (h->kind == entry_kind::reset) {
        assert(reset_given_ && parts_.front().reset == entry);
        reset_given_ = false;
        parts_.pop_front();
        offered_ = entry;
        e.failure_expected = true;
        end(entry, *h);
        advance();
        return e;
    }
    const auto at = files_.find(h->file);
    assert(at != files_.end() && at->second.running != 0);
    const bool unknown = (h->flags & entry_awaits_outcome) != 0 && !h->outcome_known;
    const bool may_fail = (h->flags & entry_may_fail) != 0 && (!h->outcome_known || h->failed);
    e.failure_expected = unknown || may_fail || entry <= at->second.end_given;
    --at->second.running;
    end(entry, *h);
    give_file(at->first, at->second);
    give_reset();
    return e;
}

// ---- order

void standby_log::commit(log_sequence up_to, std::span<const open_request> open) {
    assert(up_to >= committed_ && up_to <= received_);
    std::vector<log_sequence> heads; // that may go on now
    for (auto& [number, f] : files_) {
        if (!f.open_requests.empty()) {
            f.open_requests.clear();
            if (f.head != 0)
                heads.push_back(f.head);
        }
    }
    for (const open_request& r : open)
        if (const auto f = files_.find(r.file); f != files_.end())
            f->second.open_requests.push_back(r);
    committed_ = up_to;
    std::sort(heads.begin(), heads.end());
    for (const log_sequence s : heads)
        offer(s);
    advance();
}

log_sequence standby_log::limit() const {
    const log_sequence reset = parts_.front().reset;
    return reset != 0 ? std::min(committed_, reset - 1) : committed_;
}

void standby_log::advance() {
    const log_sequence up_to = limit();
    while (offered_ < up_to)
        offer(++offered_);
    if (taken_over_)
        resume_rest();
    give_reset();
}

// Something about this entry has changed; gives it, and what waited for it, if it is the next of its file.
void standby_log::offer(log_sequence s) {
    const held* h = find(s);
    if (h == nullptr || h->at != stage::arrived || h->kind == entry_kind::reset || s > offered_)
        return;
    const auto at = files_.find(h->file);
    assert(at != files_.end());
    if (at->second.head == s) {
        give_file(at->first, at->second);
        give_reset();
    }
}

bool standby_log::ready(const held& h) const {
    if (h.canceled)
        return true;
    return !h.incomplete && ((h.flags & entry_awaits_outcome) == 0 || h.outcome_known || taken_over_);
}

void standby_log::give_file(std::uint32_t number, file_state& f) {
    // Not up to the limit: so that entries of all files are given in the order of the log.
    while (!stopped_) {
        if (taken_over_)
            resume(f);
        if (f.head == 0 || f.head > offered_)
            break;
        const log_sequence s = f.head;
        if (!f.open_requests.empty() && s > f.open_requests.front().after)
            return; // not before it is known what became of the request
        held& h = *find(s);
        // What the primary's agent sent behind a request that is executed here anew is of the primary's
        // results, which the guest never saw.
        constexpr std::uint32_t content_of_agent = entry_agent | entry_late_content;
        const bool is_outdated = f.resumed && s > synced_ && (h.flags & content_of_agent) == content_of_agent;
        const bool skip = h.canceled || is_outdated || (h.failed && (h.flags & entry_may_fail) == 0);
        if (!ready(h) || (!skip && f.running >= config_.running_per_file))
            return;
        set_head(f, h.next);
        --parts_.front().not_given;
        if (skip) {
            actions_.push(act_skip{s});
            end(s, h);
            continue;
        }
        ++f.running;
        if (h.kind == entry_kind::open_file) {
            f.lives = true;
        } else if (h.kind != entry_kind::submit) {
            f.lives = false;
            f.end_given = s;
        }
        give(s, h);
    }
    erase_if_gone(number, f);
}

// Requests whose turn it is. Their entries end with them, given or not.
void standby_log::resume(file_state& f) {
    while (!f.open_requests.empty()) {
        const open_request r = f.open_requests.front();
        if (r.after > offered_ || (f.head != 0 && f.head <= r.after))
            return;
        f.open_requests.pop_front();
        f.resumed = true;
        std::vector<log_sequence> own;
        while (f.head != 0 && f.head <= r.last) {
            const log_sequence s = f.head;
            held& h = *find(s);
            set_head(f, h.next);
            --parts_.front().not_given;
            end(s, h);
            own.push_back(s);
        }
        actions_.push(act_resume{r, std::move(own)});
    }
}

// Requests behind the last entry of their file: no entry's turn brings theirs.
void standby_log::resume_rest() {
    std::vector<std::uint32_t> numbers;
    for (const auto& [number, f] : files_)
        if (f.head == 0 && !f.open_requests.empty())
            numbers.push_back(number);
    std::sort(numbers.begin(), numbers.end());
    for (const std::uint32_t number : numbers)
        give_file(number, files_.at(number));
}

void standby_log::set_head(file_state& f, log_sequence head) {
    if (taken_over_ && head > committed_)
        head = 0;
    waiting_files_ += (head != 0) - (f.head != 0);
    f.head = head;
}

void standby_log::give_reset() {
    const part& p = parts_.front();
    if (stopped_ || reset_given_ || p.reset == 0 || p.not_given != 0 || p.reset > committed_)
        return;
    reset_given_ = true;
    for (auto f = files_.begin(); f != files_.end();) {
        f->second.lives = false;
        f->second.end_given = p.reset;
        const auto ended = f++;
        erase_if_gone(ended->first, ended->second);
    }
    give(p.reset, *find(p.reset));
}

void standby_log::give(log_sequence s, held& h) {
    h.at = stage::given;
    actions_.push(act_run{s});
}

void standby_log::end(log_sequence s, held& h) {
    held_bytes_ -= h.cost;
    held_payloads_ -= h.payloads;
    --held_entries_;
    freed_bytes_ += h.cost;
    ++freed_entries_;
    h.at = stage::ended;
    if (s < ring_.first()) {
        stragglers_.erase(s);
        return;
    }
    pop_ended();
}

// The first one in the ring is always held.
void standby_log::pop_ended() {
    while (!ring_.empty() && ring_.front().at == stage::ended)
        ring_.pop_front();
}

void standby_log::forget_late(log_sequence s) {
    const auto at = late_.find(s);
    if (at != late_.end()) {
        late_payloads_ -= at->second.payloads.size();
        early_ranges_ -= at->second.early.size();
        late_.erase(at);
    }
}

void standby_log::take_over(log_sequence synced) {
    taken_over_ = true;
    synced_ = synced;
    std::size_t in_part = 0;
    bool reset_skipped = false; // what lies behind it is counted in no part that stays
    for (log_sequence s = committed_ + 1; s <= received_; ++s) {
        held* h = find(s);
        if (h == nullptr)
            continue;
        assert(h->at == stage::arrived && "nothing runs before it is committed");
        while (!reset_skipped && parts_[in_part].reset != 0 && s > parts_[in_part].reset)
            ++in_part;
        if (h->kind == entry_kind::reset)
            reset_skipped = true;
        else if (!reset_skipped)
            --parts_[in_part].not_given;
        actions_.push(act_skip{s});
        forget_late(s);
        end(s, *h);
    }
    if (reset_skipped) {
        parts_.resize(in_part + 1);
        parts_.back().reset = 0;
    }
    // Entries before the last commit may have waited for their outcome, or behind an in-flight request.
    std::vector<std::pair<log_sequence, std::uint32_t>> turns;
    for (auto& [number, f] : files_) {
        set_head(f, f.head);
        const log_sequence request = f.open_requests.empty() ? UINT64_MAX : f.open_requests.front().after;
        if (const log_sequence first = f.head != 0 ? std::min(f.head, request) : request; first != UINT64_MAX)
            turns.emplace_back(first, number);
    }
    std::sort(turns.begin(), turns.end());
    for (const auto& [at, number] : turns)
        give_file(number, files_.at(number));
    advance();
}

// ---- small things

standby_log::held* standby_log::find(log_sequence s) {
    if (ring_.contains(s)) {
        held& h = ring_[s];
        return h.at == stage::ended ? nullptr : &h;
    }
    const auto at = stragglers_.find(s);
    return at == stragglers_.end() ? nullptr : &at->second;
}

log_sequence standby_log::executed() const {
    if (!stragglers_.empty())
        return stragglers_.begin()->first - 1;
    return ring_.empty() ? received_ : ring_.first() - 1;
}

standby_log::file_state& standby_log::file(std::uint32_t number) {
    return files_[number];
}

bool standby_log::all_given() const {
    return waiting_files_ == 0 && parts_.front().reset == 0 &&
           std::all_of(files_.begin(), files_.end(),
                       [](const auto& f) { return f.second.open_requests.empty(); });
}

bool standby_log::file_is_open(std::uint32_t file) const {
    const auto f = files_.find(file);
    return f != files_.end() && f->second.open && !f->second.lost;
}

bool standby_log::file_lives(std::uint32_t file) const {
    const auto f = files_.find(file);
    return f != files_.end() && f->second.lives;
}

void standby_log::erase_if_gone(std::uint32_t number, const file_state& f) {
    if (!f.open && f.head == 0 && f.running == 0 && !f.lives && f.open_requests.empty())
        files_.erase(number);
}

} // namespace kagemusha::mirror
