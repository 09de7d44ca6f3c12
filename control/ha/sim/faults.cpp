// SPDX-License-Identifier: GPL-2.0-or-later
//
// What goes wrong in the simulated world, how it is healed, and what must be so afterwards.
#include "control/ha/sim/world.hpp"

#include <algorithm>

namespace kagemusha::ha::test {

// ---- faults

void world::kill_host(host& h) {
    cut(chance(0.5));
    h.primary.reset();
    h.standby.reset();
    h.qemu = 0;
    h.running = h.link = false;
    h.connecting.reset();
    h.answers.items.clear();
    h.marks.items.clear();
}

void world::kill_qemu(host& h) {
    if (h.qemu != 0)
        h.died = h.number;
    h.death_unseen = h.death_unseen || h.qemu != 0;
    h.qemu = 0;
    h.running = h.paused = false;
}

world::host* world::vm_host() {
    for (auto& h : hosts_)
        if (h.has_vm())
            return &h;
    return nullptr;
}

void world::fault() {
    auto* const p = vm_host();
    const bool only = !faulted_ && p && p->primary->state() == primary_state::protecting &&
                      peer(*p).standby && peer(*p).standby->state() == standby_state::synced;
    must_survive_ = false; // said again below, if this is the only fault
    auto& any = hosts_[below(2)];
    switch (below(18)) {
    case 0:
    case 1:
        if (p) {
            say("FAULT host {}: QEMU is killed", p->index);
            must_survive_ = only;
            kill_qemu(*p);
        }
        break;
    case 2:
        say("FAULT host {} dies", any.index);
        must_survive_ = only && !(stop_policy_ && any.standby);
        kill_host(any);
        break;
    case 3:
        any.frozen_until = now_ + below(2000);
        say("FAULT host {} freezes until {}", any.index, any.frozen_until);
        break;
    case 4:
        say("FAULT connection cut");
        must_survive_ = only;
        cut(chance(0.5));
        break;
    case 5:
        say("FAULT connection and stream cut");
        must_survive_ = only;
        cut(chance(0.7));
        stream_cut_until_ = now_ + below(300);
        break;
    case 6:
        stream_cut_until_ = now_ + below(1500);
        say("FAULT stream cut until {}", stream_cut_until_);
        must_survive_ = only;
        break;
    case 7:
        partition_until_ = now_ + below(2000);
        say("FAULT partition until {}", partition_until_);
        cut(false);
        break;
    case 8:
        for (auto& until : arbiter_away_until_)
            until = now_ + below(2000);
        say("FAULT arbiter away until {} and {}", arbiter_away_until_[0], arbiter_away_until_[1]);
        break;
    case 9: {
        auto& until = arbiter_away_until_[any.index];
        until = now_ + below(2500);
        say("FAULT arbiter away from host {} until {}", any.index, until);
        break;
    }
    case 10:
        if (any.standby && any.qemu != 0) {
            say("FAULT standby's QEMU is killed");
            must_survive_ = only && !stop_policy_;
            kill_qemu(any);
        }
        break;
    case 11:
        if (p && p->held) {
            say("FAULT host {}: GPU fails", p->index);
            must_survive_ = only;
            p->gpu_failed = true;
        }
        break;
    case 12:
        if (p && peer(*p).standby && peer(*p).qemu != 0 && p->held) {
            say("FAULT standby's GPU has no copy any more");
            peer(*p).copy_lost = true;
        }
        break;
    case 13:
        if (p && p->held) {
            say("FAULT connection of the GPUs cut");
            must_survive_ = only;
            p->gpu_cut = true;
        }
        break;
    case 14:
        if (!stop_policy_ && !fences_) { // which kills a VM whose standby was given up for it
            must_survive_ = only;
            if (arbiter_.present().term % 2 == 0 && arbiter_.go_back(now_)) {
                say("FAULT the arbiter is put back to an older record");
            } else {
                say("FAULT the arbiter loses its memory");
                arbiter_.forget();
            }
        }
        break;
    case 15:
    case 16:
        if (p && p->held && p->primary->may_hand_over() && !p->hand_over_at) {
            say("DO switchover");
            must_survive_ = only;
            p->paused = true;
            p->hand_over_at = now_ + 5 + below(20);
            if (chance(0.3))
                cancel_at_ = now_ + below(60);
            if (chance(0.2))
                takeover_fails_ = true;
        }
        break;
    case 17:
        if (p && chance(0.4)) {
            say("DO stop");
            stop_asked_ = true;
            p->primary->on_stop(now_);
            carry_out(*p);
        }
        break;
    }
    faulted_ = true;
}

void world::cut(bool noticed) {
    connected_ = false;
    for (auto& h : hosts_) {
        h.inbox.items.clear();
        if (h.link && noticed)
            h.closing = now_ + below(30);
    }
}

void world::heal() {
    say("HEAL");
    partition_until_ = stream_cut_until_ = 0;
    arbiter_away_until_ = {0, 0};
    takeover_fails_ = false;
    for (auto& h : hosts_)
        h.frozen_until = std::min(h.frozen_until, now_);
}

// ---- after healing

// What a person (or systemd) does: a host without a supervisor gets a standby for the VM that runs.
void world::look_after() {
    auto* const p = vm_host();
    if (now_ % 50 == 0 && p && !peer(*p).primary && !peer(*p).standby) {
        say("DO standby on host {}", peer(*p).index);
        start_standby(peer(*p).index);
        p->primary->on_protect({}, now_);
        carry_out(*p);
        healed_since_ = now_;
    } else if (p && p->primary->state() == primary_state::alone && peer(*p).standby && now_ % 500 == 0 &&
               p->index != 0) {
        p->primary->on_protect({}, now_); // it has no address of its own after a takeover
        carry_out(*p);
    }
    healed_since_ = std::max(healed_since_, heal_at_);
    if (p && p->primary->state() == primary_state::protecting && peer(*p).standby &&
        peer(*p).standby->state() == standby_state::synced && p->replicating && !p->lost_reported &&
        !p->gpu_failed && !p->gpu_cut && !peer(*p).copy_lost && p->gate > now_) {
        finished_ = true;
        took_ms_ = now_ - healed_since_;
        return;
    }
    if (now_ < healed_since_ + bound_ms + (fences_ ? leaving_ms : 0))
        return;
    const bool stands_still =
        p && !fences_ && arbiter_.present().term < p->primary->term() && p->gate <= now_ && !must_survive_;
    if (stands_still) {
        // The arbiter lost its memory, or some of it, and the one standby that could say whether it took
        // over is gone.
    } else if (p) {
        check(false, fmt::format("not protected again: host {} is {} ({}), its standby {}", p->index,
                                 to_text(p->primary->state()), p->primary->degraded(),
                                 peer(*p).standby ? to_text(peer(*p).standby->state()) : "none"));
    } else {
        check(!must_survive_ || stop_asked_, "the VM is lost");
        // Without a record, or with one of before, nobody may say who has what was handed over: it
        // stands still.
        for (const auto& h : hosts_)
            check(!h.standby || h.standby->state() != standby_state::taking_over ||
                      (!fences_ && arbiter_.present().term < h.standby->term()),
                  "a takeover that does not end");
    }
    finished_ = false;
    now_ = heal_at_ + 2 * (bound_ms + leaving_ms); // nothing more happens
}

} // namespace kagemusha::ha::test
