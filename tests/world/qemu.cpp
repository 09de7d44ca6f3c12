// SPDX-License-Identifier: GPL-2.0-or-later
//
// QEMU's life, its output, and what happens to it (qemu.hpp).
#include "world/world.hpp"

namespace kagemusha::world {

void qemu::put(time_us in, event_kind kind, std::uint64_t arg) {
    w_.put(w_.now() + in, kind, host_.index, generation_, arg);
}

bool qemu::frozen() const {
    return w_.now() < std::max(frozen_until, host_.frozen_until);
}

// Another process.
void qemu::reset() {
    ++generation_;
    alive_ = standby_ = runs_ = stopped_ = listening_ = false;
    vm_ = loaded_ = {};
    gpu_value_ = loaded_gpu_ = loaded_count_ = log_received_ = log_there_ = 0;
    gpu_failed_ = holding_ = copy_lost_ = false;
    dirty_read_ = dirty_own_ = dirty_blocks_ = 0;
    held_.clear();
    phase_ = phase::none;
    under_way_ = peer_loads_ = loaded_early_ = broken_ = false;
    disk_complete_ = gpu_link_lost_ = handing_over_ = false;
    taken_ = committed_ = 0;
    received_waits_ = loading_ = taking_over_ = partial_ = false;
}

void qemu::start_primary() {
    reset();
    alive_ = true;
    put((20 + w_.below(100)) * ms, event_kind::guest_ready);
}

void qemu::start_standby() {
    reset();
    alive_ = standby_ = true;
    put((20 + w_.below(100)) * ms, event_kind::qemu_listens);
}

// SIGKILL, by whomever. The kernel tells its supervisor.
void qemu::kill(const std::string& why) {
    if (!alive_)
        return;
    w_.say(host_.index, "qemu: killed, {}", why);
    alive_ = runs_ = false;
    ++generation_;
    frozen_until = 0;
    if (auto* const other = peer()) // its connections are closed by the kernel
        if (host_.up())
            w_.put(w_.net.arrival(host_.index, other->host_.index, port::state), event_kind::stream_broken,
                   other->host_.index, other->generation_);
    for (auto& h : w_.hosts) // whoever sends to it
        if (host_.up() && h->vm.alive_ && h->vm.phase_ != phase::none && h->vm.to_ == host_.index &&
            h->vm.to_generation_ + 1 == generation_)
            w_.put(w_.net.arrival(host_.index, h->index, port::state), event_kind::stream_broken, h->index,
                   h->vm.generation_);
    host_.process.qemu_ended();
}

void qemu::happen(const event& e) {
    if (e.generation != generation_ || !alive_)
        return;
    if (frozen()) {
        // What comes from elsewhere waits in a socket, what is its own waits, too.
        auto later = e;
        later.at = std::max(frozen_until, host_.frozen_until);
        return w_.put(later);
    }
    const bool guests = runs_ && !stopped_ && e.arg == work_;
    switch (e.kind) {
    case event_kind::guest_ready:
        runs_ = true;
        run_ = w_.output.new_run();
        ++w_.stats.boots;
        w_.liveness.vm_starts(host_.index);
        w_.say(host_.index, "qemu: the VM boots (run {})", run_);
        return boot_guest();
    case event_kind::qemu_listens:
        listening_ = true;
        return host_.process.qemu_ready();
    case event_kind::guest_speaks:
        return guests ? speak() : void();
    case event_kind::gpu_done:
        return guests ? gpu_done() : void();
    case event_kind::gpu_answered:
        return guests ? gpu_answered() : void();
    case event_kind::flushed:
        return guests ? flushed() : void();
    case event_kind::epoch:
        return e.arg == stream_ ? take_checkpoint() : void();
    case event_kind::gpu_copied:
        return e.arg == stream_ ? gpu_copied() : void();
    case event_kind::state_sent:
        return e.arg == stream_ ? state_sent() : void();
    case event_kind::checkpoint_arrived:
        return e.arg == stream_ ? checkpoint_arrived() : void();
    case event_kind::received:
        return e.arg == stream_ ? received() : void();
    case event_kind::loaded:
        return e.arg == stream_ ? loaded() : void();
    case event_kind::gpu_log_arrived:
        log_received_ = std::max(log_received_, static_cast<std::uint32_t>(e.arg));
        if (auto* const p = peer())
            w_.put(w_.net.arrival(host_.index, p->host_.index, port::gpu), event_kind::gpu_log_acknowledged,
                   p->host_.index, p->generation_, std::uint64_t{p->stream_} << 32 | log_received_);
        return;
    case event_kind::gpu_log_acknowledged:
        if (e.arg >> 32 == stream_)
            log_there_ = std::max(log_there_, static_cast<std::uint32_t>(e.arg));
        return;
    case event_kind::stream_broken:
        return break_stream("the peer's QEMU has ended");
    case event_kind::load_done:
        return load_done();
    case event_kind::take_over_done:
        return finish_take_over();
    case event_kind::copy_lost_there:
        return e.arg == stream_ ? break_gpu_link() : void();
    default:
        return;
    }
}

// ---- output

void qemu::say(const packet& p) {
    if (holding_ && !w_.broken(mutation::held_output_leaves))
        held_.push_back(p);
    else
        leave(p);
}

void qemu::release(std::size_t count) {
    for (std::size_t i = 0; i < count && !held_.empty(); ++i) {
        const auto p = held_.front();
        held_.pop_front();
        leave(p);
    }
}

// Behind the gate there is the outside.
void qemu::leave(const packet& p) {
    if (!host_.process.gate_is_open() && !w_.broken(mutation::gate_stays_open))
        return;
    if (w_.net.cut_off(host_.index))
        return;
    w_.liveness.vm_starts(host_.index); // one that only runs, and is never heard, does no harm
    w_.output.spoke(host_.index, run_, p);
    w_.outside.hear(p);
}

// ---- faults

void qemu::fail_gpu() {
    if (!runs() || gpu_failed_)
        return;
    gpu_failed_ = true;
    w_.say(host_.index, "qemu: its GPU fails");
    if (phase_ == phase::checkpointing)
        host_.process.look_soon(); // the device holds it back
    else
        report_gpu_failure();
}

// Of a standby: one of its workers died.
void qemu::lose_copy() {
    if (!alive_ || !standby_ || copy_lost_ || loaded_count_ == 0)
        return;
    copy_lost_ = true;
    w_.say(host_.index, "qemu: its GPU has no copy any more");
    if (w_.broken(mutation::forgets_lost_copy))
        return;
    host_.process.look_soon();
    if (auto* const p = peer())
        w_.put(w_.net.arrival(host_.index, p->host_.index, port::gpu), event_kind::copy_lost_there,
               p->host_.index, p->generation_, p->stream_);
}

void qemu::break_gpu_link() {
    if (!alive_ || phase_ == phase::none || gpu_link_lost_)
        return;
    if (phase_ == phase::copying_gpu)
        return; // it is made again
    gpu_link_lost_ = true;
    host_.process.look_soon();
}

} // namespace kagemusha::world
