// SPDX-License-Identifier: GPL-2.0-or-later
//
// What is reported of QEMU to the state machines, and when: the counterpart of control/supervise/qemu_controller.cpp.
#include "world/supervisor.hpp"

#include "world/world.hpp"

namespace kagemusha::world {

using namespace ha;

namespace {

constexpr time_us look_period = 100 * ms, first_look_period = 10 * ms, hand_over_period = 2 * ms;
constexpr time_us ping_period = 500 * ms;
constexpr std::uint32_t checkpoints_until_protected = 2;

} // namespace

void supervisor::look_soon() {
    if (!alive_ || looks_)
        return;
    looks_ = true;
    w_.put(w_.now() + w_.below(static_cast<std::uint32_t>(look_period)), event_kind::look, host_.index,
           generation_, periodic_look);
}

void supervisor::checkpoint_committed() {
    if (!alive_)
        return;
    look_soon();
    if (!reported_protecting_ || host_.vm.handed_over())
        w_.put(w_.now() + w_.below(static_cast<std::uint32_t>(host_.vm.handed_over() ? hand_over_period
                                                                                     : first_look_period)),
               event_kind::look, host_.index, generation_, look_once);
}

void supervisor::checkpoint_loaded() {}

void supervisor::watch_frozen_qemu() {
    if (alive_)
        w_.put(w_.now() + w_.o.qemu_budget_ms * ms + w_.below(static_cast<std::uint32_t>(ping_period)),
               event_kind::look, host_.index, generation_, look_for_ping);
}

void supervisor::look(std::uint64_t what) {
    auto& vm = host_.vm;
    if (what == periodic_look)
        looks_ = false;
    if (!vm.alive())
        return;
    if (vm.frozen()) {
        if (what == look_for_ping && w_.now() + ping_period < vm.frozen_until + w_.o.qemu_budget_ms * ms) {
            killed_why_ = "its monitor gave no answer";
            order(0, [this] { host_.vm.kill(killed_why_); });
        }
        return what == periodic_look ? look_soon() : void();
    }
    const auto now = host_.clock_ms();
    if (vm.standby()) {
        if (vm.copy_lost() && !reported_copy_lost_ && standby_ && !w_.broken(mutation::forgets_lost_copy)) {
            reported_copy_lost_ = true;
            tell([&] { standby_->on_gpu_lost("a worker died", now); });
        }
        return;
    }
    if (vm.stream_is_broken() && primary_ && !reported_lost_)
        return replication_lost("the stream is broken"); // it happened while we stood still
    if (!vm.checkpointing() || !primary_)
        return;
    if (what == periodic_look)
        look_soon();
    if (vm.gpu_failed())
        tell([&] { primary_->on_gpu_failed("its worker died", now); });
    if (!primary_ || reported_lost_)
        return;
    if (vm.gpu_link_lost())
        return replication_lost("the standby has no copy of the GPU any more");
    if (w_.now() > vm.progress_at() + watchdog_ms * ms)
        return replication_lost("no checkpoint was committed for too long");
    if (vm.handed_over() && primary_)
        return tell([&] { primary_->on_qemu_handed_over(replication_, now); });
    if (vm.committed() >= checkpoints_until_protected && vm.disk_complete() && !reported_protecting_) {
        reported_protecting_ = true;
        tell([&] { primary_->on_qemu_protecting(replication_, now); });
    }
}

void supervisor::replication_lost(const std::string& why) {
    if (!alive_ || reported_lost_ || !primary_)
        return;
    if (frozen()) { // it reads that from QEMU's monitor when it wakes up
        look_soon();
        return;
    }
    reported_lost_ = true;
    tell([&] { primary_->on_qemu_replication_lost(replication_, why, host_.clock_ms()); });
}

void supervisor::qemu_ready() {
    if (alive_ && standby_)
        tell([&] { standby_->on_qemu_ready(qemu_, host_.clock_ms()); });
}

void supervisor::qemu_ended() {
    if (!alive_ || expects_death_)
        return;
    died_ = qemu_;
    // On a busy host it takes long until somebody has time for that.
    const std::uint64_t told_us = w_.below(10) == 0 ? w_.below(50000) : w_.below(1000);
    w_.put(w_.now() + 200 + told_us, event_kind::qemu_ended, host_.index, generation_, host_.vm.generation());
}

void supervisor::qemu_running() {
    if (alive_ && standby_)
        tell([&] { standby_->on_qemu_running(host_.clock_ms()); });
}

void supervisor::takeover_failed(const std::string& why) {
    if (!alive_ || !standby_)
        return;
    w_.ends.qemu_ended(host_.index);
    tell([&] { standby_->on_takeover_failed(why, host_.clock_ms()); });
}

void supervisor::answered(const arbiter_answer& answer) {
    if (answer.what == arbiter_answer::verdict::refused)
        w_.ends.refused(host_.index);
    tell([&] {
        if (standby_)
            standby_->on_arbiter(answer, host_.clock_ms());
        else if (primary_)
            primary_->on_arbiter(answer, host_.clock_ms());
    });
}

} // namespace kagemusha::world
