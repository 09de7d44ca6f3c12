// SPDX-License-Identifier: GPL-2.0-or-later
//
// Time in the simulated world: supervisors start, hear, act and send checkpoints; a VM speaks.
#include "control/ha/sim/world.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace kagemusha::ha::test {

void world::run() {
    start_primary(0);
    start_standby(1);
    std::vector<std::uint64_t> fault_at;
    for (unsigned i = 0; i < faults_; ++i)
        fault_at.push_back(300 + below(2500));
    heal_at_ = 3000 + below(1000);
    for (now_ = 1; now_ < heal_at_ + 2 * (bound_ms + leaving_ms) && !finished_ && violation_.empty();
         ++now_) {
        for (const auto at : fault_at)
            if (at == now_)
                fault();
        if (now_ == heal_at_)
            heal();
        step();
        if (now_ > heal_at_)
            look_after();
    }
}

// ---- people

primary_config world::primary_of(bool has_standby) const {
    primary_config c;
    c.vm = "vm";
    c.description = "same";
    c.parts = {{mirror::part_rule::equal, "machine", "same"}};
    c.heartbeat_ms = 20;
    c.heartbeat_budget_ms = budget_ms;
    c.renew_ms = 60;
    c.has_standby = has_standby;
    c.policy = stop_policy_ ? loss_policy::stop : loss_policy::degraded;
    c.switchover_ms = 200;
    c.stop_ms = 2000;
    c.stop_confirmed_ms = 300;
    c.resync = {50, 400, 1000, 10};
    c.shared_record = !fences_;
    c.disks = true;
    c.image = "disk.img";
    return c;
}

void world::start_primary(unsigned i) {
    auto& h = hosts_[i];
    h = host{};
    h.index = i;
    h.run = ++runs_;
    auto c = primary_of(true);
    c.instance = static_cast<std::uint64_t>(h.run);
    c.mark = images_[i];
    h.primary.emplace(c);
    h.primary->start(now_);
    carry_out(h);
}

void world::start_standby(unsigned i) {
    auto& h = hosts_[i];
    h = host{};
    h.index = i;
    h.run = ++runs_;
    standby_config c;
    c.vm = "vm";
    c.description = "same";
    c.parts = {{mirror::part_rule::equal, "machine", "same"}};
    c.instance = static_cast<std::uint64_t>(h.run);
    c.heartbeat_budget_ms = budget_ms;
    c.retry_ms = 30;
    c.look_ms = 200;
    c.shared_record = !fences_;
    c.disks = true;
    images_[i] = waits(images_[i]);
    c.mark = images_[i];
    h.standby.emplace(c);
    h.number = h.standby->qemu();
    h.ready_at = now_ + below(200);
}

// ---- time

void world::step() {
    for (auto& h : hosts_)
        if (h.up(now_)) {
            if (h.primary)
                step_primary(h);
            else
                step_standby(h);
        }
    for (auto& h : hosts_)
        speak(h);
}

void world::hear(host& h) {
    if (h.connecting && now_ >= *h.connecting) {
        h.connecting.reset();
        auto& to = peer(h);
        if (now_ >= partition_until_ && to.up(now_) && to.standby && !to.link && !h.link) {
            connected_ = h.link = to.link = true;
            for (auto* one : {&h, &to}) {
                one->inbox.items.clear();
                one->closing.reset();
            }
            to.standby->on_link_up(now_);
            carry_out(to);
            h.primary->on_link_up(now_);
        } else {
            h.primary->on_link_closed("no connection", now_);
        }
        carry_out(h);
    }
    while (auto m = h.inbox.take(now_)) {
        if (h.primary)
            h.primary->on_message(*m, now_);
        else if (h.standby)
            h.standby->on_message(*m, now_);
        carry_out(h);
    }
    if (h.link && h.closing && now_ >= *h.closing) {
        h.link = false;
        h.closing.reset();
        if (h.primary)
            h.primary->on_link_closed("closed", now_);
        else if (h.standby)
            closed(*h.standby);
        carry_out(h);
    }
}

void world::closed(standby_fsm& fsm) {
    if (broken_ == mutation::silence_is_proof)
        fsm.on_message(mirror::supervision{mirror::supervision_kind::died, fsm.term(), "silent"}, now_);
    fsm.on_link_closed("closed", now_);
}

void world::step_primary(host& h) {
    auto& fsm = *h.primary;
    if (h.death_unseen) {
        h.death_unseen = false;
        fsm.on_qemu_died("killed", false, now_);
        carry_out(h);
    }
    if (auto a = h.answers.take(now_); a && h.primary)
        fsm.on_arbiter(*a, now_);
    carry_out(h);
    if (h.primary)
        hear(h);
    step_marks(h);
    if (h.primary && h.qemu != 0)
        step_checkpoints(h);
    if (h.primary && h.running && h.gpu_failed && now_ % 20 == 0)
        fsm.on_gpu_failed("its worker died", now_);
    if (h.primary && cancel_at_ && now_ >= *cancel_at_) {
        cancel_at_.reset();
        fsm.on_cancel_switchover(now_);
    }
    if (h.primary && now_ >= fsm.deadline())
        fsm.on_tick(now_);
    carry_out(h);
}

// What is written to the images' marks is durable now.
void world::step_marks(host& h) {
    while (auto m = h.marks.take(now_)) {
        images_[h.index] = older_peer_ ? of_older_release(*m) : *m;
        if (h.primary)
            h.primary->on_marked({}, now_);
        else if (h.standby)
            h.standby->on_marked({}, now_);
        carry_out(h);
    }
}

disk_mark world::of_older_release(const disk_mark& m) {
    const bool is_none = m.state <= disk_state::newest; // it has no file for that
    return {is_none ? disk_state::unmarked : m.state, {}};
}

void world::mark(host& h, const disk_mark& m) {
    const bool is_late = broken_ == mutation::mark_comes_late && m.state == disk_state::protected_;
    h.marks.put(now_ + 1 + below(20), is_late ? disk_mark{disk_state::newest, m.of} : m);
}

void world::step_checkpoints(host& h) {
    auto& to = peer(h);
    if (h.running && !h.paused)
        ++h.vm;
    if (!h.replicating)
        return;
    const bool works = now_ >= partition_until_ && now_ >= stream_cut_until_ && to.qemu != 0 &&
                       to.qemu == h.to_qemu && to.standby && to.up(now_) && !to.takes_over_at && !to.running;
    if (works && now_ >= h.replicated_at && !h.lost_reported) {
        h.stream_broken_since.reset();
        if (!h.held) {
            h.held = true;
            h.gpu_cut = false; // no checkpoint comes before
            h.primary->on_qemu_protecting(h.replication, now_);
            commit(h, to);
        } else if (now_ % 10 == 0 && !to.copy_lost && !h.gpu_cut) {
            commit(h, to);
        }
        if (h.hand_over_at && now_ >= *h.hand_over_at && !to.copy_lost && !h.gpu_cut) {
            h.hand_over_at.reset();
            commit(h, to);
            h.primary->on_qemu_handed_over(h.replication, now_);
        }
    } else if (!works && !h.stream_broken_since) {
        h.stream_broken_since = now_ + 20 + below(300); // when TCP tells
    } else if (!works && now_ >= *h.stream_broken_since && !h.lost_reported) {
        h.lost_reported = true;
        h.primary->on_qemu_replication_lost(h.replication, "broken pipe", now_);
    }
    // Also by a device that is refused for as long as the standby has a copy to keep.
    if (h.held && (to.copy_lost || h.gpu_cut) && now_ % 20 == 0)
        h.primary->on_qemu_replication_lost(h.replication, "the standby's GPU", now_);
    carry_out(h);
}

void world::commit(host& from, host& to) {
    to.vm = from.committed = from.vm;
    to.line = from.line;
}

void world::step_standby(host& h) {
    auto& fsm = *h.standby;
    if (h.ready_at && now_ >= *h.ready_at) {
        h.ready_at.reset();
        h.qemu = ++qemus_;
        h.vm = 0;
        fsm.on_qemu_ready(h.number, now_);
        carry_out(h);
    }
    if (h.death_unseen) {
        h.death_unseen = false;
        if (h.died == h.number)
            h.takes_over_at.reset();
        fsm.on_qemu_died("killed", h.died, now_);
        carry_out(h);
    }
    if (auto a = h.answers.take(now_)) {
        if (h.standby)
            fsm.on_arbiter(*a, now_);
        else if (h.primary)
            h.primary->on_arbiter(*a, now_);
    }
    carry_out(h);
    step_marks(h);
    if (h.standby && h.copy_lost && !h.copy_lost_reported && h.qemu != 0 && now_ % 20 == 0) {
        h.copy_lost_reported = true;
        fsm.on_gpu_lost("a worker died", now_);
    }
    if (h.standby)
        hear(h);
    if (h.standby && h.takes_over_at && now_ >= *h.takes_over_at) {
        h.takes_over_at.reset();
        if (h.qemu != 0 && std::exchange(takeover_fails_, false)) {
            fsm.on_takeover_failed("a load error", now_);
        } else if (h.qemu != 0) {
            h.running = true;
            h.line = ++lines_;
            fsm.on_qemu_running(now_);
        }
        carry_out(h);
    }
    if (h.standby && now_ >= fsm.deadline())
        fsm.on_tick(now_);
    carry_out(h);
    if (h.standby && h.running && h.qemu != 0)
        ++h.vm;
}

// ---- the outside

// Output leaves: of a VM that runs, on a host that is awake, through an open gate.
void world::speak(host& h) {
    const bool awake = now_ >= h.frozen_until;
    const bool still = h.paused && broken_ != mutation::switchover_lets_run;
    const bool gate = now_ < h.gate || (broken_ == mutation::gate_stays_open && h.gate != 0);
    if (h.qemu == 0 || !h.running || !h.primary || !awake || !gate || still)
        return;
    const bool holds = h.replicating && h.held && broken_ != mutation::output_is_not_held;
    const auto told = holds ? h.committed : h.vm;
    if (told <= reported_ && h.line == spoken_)
        return;
    check(h.line >= spoken_, "two speakers");
    check(!stopped_in_order_, "a VM that was stopped speaks");
    spoken_ = h.line;
    reported_ = std::max(reported_, told);
}

} // namespace kagemusha::ha::test
