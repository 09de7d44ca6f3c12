// SPDX-License-Identifier: GPL-2.0-or-later
#include "sim/primary_host.hpp"

#include "mirror/primary/primary_text.hpp"
#include "mirror/protocol/agreement.hpp"
#include "mirror/protocol/message_text.hpp"

namespace kagemusha::sim {

using mirror::log_sequence;

namespace {

mirror::primary_config config_of(const options& o, std::uint64_t salt) {
    mirror::primary_config c;
    c.vm = "vm";
    c.gpu = "a GPU";
    c.instance = salt;
    c.log_bytes = o.log_bytes;
    c.log_entries = o.log_entries;
    c.epoch_ms = o.epoch_ms;
    c.window_bytes = o.window_bytes;
    c.built_capability = std::string(mirror::built_capability) + "sim";
    return c;
}

// Steps of the guest before the device's thread looks at its commands, and what a state transfer may append
// however full the log is: its objects and their content.
constexpr std::uint32_t most_steps_behind = 4;
constexpr std::uint64_t slack_entries = 250;
constexpr std::uint64_t largest_entry = 48 + max_words * 8;

} // namespace

primary_host::primary_host(world& w, std::uint64_t salt)
    : device(w.o, w.random, salt), w_(w), fsm_(config_of(w.o, salt), w.now) {}

bool primary_host::guest_step() {
    if (!commands_.empty() && ++steps_behind_ > most_steps_behind) {
        command_step();
        return false;
    }
    return device.guest_step();
}

bool primary_host::command_step() {
    if (commands_.empty())
        return false;
    const command c = std::move(commands_.front());
    commands_.pop_front();
    steps_behind_ = 0;
    switch (c.what) {
    case command::kind::start_sync:
        w_.runs.on_new_log();
        device.start_sync();
        ++w_.st.syncs;
        break;
    case command::kind::stop:
        device.stop();
        break;
    case command::kind::congestion:
        device.set_congestion(c.on);
        break;
    case command::kind::digest_result:
        device.on_digest_result(c.result.sequence, c.result.different);
        w_.st.comparisons += 1;
        w_.st.differences += c.result.different.size();
        if (!c.result.different.empty() && !w_.o.nondeterminism) {
            w_.fail("digest: entry " + std::to_string(c.result.sequence) +
                    " found a difference, and all kernels are deterministic");
        }
        break;
    }
    return true;
}

bool primary_host::work() {
    const std::size_t before = device.out.size();
    const auto state = device.state();
    device.work_step();
    return device.out.size() != before || device.state() != state;
}

bool primary_host::device_step() {
    return w_.random.chance(5000) ? command_step() : work();
}

bool primary_host::reported_step() {
    if (device.out.empty())
        return false;
    // Several at once: entries are sent together.
    for (std::uint32_t n = w_.random.between(1, 6); n != 0 && !device.out.empty(); --n) {
        const told t = std::move(device.out.front());
        device.out.pop_front();
        if (const auto* e = std::get_if<reported_entry>(&t)) {
            body b = e->entry;
            w_.runs.on_append(b);
            ++w_.st.entries;
            log_bytes_ += b.meta.stream_bytes + b.words_here * 8;
            log_.emplace(b.meta.sequence, b);
            fsm_.on_entry(b.meta, w_.now);
        } else if (const auto* r = std::get_if<reported_outcome>(&t)) {
            // What the compiler made comes before, and may be of any length.
            if (const auto e = log_.find(r->entry); e != log_.end() && !r->canceled)
                fsm_.on_built(e->second.meta.file, 64 + r->entry % 7 * 4096);
            fsm_.on_outcome(r->entry, r->canceled, r->result);
        } else if (const auto* c = std::get_if<reported_content>(&t)) {
            late& l = late_[c->entry];
            l.words = c->content;
            l.told += c->words;
            l.total = c->total;
            fsm_.on_late_content(c->entry, 0, c->words * 8);
        } else if (const auto* d = std::get_if<reported_digests>(&t)) {
            fsm_.on_digests(d->entry, d->hashes, w_.now);
        } else if (const auto* y = std::get_if<reported_synced>(&t)) {
            fsm_.on_synced(y->last);
        } else if (std::holds_alternative<reported_failed>(t)) {
            fsm_.on_mirror_failed("the mirror gave up", w_.now);
        } else {
            fsm_.on_mirror_stopped(w_.now);
        }
    }
    drain();
    return true;
}

void primary_host::switch_epochs() {
    checkpoints_ = !checkpoints_;
    w_.say("primary", checkpoints_ ? "checkpoints close epochs" : "time closes epochs");
    fsm_.use_checkpoints(checkpoints_, w_.now);
    drain();
}

bool primary_host::take_checkpoint(bool wanted) {
    const mirror::primary_status s = fsm_.status(w_.now);
    const bool followed =
        s.state == mirror::primary_state::syncing || s.state == mirror::primary_state::protecting;
    if (!(wanted && followed) && !epoch_wanted_ && s.appended <= checkpoint_at_)
        return false;
    // A checkpoint comes when all that the device told was heard.
    if (!device.out.empty())
        return false;
    if (!s.checkpoints)
        return false;
    epoch_wanted_ = false;
    checkpoint_at_ = s.appended;
    fsm_.close_epoch(w_.now);
    drain();
    return true;
}

// ---- link

void primary_host::on_connected() {
    connecting = false;
    fsm_.on_connected(w_.now);
    drain();
}

void primary_host::on_closed(const std::string& why) {
    connecting = false;
    fsm_.on_closed(why, w_.now);
    drain();
}

void primary_host::on_frame(const frame& f) {
    if (f.end) {
        w_.link.to_primary.open = false;
        on_closed("the link was closed by the standby");
        return;
    }
    mirror::message m = f.what;
    if (const auto* a = std::get_if<mirror::ack>(&m)) {
        w_.flow.on_ack(a->freed_bytes, a->freed_entries);
    } else if (auto* h = std::get_if<mirror::hello>(&m)) {
        w_.flow.on_connection(h->hold_bytes, h->hold_entries);
        if (w_.o.broken == mutation::ignores_hold) {
            h->hold_bytes *= 4;
            h->hold_entries *= 4;
        }
    }
    if (w_.trace)
        w_.say("primary", "← " + mirror::to_text(m));
    fsm_.on_message(m, w_.now);
    drain();
}

void primary_host::on_sent(std::uint64_t queued) {
    fsm_.on_sent(queued);
    drain();
}

void primary_host::on_time() {
    if (fsm_.next_tick_ms() <= w_.now) {
        fsm_.on_tick(w_.now);
        drain();
    }
}

// ---- what the state machine wants

void primary_host::drain() {
    mirror::primary_action a;
    while (fsm_.next(a)) {
        if (w_.trace)
            w_.say("primary", mirror::to_text(a));
        std::visit([this](auto& what) { act(what); }, a);
    }
    check_log();
}

void primary_host::send(frame f) {
    if (w_.link.to_primary.open && w_.link.whole)
        w_.link.to_standby.push(std::move(f));
}

void primary_host::act(mirror::act_close_link&) {
    connecting = false;
    frame f;
    f.end = true;
    send(std::move(f));
    w_.link.to_primary.open = false;
    w_.link.to_primary.clear();
}

void primary_host::act(mirror::act_send& a) {
    if (std::holds_alternative<mirror::outcome>(a.what) && w_.o.broken == mutation::loses_outcome &&
        w_.random.chance(5000)) {
        return;
    }
    frame f;
    f.what = std::move(a.what);
    send(std::move(f));
}

void primary_host::act(const mirror::act_send_entries& a) {
    log_sequence s = a.first;
    while (s <= a.last) {
        frame f;
        mirror::entries m;
        for (std::uint32_t n = w_.random.between(1, 8); n != 0 && s <= a.last; --n, ++s) {
            const auto e = log_.find(s);
            if (e == log_.end())
                return w_.fail("log: entry " + std::to_string(s) + " is to be sent and is not there");
            w_.check("flow", w_.flow.on_sent(e->second.cost()));
            m.list.push_back({e->second.meta, {}});
            if (e->second.word_count != 0)
                m.list.back().payloads.push_back({e->second.word_count * 8, false});
            f.bodies.push_back(e->second);
            if (f.bodies.back().words_here == 0)
                f.bodies.back().words = {}; // they follow
        }
        f.what = std::move(m);
        send(std::move(f));
    }
}

void primary_host::act(const mirror::act_send_content& a) {
    const auto l = late_.find(a.what.sequence);
    const auto first = static_cast<std::uint32_t>(a.what.offset / 8);
    const auto words = static_cast<std::uint32_t>(a.what.bytes / 8);
    if (l == late_.end() || first + words > l->second.told) {
        return w_.fail("log: content of entry " + std::to_string(a.what.sequence) +
                       " is to be sent and is not there");
    }
    frame f;
    f.what = a.what;
    f.words = l->second.words;
    l->second.sent += words;
    if (l->second.sent == l->second.total)
        late_.erase(l);
    if (w_.o.broken == mutation::loses_content && w_.random.chance(5000))
        return;
    send(std::move(f));
}

void primary_host::erase(std::map<log_sequence, body>::iterator e) {
    log_bytes_ -= e->second.meta.stream_bytes + e->second.words_here * 8;
    log_.erase(e);
}

void primary_host::act(const mirror::act_drop_log& a) {
    if (a.up_to == UINT64_MAX)
        late_.clear();
    if (w_.o.broken == mutation::never_frees && a.up_to != UINT64_MAX)
        return;
    const log_sequence up_to = w_.o.broken == mutation::frees_early ? UINT64_MAX : a.up_to;
    while (!log_.empty() && log_.begin()->first <= up_to)
        erase(log_.begin());
}

void primary_host::act(const mirror::act_drop_content& a) {
    late_.erase(a.sequence);
}

void primary_host::act(const mirror::act_congestion& a) {
    w_.st.congestions += a.on;
    commands_.push_back({.what = command::kind::congestion, .on = a.on});
}

// ---- checks

void primary_host::check_log() {
    w_.check("memory", flow_checker::logged(log_bytes_, log_.size(), w_.o.log_bytes, w_.o.log_entries,
                                            slack_entries, largest_entry));
}

bool primary_host::at_rest() const {
    return fsm_.status(w_.now).state == mirror::primary_state::protecting &&
           device.state() == model_device::mode::on && device.idle() && device.out.empty() &&
           commands_.empty();
}

std::string primary_host::leftover() const {
    const mirror::primary_status s = fsm_.status(w_.now);
    if (s.log_bytes != 0 || s.log_entries != 0 || s.open_entries != 0 || s.late_bytes != 0) {
        return "at rest the primary's log has " + std::to_string(s.log_bytes) + " bytes in " +
               std::to_string(s.log_entries) + " entries, " + std::to_string(s.open_entries) +
               " of them open";
    }
    if (!log_.empty() || log_bytes_ != 0 || !late_.empty())
        return "at rest the primary was not told to free " + std::to_string(log_.size()) + " entries";
    if (s.lag_ms != 0)
        return "at rest there is a lag";
    return {};
}

std::string primary_host::text() const {
    const mirror::primary_status s = fsm_.status(w_.now);
    return std::string("primary ") + mirror::name_of(s.state) + " \"" + s.degraded + "\" appended " +
           std::to_string(s.appended) + " sent " + std::to_string(s.sent) + " received " +
           std::to_string(s.received) + " executed " + std::to_string(s.executed) + " epoch " +
           std::to_string(s.epoch) + "/" + std::to_string(s.committed_epoch) + ", device " +
           std::to_string(static_cast<int>(device.state())) + (device.idle() ? " idle" : " busy");
}

} // namespace kagemusha::sim
