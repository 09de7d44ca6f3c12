// SPDX-License-Identifier: GPL-2.0-or-later
//
// What the program in the VM does (guest.hpp), and its GPU and disk do for it.
#include "world/world.hpp"

namespace kagemusha::world {

namespace {

std::uint32_t slot_of(std::uint32_t request) {
    return request % slots;
}
std::uint8_t bit_of(std::uint32_t request) {
    return static_cast<std::uint8_t>(1u << slot_of(request));
}

} // namespace

// From the disk alone: the program finds there what it had done. That may be in the host's cache only, from a
// life that ended before its flush, so it flushes before it answers from it.
void qemu::boot_guest() {
    vm_ = {};
    vm_.node = w_.output.new_root();
    const auto& blocks = host_.image.read();
    for (std::uint32_t i = 0; i < slots; ++i) {
        vm_.requests = std::max(vm_.requests, blocks[i]);
        vm_.read[i] = blocks[i];
        vm_.own[i] = blocks[i] | owned;
    }
    vm_.gpu_since = vm_.requests;
    gpu_value_ = 0;
    if (vm_.requests != 0)
        vm_.at = guest::phase::flushing;
    resume_guest();
}

// What was under way goes on.
void qemu::resume_guest() {
    ++work_;
    put(w_.below(50) * ms, event_kind::guest_speaks, work_);
    if (vm_.at == guest::phase::computing)
        put((1 + w_.below(10)) * ms, event_kind::gpu_done, work_);
    if (vm_.at == guest::phase::flushing)
        put(w_.o.flush_ms * ms, event_kind::flushed, work_);
    if (vm_.open)
        put((1 + w_.below(60)) * ms, event_kind::gpu_answered, work_);
}

void qemu::step() {
    vm_.node = w_.output.new_node(vm_.node);
}

void qemu::speak() {
    put((20 + w_.below(60)) * ms, event_kind::guest_speaks, work_);
    step();
    packet p;
    p.node = vm_.node;
    say(p);
}

void qemu::request(std::uint32_t number) {
    if (vm_.at != guest::phase::idle)
        return; // the client asks again
    if (number != vm_.requests + 1)
        return reply(); // an answer got lost; or this VM has forgotten some, and it will show
    if (vm_.open)
        gpu_answered();
    step();
    vm_.requests = number;
    host_.image.write(slot_of(number), number);
    dirty_blocks_ |= bit_of(number);
    ++vm_.entries;
    vm_.at = guest::phase::computing;
    send_log();
    if (!gpu_failed_)
        put((1 + w_.below(10)) * ms, event_kind::gpu_done, work_);
}

// The worker writes into the VM's memory itself: no dirty log sees it.
void qemu::gpu_done() {
    if (vm_.at != guest::phase::computing || gpu_failed_)
        return;
    ++gpu_value_;
    vm_.read[slot_of(vm_.requests)] = vm_.own[slot_of(vm_.requests)] = vm_.requests;
    vm_.open = true;
    put((2 + w_.below(100)) * ms, event_kind::gpu_answered, work_);
    step();
    vm_.at = guest::phase::flushing;
    put(host_.image.ends(w_.now(), w_.o.flush_ms * ms) - w_.now(), event_kind::flushed, work_);
}

// The device answers the request, and marks the memory that it wrote.
void qemu::gpu_answered() {
    if (!vm_.open)
        return;
    vm_.open = false;
    dirty_read_ |= bit_of(vm_.requests);
    dirty_own_ |= bit_of(vm_.requests);
}

void qemu::flushed() {
    if (vm_.at != guest::phase::flushing)
        return;
    if (w_.now() < host_.image.fails_until || w_.now() < host_.image.hangs_until) // the program tries again
        return put(std::max<time_us>(host_.image.ends(w_.now(), 20 * ms) - w_.now(), 20 * ms),
                   event_kind::flushed, work_);
    if (!w_.broken(mutation::forgets_flush))
        host_.image.flush();
    step();
    vm_.own[slot_of(vm_.requests)] |= owned;
    dirty_own_ |= bit_of(vm_.requests);
    vm_.at = guest::phase::idle;
    reply();
}

void qemu::reply() {
    const auto r = vm_.requests;
    const auto& blocks = host_.image.read();
    packet p;
    p.node = vm_.node;
    p.request = r;
    p.gpu_value = gpu_value_ + vm_.gpu_since;
    p.words[0] = vm_.read[slot_of(r)];
    p.words[1] = vm_.own[slot_of(r)];
    p.before[0] = vm_.read[slot_of(r + slots - 1)];
    p.before[1] = vm_.own[slot_of(r + slots - 1)];
    p.blocks[0] = blocks[slot_of(r)];
    p.blocks[1] = blocks[slot_of(r + slots - 1)];
    say(p);
}

// The program gets an error, makes its GPU's state anew and computes on the CPU what is missing.
void qemu::report_gpu_failure() {
    if (!alive_ || standby_ || !gpu_failed_)
        return;
    gpu_failed_ = false;
    w_.say(host_.index, "qemu: the guest is told of its GPU's failure");
    lose_gpu_state();
    if (runs_ && !stopped_)
        resume_guest();
}

void qemu::lose_gpu_state() {
    gpu_value_ = 0;
    vm_.gpu_since = vm_.requests;
    if (vm_.at != guest::phase::computing)
        return;
    vm_.read[slot_of(vm_.requests)] = vm_.own[slot_of(vm_.requests)] = vm_.requests;
    dirty_read_ |= bit_of(vm_.requests);
    dirty_own_ |= bit_of(vm_.requests);
    vm_.at = guest::phase::flushing;
}

} // namespace kagemusha::world
