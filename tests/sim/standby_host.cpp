// SPDX-License-Identifier: GPL-2.0-or-later
#include "sim/standby_host.hpp"

#include <algorithm>

#include "mirror/protocol/agreement.hpp"
#include "mirror/protocol/message_text.hpp"
#include "mirror/standby/standby_text.hpp"

namespace kagemusha::sim {

using mirror::entry_kind;
using mirror::log_sequence;

namespace {

mirror::standby_config config_of(const options& o, std::uint64_t salt) {
    mirror::standby_config c;
    c.vm = "vm";
    c.gpu = "another GPU";
    c.instance = salt;
    c.hold_bytes = o.hold_bytes;
    c.hold_entries = o.hold_entries;
    c.commit_at_marker = o.epoch_ms != 0;
    c.running_per_file = o.running_per_file;
    c.built_capability = std::string(mirror::built_capability) + "sim";
    return c;
}

// Records of the state machine that are there however little it holds.
constexpr std::uint64_t baseline_records = 32;

} // namespace

standby_host::standby_host(world& w, std::uint64_t salt)
    : gpu(salt), w_(w), fsm_(config_of(w.o, salt), w.now) {
    w_.runs.on_new_copy();
}

// ---- the device's thread

bool standby_host::device_step() {
    if (commands_.empty())
        return false;
    if (w_.o.broken == mutation::runs_out_of_order && commands_.size() > 1 && w_.random.chance(2000))
        std::swap(commands_[0], commands_[1]);
    const command c = std::move(commands_.front());
    commands_.pop_front();
    if (c.forget) {
        gpu.reset();
        running_.clear();
        reported_.push_back(reported_forgotten{});
        return true;
    }
    const body& b = c.entry;
    const bool counts = c.copy == copy_; // else it was forgotten while it was on its way
    running r{
        b.meta.sequence, b.meta.file, b.cost(), c.copy, 0, (b.meta.flags & mirror::entry_compare) != 0, {}};
    if (!(w_.o.broken == mutation::drops_entry && w_.random.chance(1000))) {
        if (counts)
            w_.check("run", w_.runs.on_run(b));
        ++w_.st.runs;
        r.result = 0;
        switch (b.meta.kind) {
        case entry_kind::open_file:
            gpu.open(b.meta.file);
            break;
        case entry_kind::close_file:
            gpu.close(b.meta.file);
            break;
        case entry_kind::lose_session:
            gpu.close(b.meta.file);
            gpu.open(b.meta.file);
            break;
        case entry_kind::reset:
            gpu.reset();
            break;
        case entry_kind::submit:
            r.result = gpu.execute(b);
            break;
        }
    }
    if (r.compares)
        r.hashes = gpu.digests(r.file);
    if (c.secret)
        return true;
    running_.push_back(std::move(r));
    if (w_.o.broken == mutation::runs_twice && w_.random.chance(1000))
        w_.check("run", w_.runs.on_run(b));
    return true;
}

bool standby_host::completion_step() {
    if (running_.empty())
        return false;
    const std::uint32_t start = w_.random.below(static_cast<std::uint32_t>(running_.size()));
    for (std::size_t n = 0; n < running_.size(); ++n) {
        const std::size_t i = (start + n) % running_.size();
        running& r = running_[i];
        if (gpu.waits(r.file, r.entry))
            continue; // for the guest
        if (w_.o.broken == mutation::forgets_running && w_.random.chance(1000)) {
            running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
            return true;
        }
        if (r.compares && r.copy == copy_ && !r.hashes.empty())
            reported_.push_back(reported_digests{r.entry, std::move(r.hashes)});
        reported_.push_back(reported_executed{r.entry, r.cost, r.copy, r.result});
        running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
        return true;
    }
    return false;
}

bool standby_host::lose_worker() {
    if (gpu.files().empty())
        return false;
    auto f = gpu.files().begin();
    std::advance(f, w_.random.below(static_cast<std::uint32_t>(gpu.files().size())));
    const std::uint32_t file = f->first;
    w_.say("standby", "the worker of file " + std::to_string(file) + " dies");
    gpu.close(file);
    gpu.open(file);
    reported_.push_back(reported_lost{file});
    faulty = true;
    return true;
}

bool standby_host::reported_step() {
    if (reported_.empty())
        return false;
    const told t = std::move(reported_.front());
    reported_.pop_front();
    if (const auto* e = std::get_if<reported_executed>(&t)) {
        if (e->copy == copy_) {
            held_bytes_ -= e->cost;
            --held_entries_;
        }
        fsm_.on_executed(e->entry, e->result, w_.now);
    } else if (const auto* d = std::get_if<reported_digests>(&t)) {
        fsm_.on_digests(d->entry, d->hashes, w_.now);
    } else if (const auto* l = std::get_if<reported_lost>(&t)) {
        fsm_.on_file_lost(l->file, "its worker died", w_.now);
    } else if (const auto* s = std::get_if<reported_stored>(&t)) {
        if (s->copy == copy_)
            fsm_.on_built_stored(s->bytes);
    } else {
        fsm_.on_forgotten(w_.now);
    }
    drain();
    return true;
}

bool standby_host::apply_checkpoint() {
    const mirror::standby_status s = fsm_.status(w_.now);
    if (s.complete_checkpoint <= s.committed_epoch)
        return false;
    w_.runs.on_committed(s.complete_checkpoint);
    const std::vector<mirror::open_request> open = open_requests();
    open_before_ = !open.empty();
    w_.runs.on_open(open);
    fsm_.commit(s.complete_checkpoint, w_.now, open);
    drain();
    return true;
}

// What a guest might wait for at this checkpoint: some of the last requests of each file. What was answered
// once stays so.
std::vector<mirror::open_request> standby_host::open_requests() {
    std::vector<mirror::open_request> open;
    if (!w_.guest_waits)
        return open;
    std::map<std::uint32_t, std::vector<log_sequence>> requests; // of a file, not answered
    for (const run_checker::arrival& a : w_.runs.arrived()) {
        const mirror::entry_meta& m = a.entry.meta;
        if (m.sequence > w_.runs.committed())
            break;
        if (m.kind == entry_kind::reset) {
            requests.clear();
        } else if (m.kind != entry_kind::submit) {
            requests.erase(m.file); // a file is opened and closed when nothing of it is open
        } else if ((m.flags & ~std::uint32_t{mirror::entry_late_content}) == 0 && !a.canceled &&
                   (m.sequence > last_commit_ || open_entries_.contains(m.sequence))) {
            requests[m.file].push_back(m.sequence);
        }
    }
    for (const auto& [file, sequences] : requests) {
        std::size_t first = w_.random.below(static_cast<std::uint32_t>(sequences.size() + 1));
        while (first < sequences.size()) {
            const bool two = first + 1 < sequences.size() && sequences[first + 1] == sequences[first] + 1 &&
                             w_.random.chance(3000);
            const log_sequence after = sequences[first] - 1;
            if (sequences[first] > last_commit_ && w_.random.chance(2000)) // a query before it
                open.push_back({++w_.st.requests, file, after, after});
            if (w_.random.chance(6000))
                open.push_back({++w_.st.requests, file, after, after + (two ? 2 : 1)});
            first += two ? 2 : 1;
        }
    }
    std::stable_sort(open.begin(), open.end(),
                     [](const auto& a, const auto& b) { return a.after < b.after; });
    last_commit_ = w_.runs.committed();
    open_entries_.clear();
    for (const mirror::open_request& r : open)
        for (log_sequence s = r.after + 1; s <= r.last; ++s)
            open_entries_.insert(s);
    return open;
}

void standby_host::takeover() {
    w_.runs.on_takeover();
    fsm_.takeover(w_.now);
    drain();
}

// ---- link

void standby_host::on_connected() {
    fsm_.on_connected(w_.now);
    drain();
}

bool standby_host::accepted() const {
    const mirror::standby_state s = state();
    return s == mirror::standby_state::following || s == mirror::standby_state::ready;
}

void standby_host::on_frame(const frame& f) {
    if (f.end) {
        w_.link.to_standby.open = false;
        fsm_.on_closed("the link was closed by the primary", w_.now);
        drain();
        return;
    }
    if (w_.trace)
        w_.say("standby", "← " + mirror::to_text(f.what));
    const bool before = accepted();
    fsm_.on_message(f.what, w_.now);
    // What broke a rule was not taken.
    if (before && accepted()) {
        if (std::holds_alternative<mirror::entries>(f.what)) {
            for (const body& b : f.bodies) {
                w_.check("run", w_.runs.on_arrival(b));
                held_bytes_ += b.cost();
                ++held_entries_;
                held_[b.meta.sequence] = b;
                if (w_.o.broken == mutation::runs_before_commit && w_.random.chance(1000))
                    commands_.push_back({.forget = false, .secret = true, .copy = copy_, .entry = b});
            }
            w_.check("flow",
                     flow_checker::held(held_bytes_, held_entries_, w_.o.hold_bytes, w_.o.hold_entries));
        } else if (const auto* c = std::get_if<mirror::content>(&f.what)) {
            const auto first = static_cast<std::uint32_t>(c->offset / 8);
            const auto words = static_cast<std::uint32_t>(c->bytes / 8);
            w_.runs.on_content(c->sequence, first, words, f.words);
            body& b = held_[c->sequence];
            for (std::uint32_t i = first; i < first + words; ++i) {
                b.words[i] = f.words[i];
                if (w_.o.broken == mutation::corrupts_content)
                    b.words[i] ^= 1;
            }
            b.words_here += words;
        } else if (const auto* r = std::get_if<mirror::outcome>(&f.what)) {
            w_.runs.on_outcome(r->sequence, r->canceled, r->result);
        } else if (const auto* m = std::get_if<mirror::marker>(&f.what)) {
            w_.runs.on_marker(m->epoch, m->sequence, m->checkpoint);
        } else if (const auto* y = std::get_if<mirror::synced>(&f.what)) {
            w_.runs.on_synced(y->sequence);
        }
        if (w_.o.epoch_ms != 0) {
            if (w_.runs.on_committed(0)) { // it runs whatever the guest waits for
                last_commit_ = w_.runs.committed();
                open_entries_.clear();
                open_before_ = false;
            }
        }
    }
    drain();
}

void standby_host::on_time() {
    if (fsm_.next_tick_ms() <= w_.now) {
        fsm_.on_tick(w_.now);
        drain();
    }
}

// ---- what the state machine wants

void standby_host::drain() {
    mirror::standby_action a;
    while (fsm_.next(a)) {
        if (w_.trace)
            w_.say("standby", mirror::to_text(a));
        std::visit([this](auto& what) { act(what); }, a);
    }
}

void standby_host::send(frame f) {
    if (w_.link.to_standby.open && w_.link.whole)
        w_.link.to_primary.push(std::move(f));
}

void standby_host::act(mirror::act_send& a) {
    if (auto* k = std::get_if<mirror::ack>(&a.what); k != nullptr && w_.o.broken == mutation::lies_in_acks)
        k->received += 1;
    if (const auto* bye = std::get_if<mirror::goodbye>(&a.what);
        bye && bye->reason == mirror::goodbye_reason::protocol_error && w_.o.broken == mutation::none &&
        w_.o.duplicate == 0)
        w_.fail("protocol: nobody here breaks it, and the standby says: " + bye->why);
    frame f;
    f.what = std::move(a.what);
    send(std::move(f));
}

void standby_host::act(mirror::act_close_link&) {
    frame f;
    f.end = true;
    send(std::move(f));
    w_.link.to_standby.open = false;
    w_.link.to_standby.clear();
}

void standby_host::act(const mirror::act_run& a) {
    const auto h = held_.find(a.sequence);
    if (h == held_.end())
        return w_.fail("run: entry " + std::to_string(a.sequence) + " is to run and is not held");
    commands_.push_back({.forget = false, .secret = false, .copy = copy_, .entry = std::move(h->second)});
    held_.erase(h);
}

void standby_host::act(const mirror::act_skip& a) {
    ++w_.st.skips;
    w_.check("run", w_.runs.on_skip(a.sequence));
    const auto h = held_.find(a.sequence);
    if (h == held_.end())
        return w_.fail("run: entry " + std::to_string(a.sequence) + " is to be skipped and is not held");
    held_bytes_ -= h->second.cost();
    --held_entries_;
    if (w_.o.broken == mutation::runs_tail_at_takeover && state() == mirror::standby_state::taken_over)
        commands_.push_back({.forget = false, .secret = true, .copy = copy_, .entry = std::move(h->second)});
    held_.erase(h);
}

// The guest's own request: it leaves the same behind as its entries.
void standby_host::act(const mirror::act_resume& a) {
    ++w_.st.resumed;
    while (device_step()) {
    } // what was given before it
    w_.check("run", w_.runs.on_resume(a.request));
    for (log_sequence s = a.request.after + 1; s <= a.request.last; ++s) {
        const auto h = held_.find(s);
        if (h == held_.end())
            return w_.fail("run: entry " + std::to_string(s) + " of a request is not held");
        held_bytes_ -= h->second.cost();
        --held_entries_;
        commands_.push_back({.forget = false, .secret = true, .copy = copy_, .entry = std::move(h->second)});
        held_.erase(h);
    }
}

void standby_host::act(const mirror::act_forget_all&) {
    ++copy_;
    open_entries_.clear();
    last_commit_ = 0;
    open_before_ = false;
    held_.clear();
    held_bytes_ = held_entries_ = 0;
    faulty = false;
    w_.runs.on_new_copy();
    commands_.push_back({.forget = true, .secret = false, .copy = copy_, .entry = {}});
}

void standby_host::act(const mirror::act_standby_state&) {}

// ---- checks

bool standby_host::at_rest() const {
    return state() == mirror::standby_state::ready && commands_.empty() && running_.empty() &&
           reported_.empty();
}

std::string standby_host::leftover() const {
    const mirror::standby_status s = fsm_.status(w_.now);
    if (s.held_bytes != 0 || s.held_entries != 0 || !held_.empty() || held_bytes_ != 0 ||
        held_entries_ != 0) {
        return "at rest the standby holds " + std::to_string(s.held_bytes) + " bytes in " +
               std::to_string(s.held_entries) + " entries, and has " + std::to_string(held_.size());
    }
    if (s.bookkeeping > baseline_records)
        return "at rest the standby has " + std::to_string(s.bookkeeping) + " records in memory";
    return {};
}

std::string standby_host::leftover_after_takeover() const {
    const mirror::standby_status s = fsm_.status(w_.now);
    if (!commands_.empty() || !reported_.empty() || s.held_entries != running_.size() || !held_.empty()) {
        return "after a takeover the standby holds " + std::to_string(s.held_entries) + " entries, and " +
               std::to_string(running_.size()) + " run";
    }
    return {};
}

std::string standby_host::text() const {
    const mirror::standby_status s = fsm_.status(w_.now);
    return std::string("standby ") + mirror::name_of(s.state) + " \"" + s.why + "\" received " +
           std::to_string(s.received) + " committed " + std::to_string(s.committed) + " executed " +
           std::to_string(s.executed) + " epoch " + std::to_string(s.epoch) + "/" +
           std::to_string(s.complete_epoch) + "/" + std::to_string(s.committed_epoch) + ", holds " +
           std::to_string(s.held_bytes) + " bytes in " + std::to_string(s.held_entries) + " entries, runs " +
           std::to_string(running_.size());
}

} // namespace kagemusha::sim
