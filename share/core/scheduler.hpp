// SPDX-License-Identifier: GPL-2.0-or-later
// scheduler: which VM has the GPU. Pure: events with their time in, actions out.
//
// The model. One VM at a time has the GPU, for a turn. While it has it, it hands its commands to the driver
// as it likes (within its window, share/core/window.hpp); nothing of the others is in the driver's queues, so
// the time from the grant until it was given back is what the VM used, and no VM needs to be believed. A turn
// ends at a task's end: the VM is told to stop, and gives the GPU back when what it has in flight is over.
//
// A lone VM is granted the GPU once and never asked to give it back: its grant is not shared.
//
// Order: an action is carried out in the order in which it was given, and before the next event is reported.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "share/core/policy.hpp"

namespace kagemusha::share {

struct action {
    enum class kind : std::uint8_t {
        grant,     // it may begin tasks
        take_back, // it may begin no task, and gives the GPU back when those in flight are over
        share,     // others wait: it gives the GPU back when it has nothing to do (grants say it with them)
    };
    kind what;
    vm_id vm;
    bool shared = false; // of a grant

    bool operator==(const action&) const = default;
};

class scheduler {
public:
    explicit scheduler(policy_kind kind) : kind_(kind), policy_(make_policy(kind)) {}

    policy_kind kind() const { return kind_; }
    void set_policy(policy_kind kind, std::uint64_t now_ns);

    // ---- events. An id that is not known is ignored: its VM may have left meanwhile.
    void add(vm_id id, const vm_terms& terms, std::uint64_t now_ns);
    void change(vm_id id, const vm_terms& terms, std::uint64_t now_ns);
    // What it had in flight is over: its workers are gone.
    void remove(vm_id id, std::uint64_t now_ns);
    // It has a task that waits.
    void wants(vm_id id, std::uint64_t now_ns);
    // It has nothing in flight and nothing granted any more. Said again while that is so, it changes nothing.
    void released(vm_id id, bool wants_more, std::uint64_t now_ns);
    // What it has in flight may wait for its guest: the others wait for stall_ns only, not for patience_ns,
    // until it has given the GPU back.
    void hurry(vm_id id, std::uint64_t now_ns);
    // It used the GPU for so long without having had it.
    void charge(vm_id id, std::uint64_t ns, std::uint64_t now_ns);
    void advance(std::uint64_t now_ns);

    // ---- what to do, in order
    std::optional<action> next_action();
    // When advance() is to be called next, unless something happens before; UINT64_MAX: only then.
    std::uint64_t next_ns() const { return next_ns_; }

    // ---- what is
    std::vector<vm_state> vms(std::uint64_t now_ns);
    const vm_state* find(vm_id id) const;

private:
    vm_state* known(vm_id id);
    void settle(std::uint64_t now_ns); // charges everybody up to now
    void settle(vm_state& vm, std::uint64_t now_ns);
    void weigh(std::uint64_t now_ns); // who gets which part
    void enter(vm_state& vm, vm_phase phase, std::uint64_t now_ns);
    void wake(vm_state& vm, std::uint64_t now_ns);
    void throttle(vm_state& vm);
    void decide(std::uint64_t now_ns);
    void decide_turn(vm_state& current, vm_state* best, std::uint64_t now_ns);
    void begin_turn(vm_state& vm, std::uint64_t now_ns);
    void end_turn(vm_state& vm, std::uint64_t now_ns);
    bool keeps_in_gap(const vm_state& vm, std::uint64_t now_ns);
    void end_gap(vm_state& vm, std::uint64_t now_ns);
    void decide_gap(vm_state& current, const vm_state* best, std::uint64_t now_ns);
    vm_state* best_waiting(std::uint64_t now_ns);
    bool anybody_waits() const;
    bool may_begin(const vm_state& vm) const;
    std::uint64_t slice_ns() const;
    void wake_at(std::uint64_t ns);

    policy_kind kind_;
    std::unique_ptr<policy> policy_;
    std::vector<vm_state> vms_;    // at most max_vms
    std::optional<vm_id> current_; // running or leaving
    bool current_shares_ = false;
    std::uint64_t turn_began_ns_ = 0, turn_ends_ns_ = 0;
    std::uint64_t turn_number_ = 0;
    std::uint64_t floor_virtual_ns_ = 0; // no VM that wakes is further behind than this, less its credit
    std::uint64_t next_ns_ = UINT64_MAX;
    std::deque<action> actions_; // a few for each event
};

} // namespace kagemusha::share
