// SPDX-License-Identifier: GPL-2.0-or-later
//
// The thin layer of the simulated world: carries out what the state machines want, and asks the arbiter.
#include "control/ha/sim/world.hpp"

#include <algorithm>
#include <utility>
#include <variant>

namespace kagemusha::ha::test {

// ---- what the state machines want

void world::carry_out(host& h) {
    bool more = true;
    while (more) {
        more = false;
        standby_action s;
        while (h.standby && h.standby->next(s)) {
            std::visit([&](auto& a) { act(h, a); }, s);
            more = true;
        }
        if (h.standby && h.standby->state() == standby_state::ended)
            h.standby.reset();
        primary_action p;
        while (h.primary && h.primary->next(p)) {
            std::visit([&](auto& a) { act(h, a); }, p);
            more = true;
        }
        if (h.primary && h.primary->state() == primary_state::ended)
            h.primary.reset();
    }
}

void world::act(host& h, act_state& a) {
    say("host {}: primary {} {}", h.index, to_text(a.state), a.why);
    was_protected_ = was_protected_ || a.state == primary_state::protecting;
    if (a.state == primary_state::handing_over)
        ++switchovers_;
    if (a.state == primary_state::alone && h.paused)
        ++taken_back_;
}

void world::act(host& h, act_gate& a) {
    if (a.until_ms != 0 || broken_ != mutation::switchover_lets_run)
        h.gate = a.until_ms;
}

void world::act(host& h, act_start_qemu&) {
    h.qemu = ++qemus_;
    h.running = true;
    h.line = ++lines_;
}

void world::act(host& h, act_replicate& a) {
    h.replicating = true;
    h.replication = a.replication;
    h.held = h.lost_reported = false;
    h.to_qemu = peer(h).qemu;
    h.stream_broken_since.reset();
    h.hand_over_at.reset();
    h.replicated_at = now_ + below(200);
}

void world::act(host& h, act_go_on_alone&) {
    h.replicating = h.held = h.paused = h.gpu_failed = h.gpu_cut = false;
    h.hand_over_at.reset();
}

void world::act(host& h, act_kill_qemu& a) {
    say("host {}: QEMU is killed: {}", h.index, a.why);
    kill_qemu(h);
}

void world::act(host& h, act_ended& a) {
    say("host {}: primary ended {}: {}", h.index, a.in_order ? "in order" : "", a.why);
    h.qemu = 0;
    h.running = false;
    if (a.alone && !fences_) {
        check(arbiter_.present().owner != h.run || !arbiter_.present().paired,
              "newest images, and a standby may go on");
        check(arbiter_.present().owner == h.run || arbiter_.present().owner == -1,
              "newest images, and another has the VM");
    }
    if (stop_asked_ && a.in_order && a.why.starts_with("stopped"))
        stopped_in_order_ = true;
}

void world::act(host& h, act_standby_state& a) {
    say("host {}: standby {} {}", h.index, to_text(a.state), a.why);
}

void world::act(host& h, act_take_over& a) {
    const bool without = a.why.find("without the state of its GPU") != std::string::npos;
    check(without == h.copy_lost_reported, "what a takeover says of its GPU is not so");
    h.takes_over_at = now_ + below(30);
}

void world::act(host& h, act_restart_qemu& a) {
    h.qemu = 0;
    h.number = a.qemu;
    h.running = h.copy_lost = h.copy_lost_reported = false;
    h.takes_over_at.reset();
    h.ready_at = now_ + 1 + below(100);
}

void world::act(host& h, act_running& a) {
    say("host {}: the VM runs here with term {}", h.index, a.term);
    ++takeovers_;
    check(h.vm >= reported_, "a takeover without what was told");
    h.copy_lost = h.copy_lost_reported = false;
    auto c = primary_of(false);
    c.instance = static_cast<std::uint64_t>(h.run);
    c.mark = a.mark;
    check(a.mark.state == disk_state::newest && (older_peer_ || images_[h.index] == a.mark),
          "a VM goes on, and its images do not say so");
    h.standby.reset();
    h.replicating = h.held = false;
    h.primary.emplace(c);
    h.primary->start_after_takeover(a.term, a.lease_until, now_, a.gpu_failed);
}

void world::act(host& h, act_standby_ended& a) {
    say("host {}: standby ended: {}", h.index, a.why);
    h.qemu = 0;
    h.running = false;
}

void world::send(host& from, mirror::message m) {
    auto& to = peer(from);
    if (!from.link || !connected_ || now_ < partition_until_)
        return;
    if (auto* h = std::get_if<mirror::hello>(&m); h && older_peer_)
        h->capabilities = {"supervision"}, h->version = 1;
    if (const auto* s = std::get_if<mirror::supervision>(&m)) {
        using k = mirror::supervision_kind;
        check(!older_peer_ || (s->kind < k::belief && s->parts.empty()),
              "a word that an older peer does not know");
        say("host {} says {} term {} {}", from.index, static_cast<int>(s->kind), s->term, s->text);
        if (broken_ == mutation::unpaired_is_lost && (s->kind == k::unpaired || s->kind == k::belief))
            return;
        if (broken_ == mutation::ready_is_lost && s->kind == k::ready)
            return;
    }
    to.inbox.put(now_ + below(8), std::move(m));
}

void world::hang_up(host& from) {
    auto& to = peer(from);
    from.link = false;
    from.closing.reset();
    if (connected_ && to.link) // behind what was sent
        to.closing = std::max(now_ + 8, to.inbox.items.empty() ? 0 : to.inbox.items.back().first + 1);
    connected_ = false;
}

// ---- the arbiter

void world::fence(host& h, const arbiter_request& q) {
    if (now_ < arbiter_away_until_[h.index]) { // the switch can't be reached
        h.answers.put(now_ + 5 + below(60),
                      {arbiter_answer::verdict::unreachable, q.number, 0, 0, "no switch"});
        return;
    }
    bool off = false;
    auto a = sim_arbiter::decide_by_fencing(q, now_, off);
    if (off && now_ >= q.heard_ms + fence_valid_ms) { // the other one may have gone on since
        off = false;
        a = {arbiter_answer::verdict::held, q.number, 0, now_ + 50, "heard too long ago"};
    }
    if (off) {
        say("host {} asks {}: host {} is switched off", h.index, to_text(q.what), 1 - h.index);
        must_survive_ = must_survive_ && &peer(h) != vm_host();
        kill_host(peer(h));
    }
    h.answers.put(now_ + below(6), a);
}

void world::ask(host& h, const arbiter_request& q) {
    if (fences_)
        return fence(h, q);
    const bool away = now_ < arbiter_away_until_[h.index];
    if (away && chance(0.3)) { // done, and the answer is lost
        arbiter_.decide(h.run, q, now_);
        say("host {} asks {} term {}: done, answer lost", h.index, to_text(q.what), q.term);
    }
    if (away) {
        h.answers.put(now_ + 5 + below(slow_arbiter_ms_),
                      {arbiter_answer::verdict::unreachable, q.number, 0, 0, "away"});
        return;
    }
    auto a = arbiter_.decide(h.run, q, now_);
    if (q.what != arbiter_request::kind::renew && q.what != arbiter_request::kind::look)
        say("host {} asks {} term {}: {}", h.index, to_text(q.what), q.term, to_text(a.what));
    if (q.what == arbiter_request::kind::pair && a.what == arbiter_answer::verdict::granted)
        check(images_[h.index].state == disk_state::protected_ &&
                  (!peer(h).standby || !h.primary || h.primary->state() != primary_state::recording ||
                   images_[1 - h.index] == disk_mark{disk_state::paired, images_[h.index].of}),
              "a pair is recorded, and the images have no mark");
    h.answers.put(now_ + below(6), a);
}

} // namespace kagemusha::ha::test
