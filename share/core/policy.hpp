// SPDX-License-Identifier: GPL-2.0-or-later
// policy: who is next. One small file each; the scheduler knows turns, limits and debts, a policy only
// compares VMs. Pure: time is an argument.
#pragma once

#include <cstdint>
#include <memory>

#include "share/core/limits.hpp"
#include "share/core/terms.hpp"

namespace kagemusha::share {

using vm_id = std::uint32_t; // the caller's

enum class vm_phase : std::uint8_t {
    idle,    // has nothing to do
    waiting, // has work, and not the GPU
    running, // has the GPU
    leaving, // is to give it back after what it has in flight
    stuck,   // leaving for longer than patience_ns; others run meanwhile
};

struct vm_state {
    vm_id id = 0;
    vm_terms terms;
    vm_phase phase = vm_phase::idle;
    bool throttled = false;             // waiting, and its limit does not let it begin
    bool impatient = false;             // see scheduler::hurry()
    bool wants_more = false;            // leaving or stuck, with work that waits
    std::uint32_t weight_permille = 0;  // of the GPU's time: what it asked for, or its part of the rest
    std::uint64_t since_ns = 0;         // of the phase
    std::uint64_t charged_until_ns = 0; // running, leaving, stuck
    std::uint64_t virtual_ns = 0;       // charged time, divided by weight: fair
    std::int64_t credit_ns = 0;         // time that it may have at once, if it is limited; negative: debt
    std::uint64_t credit_at_ns = 0;     // when that was computed
    std::uint32_t rate_permille = 0;    // at which credit comes in; 0: not limited
    std::uint64_t turn_number = 0;      // of its last turn

    // Gaps between its tasks, while others wait (scheduler::keeps_in_gap()).
    std::uint64_t gap_ends_ns = 0;         // running, in a gap: when it loses the GPU; 0: in none
    std::uint64_t left_ns = 0;             // when it last had nothing to do
    std::uint64_t works_since_ns = 0;      // running: since when without a gap
    std::uint64_t gap_ns = unknown_gap_ns; // about, of the last few
    std::uint64_t work_ns = 0;             // about, between the last few

    // Accounts, for people.
    std::uint64_t held_ns = 0, waited_ns = 0, longest_turn_ns = 0, turns = 0, times_stuck = 0;
};

class policy {
public:
    virtual ~policy() = default;

    // A VM comes, or has work after it had none. `least`: the smallest virtual time of those that have work,
    // or of the VM itself.
    virtual void wakes(vm_state& vm, std::uint64_t least_virtual_ns) const;
    // It has had the GPU for so long.
    virtual void ran(vm_state& vm, std::uint64_t ns) const;
    // Whether `a` comes before `b`; both wait.
    virtual bool before(const vm_state& a, const vm_state& b, std::uint64_t now_ns) const = 0;
    // Whether `waiting` is to have the GPU although the turn of `current` is not over.
    virtual bool preempts(const vm_state& waiting, const vm_state& current, std::uint64_t now_ns) const = 0;
    // At what rate it may use the GPU, though nobody else wants it. 0: as it likes.
    virtual std::uint32_t rate_permille(const vm_state& vm) const;
    // How much of its time a limited VM saves up; of a VM that waits or is idle.
    virtual std::uint64_t saved_ns(const vm_state& vm) const;
    // A turn of it begins; it still waits.
    virtual void begins(const vm_state& vm, std::uint64_t now_ns);
};

std::unique_ptr<policy> make_policy(policy_kind kind);

// One for each file.
std::unique_ptr<policy> make_fair();
std::unique_ptr<policy> make_round_robin();
std::unique_ptr<policy> make_fixed();
std::unique_ptr<policy> make_priority();

// Fair, for those that compare by it where nothing else decides.
bool is_further_behind(const vm_state& a, const vm_state& b);
std::uint64_t virtual_time(std::uint64_t ns, std::uint32_t weight_permille);

} // namespace kagemusha::share
