// SPDX-License-Identifier: GPL-2.0-or-later
//
// The dialogue of checkpoints between two QEMUs: qemu-device/README.md has the order that is modelled.
//
//   primary                                standby
//   takes a checkpoint, the VM goes on
//   sends it                        ──▶    has everything: received
//   commits: releases what it covers ◀──   loads it: memory, devices, disk
//   may take the next one           ◀──    loaded
//
// What was received is loaded before a takeover; what has arrived in part is dropped.
#include "world/world.hpp"

namespace kagemusha::world {

namespace {

constexpr std::uint8_t everything = (1u << slots) - 1;
constexpr std::uint32_t gpu_poll_ms = 20;

} // namespace

// The other end of our stream, if it is still that one.
qemu* qemu::peer() {
    if (standby_) {
        auto& p = w_.hosts[from_]->vm;
        return p.alive_ && p.phase_ != phase::none && p.to_ == host_.index && p.to_generation_ == generation_
                   ? &p
                   : nullptr;
    }
    if (phase_ == phase::none)
        return nullptr;
    auto& s = w_.hosts[to_]->vm;
    return s.alive_ && s.generation_ == to_generation_ && s.standby_ ? &s : nullptr;
}

// ---- a primary: the beginning

void qemu::replicate(std::uint8_t to) {
    if (!alive_ || standby_)
        return;
    ++stream_;
    phase_ = phase::copying_gpu;
    to_ = to;
    to_generation_ = 0;
    under_way_ = peer_loads_ = broken_ = gpu_link_lost_ = handing_over_ = disk_complete_ = false;
    taken_ = committed_ = 0;
    progress_at_ = w_.now();
    put(gpu_poll_ms * ms, event_kind::gpu_copied, stream_);
}

void qemu::gpu_copied() {
    if (phase_ != phase::copying_gpu)
        return;
    auto& s = w_.hosts[to_]->vm;
    if (!s.listens() || s.peer() || !runs_ || w_.net.blocked(host_.index, to_, port::gpu) ||
        w_.net.blocked(to_, host_.index, port::gpu) || w_.net.blocked(host_.index, to_, port::state))
        return put(gpu_poll_ms * ms, event_kind::gpu_copied, stream_);
    to_generation_ = s.generation_;
    s.from_ = host_.index;
    s.log_received_ = log_there_ = vm_.entries;
    phase_ = phase::sending_state;
    w_.put(w_.net.arrival(host_.index, to_, port::state) + w_.o.state_ms * ms, event_kind::state_sent,
           host_.index, generation_, stream_);
}

void qemu::state_sent() {
    if (phase_ != phase::sending_state || broken_)
        return;
    if (w_.net.blocked(host_.index, to_, port::state))
        return w_.put(w_.net.arrival(host_.index, to_, port::state), event_kind::state_sent, host_.index,
                      generation_, stream_);
    if (!peer())
        return break_stream("the standby's QEMU is gone");
    phase_ = phase::checkpointing;
    holding_ = true;
    dirty_read_ = dirty_own_ = everything;
    dirty_blocks_ = 0;
    disk_missing_ = everything;
    w_.say(host_.index, "qemu: checkpoints begin");
    begin_epoch(0);
    if (gpu_link_lost_ || gpu_failed_)
        host_.process.look_soon();
}

// ---- a primary: checkpoints

void qemu::begin_epoch(time_us in) {
    put(in, event_kind::epoch, stream_);
}

void qemu::take_checkpoint() {
    if (phase_ != phase::checkpointing || broken_ || under_way_ || peer_loads_)
        return;
    if (gpu_link_lost_ || (log_there_ < vm_.entries && !w_.broken(mutation::commits_without_gpu)))
        return wait_for_gpu();
    sent_ = {};
    sent_.number = ++taken_;
    sent_.vm = vm_;
    sent_.gpu_value = gpu_value_;
    // What the GPU reads into is not in the dirty log before the request's answer. The program may know of
    // its end already, so what an in-flight request writes belongs to each checkpoint.
    if (vm_.open && !w_.broken(mutation::forgets_reads_in_flight)) {
        dirty_read_ |= 1u << vm_.requests % slots;
        dirty_own_ |= 1u << vm_.requests % slots;
    }
    sent_.dirty_read = dirty_read_;
    sent_.dirty_own = dirty_own_;
    // A piece of the first copy, and what was written.
    const std::uint8_t piece = disk_missing_ & (~disk_missing_ + 1u);
    disk_missing_ &= ~std::uint32_t{piece};
    sent_.dirty_blocks = dirty_blocks_ | piece;
    if (w_.broken(mutation::forgets_dirty_disk) && disk_missing_ == 0)
        sent_.dirty_blocks = piece;
    sent_.blocks = host_.image.read();
    sent_.disk_complete = disk_missing_ == 0;
    sent_.covers = held_.size();
    sent_.last = stopped_;
    dirty_read_ = dirty_own_ = dirty_blocks_ = 0;
    under_way_ = true;
    if (auto* const s = peer(); s && !s->received_waits_) {
        s->received_ = sent_; // as it streams in; nothing of it counts yet
        s->partial_ = true;
    }
    w_.put(w_.net.arrival(host_.index, to_, port::state) + ms, event_kind::checkpoint_arrived, host_.index,
           generation_, stream_);
}

// No checkpoint names a state of the GPU that the standby does not have. The devices have heartbeats.
void qemu::wait_for_gpu() {
    if (!gpu_link_lost_ && w_.now() > progress_at_ + (w_.o.heartbeat_budget_ms + w_.o.epoch_ms) * ms &&
        w_.net.blocked(host_.index, to_, port::gpu))
        break_gpu_link();
    begin_epoch(5 * ms);
}

void qemu::checkpoint_arrived() {
    if (phase_ != phase::checkpointing || broken_)
        return;
    if (w_.net.blocked(host_.index, to_, port::state))
        return w_.put(w_.net.arrival(host_.index, to_, port::state), event_kind::checkpoint_arrived,
                      host_.index, generation_, stream_);
    auto* const s = peer();
    if (!s || !s->standby_ || s->taking_over_) {
        if (w_.hosts[to_]->up())
            break_stream("the standby's QEMU is gone");
        return; // nobody says anything
    }
    if (s->frozen()) {
        const auto thaws = std::max(s->frozen_until, s->host_.frozen_until);
        return w_.put(thaws, event_kind::checkpoint_arrived, host_.index, generation_, stream_);
    }
    s->received_ = sent_;
    s->received_waits_ = true;
    s->partial_ = false;
    w_.put(w_.net.arrival(to_, host_.index, port::state), event_kind::received, host_.index, generation_,
           stream_);
    s->load_received();
}

void qemu::received() {
    if (phase_ != phase::checkpointing || broken_ || !under_way_)
        return;
    if (w_.net.blocked(to_, host_.index, port::state))
        return w_.put(w_.net.arrival(to_, host_.index, port::state), event_kind::received, host_.index,
                      generation_, stream_);
    under_way_ = false;
    peer_loads_ = !loaded_early_;
    loaded_early_ = false;
    committed_ = sent_.number;
    disk_complete_ = sent_.disk_complete;
    progress_at_ = w_.now();
    ++w_.stats.checkpoints;
    release(sent_.covers);
    host_.process.checkpoint_committed();
    if (!peer_loads_)
        begin_epoch(handing_over_ ? ms : w_.o.epoch_ms * ms);
}

void qemu::loaded() {
    if (phase_ != phase::checkpointing || broken_)
        return;
    if (w_.net.blocked(to_, host_.index, port::state))
        return w_.put(w_.net.arrival(to_, host_.index, port::state), event_kind::loaded, host_.index,
                      generation_, stream_);
    if (under_way_) {
        loaded_early_ = true; // both words are on their way; the first one comes first
        return;
    }
    peer_loads_ = false;
    begin_epoch(handing_over_ ? ms : w_.o.epoch_ms * ms);
}

// ---- a primary: the end

void qemu::break_stream(const std::string& why) {
    if (!alive_ || standby_ || phase_ == phase::none || broken_)
        return;
    broken_ = true;
    if (w_.broken(mutation::goes_on_unasked)) {
        holding_ = false;
        release(held_.size());
    }
    host_.process.replication_lost(why);
}

void qemu::stop_replicating() {
    ++stream_;
    phase_ = phase::none;
    holding_ = under_way_ = peer_loads_ = broken_ = handing_over_ = false;
}

// Only after the arbiter has recorded it (primary_fsm.hpp).
void qemu::go_on_alone() {
    if (!alive_ || standby_)
        return;
    w_.say(host_.index, "qemu: goes on alone, releases {}", held_.size());
    stop_replicating();
    release(held_.size());
    const bool stood_still = std::exchange(stopped_, false);
    report_gpu_failure();
    if (stood_still && runs_)
        resume_guest();
}

// The VM stands still, and the second checkpoint from now has all of it.
bool qemu::hand_over() {
    if (!runs() || phase_ != phase::checkpointing || stopped_)
        return false;
    stopped_ = true;
    handing_over_ = true;
    hand_over_at_ = committed_ + 2;
    if (!under_way_ && !peer_loads_)
        begin_epoch(0);
    return true;
}

bool qemu::handed_over() const {
    return alive_ && handing_over_ && committed_ >= hand_over_at_ && !broken_;
}

// ---- the GPU's log

void qemu::send_log() {
    auto* const s = phase_ == phase::none || phase_ == phase::copying_gpu ? nullptr : peer();
    if (!s || gpu_link_lost_)
        return;
    w_.put(w_.net.arrival(host_.index, to_, port::gpu), event_kind::gpu_log_arrived, to_, to_generation_,
           vm_.entries);
}

// ---- a standby

void qemu::load_received() {
    if (loading_ || !received_waits_)
        return;
    if (fail_next_load || w_.now() < host_.image.fails_until) {
        fail_next_load = false;
        return kill("it can't load a checkpoint");
    }
    loading_ = true;
    put(host_.image.ends(w_.now(), w_.o.load_ms * ms) - w_.now(), event_kind::load_done);
}

void qemu::apply() {
    const auto& c = received_;
    const auto before = loaded_;
    loaded_ = c.vm;
    for (std::uint32_t i = 0; i < slots; ++i) {
        if ((c.dirty_read >> i & 1) == 0)
            loaded_.read[i] = before.read[i];
        if ((c.dirty_own >> i & 1) == 0)
            loaded_.own[i] = before.own[i];
        if ((c.dirty_blocks >> i & 1) != 0)
            host_.image.write(i, c.blocks[i]);
    }
    loaded_gpu_ = c.gpu_value;
}

void qemu::load_done() {
    if (!loading_)
        return;
    if (w_.now() < host_.image.hangs_until) // it began to hang meanwhile
        return put(host_.image.ends(w_.now(), w_.o.load_ms * ms) - w_.now(), event_kind::load_done);
    loading_ = false;
    apply();
    received_waits_ = false;
    ++loaded_count_;
    host_.process.checkpoint_loaded();
    if (taking_over_)
        return put(ms, event_kind::take_over_done);
    if (auto* const p = peer())
        w_.put(w_.net.arrival(host_.index, p->host_.index, port::state), event_kind::loaded, p->host_.index,
               p->generation_, p->stream_);
}

// The stream is cut off first. A checkpoint that was acknowledged is loaded.
void qemu::take_over() {
    if (!alive_ || !standby_)
        return host_.process.takeover_failed("it does not run");
    if (auto* const p = peer())
        w_.put(w_.net.arrival(host_.index, p->host_.index, port::state), event_kind::stream_broken,
               p->host_.index, p->generation_);
    taking_over_ = true;
    if (w_.broken(mutation::forgets_received))
        received_waits_ = loading_ = false;
    if (w_.broken(mutation::loads_half_a_checkpoint) && partial_ && loaded_count_ != 0) {
        const auto program = loaded_;
        apply();
        loaded_.node = program.node;
        loaded_.requests = program.requests;
        loaded_.at = program.at;
    }
    partial_ = false;
    if (loading_)
        return;
    if (received_waits_)
        return load_received();
    if (loaded_count_ == 0)
        return host_.process.takeover_failed("it has no checkpoint");
    put(ms + w_.below(20) * ms, event_kind::take_over_done);
}

void qemu::finish_take_over() {
    if (!taking_over_)
        return;
    taking_over_ = standby_ = listening_ = false;
    vm_ = loaded_;
    run_ = w_.output.new_run();
    runs_ = true;
    gpu_value_ = loaded_gpu_;
    if (log_received_ < vm_.entries) // its GPU never saw them
        gpu_value_ -= std::min(gpu_value_, vm_.entries - log_received_);
    if (w_.broken(mutation::runs_gpu_tail) && log_received_ > vm_.entries)
        gpu_value_ += log_received_ - vm_.entries;
    if (w_.broken(mutation::reads_again) && vm_.open) {
        vm_.read[vm_.requests % slots] = vm_.requests;
        vm_.own[vm_.requests % slots] = vm_.requests;
    }
    dirty_read_ = dirty_own_ = dirty_blocks_ = 0;
    if (copy_lost_ && w_.broken(mutation::forgets_lost_copy))
        gpu_value_ = 0;
    else if (copy_lost_)
        lose_gpu_state();
    copy_lost_ = false;
    w_.say(host_.index, "qemu: the VM goes on here (run {}, request {})", run_, vm_.requests);
    ++w_.stats.takeovers;
    resume_guest();
    host_.process.qemu_running();
}

} // namespace kagemusha::world
