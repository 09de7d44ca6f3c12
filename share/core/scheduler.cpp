// SPDX-License-Identifier: GPL-2.0-or-later
// scheduler: see scheduler.hpp.
#include "share/core/scheduler.hpp"

#include <algorithm>
#include <utility>

namespace kagemusha::share {

namespace {

bool has_gpu(const vm_state& vm) {
    return vm.phase == vm_phase::running || vm.phase == vm_phase::leaving || vm.phase == vm_phase::stuck;
}

std::uint64_t patience_with(const vm_state& vm) {
    return vm.impatient ? stall_ns : patience_ns;
}

// Enough for a turn, also at a small rate.
std::int64_t most_saved_ns(const policy& policy, const vm_state& vm) {
    return static_cast<std::int64_t>(
        std::max(policy.saved_ns(vm) * vm.rate_permille / whole_permille, min_slice_ns));
}

} // namespace

vm_state* scheduler::known(vm_id id) {
    const auto at = std::ranges::find(vms_, id, &vm_state::id);
    return at == vms_.end() ? nullptr : &*at;
}

const vm_state* scheduler::find(vm_id id) const {
    return const_cast<scheduler*>(this)->known(id);
}

// ---- events

void scheduler::set_policy(policy_kind kind, std::uint64_t now_ns) {
    settle(now_ns);
    kind_ = kind;
    policy_ = make_policy(kind);
    weigh(now_ns);
    decide(now_ns);
}

void scheduler::add(vm_id id, const vm_terms& terms, std::uint64_t now_ns) {
    if (known(id) != nullptr || vms_.size() >= max_vms)
        return;
    settle(now_ns);
    vm_state vm;
    vm.id = id;
    vm.terms = terms;
    vm.since_ns = vm.credit_at_ns = now_ns;
    vm.virtual_ns = floor_virtual_ns_;
    vms_.push_back(vm);
    weigh(now_ns);
    decide(now_ns);
}

void scheduler::change(vm_id id, const vm_terms& terms, std::uint64_t now_ns) {
    settle(now_ns);
    if (vm_state* vm = known(id)) {
        vm->terms = terms;
        weigh(now_ns);
        decide(now_ns);
    }
}

void scheduler::remove(vm_id id, std::uint64_t now_ns) {
    settle(now_ns);
    if (current_ == id)
        current_.reset();
    std::erase_if(vms_, [&](const vm_state& vm) { return vm.id == id; });
    std::erase_if(actions_, [&](const action& a) { return a.vm == id; });
    weigh(now_ns);
    decide(now_ns);
}

void scheduler::wants(vm_id id, std::uint64_t now_ns) {
    settle(now_ns);
    vm_state* vm = known(id);
    if (vm == nullptr)
        return;
    switch (vm->phase) {
    case vm_phase::idle:
        end_gap(*vm, now_ns);
        wake(*vm, now_ns);
        break;
    case vm_phase::running: // after a gap, or another of its processes: it may begin, too
        if (vm->gap_ends_ns != 0)
            end_gap(*vm, now_ns);
        actions_.push_back({action::kind::grant, id, current_shares_});
        break;
    case vm_phase::leaving:
    case vm_phase::stuck:
        vm->wants_more = true;
        break;
    case vm_phase::waiting:
        break;
    }
    decide(now_ns);
}

void scheduler::released(vm_id id, bool wants_more, std::uint64_t now_ns) {
    settle(now_ns);
    vm_state* vm = known(id);
    if (vm == nullptr || !has_gpu(*vm))
        return;
    if (vm->gap_ends_ns != 0) {
        if (wants_more)
            wants(id, now_ns);
        return;
    }
    wants_more |= vm->wants_more;
    vm->wants_more = vm->impatient = false;
    if (!wants_more && current_ == id) {
        vm->left_ns = now_ns;
        vm->work_ns = (3 * vm->work_ns + now_ns - vm->works_since_ns) / 4;
    }
    if (!wants_more && keeps_in_gap(*vm, now_ns)) {
        vm->gap_ends_ns = now_ns + max_gap_ns;
    } else {
        if (current_ == id)
            end_turn(*vm, now_ns);
        enter(*vm, vm_phase::idle, now_ns);
        if (wants_more)
            enter(*vm, vm_phase::waiting, now_ns); // it has not slept
    }
    decide(now_ns);
}

void scheduler::hurry(vm_id id, std::uint64_t now_ns) {
    settle(now_ns);
    if (vm_state* vm = known(id); vm != nullptr && has_gpu(*vm))
        vm->impatient = true;
    decide(now_ns);
}

void scheduler::charge(vm_id id, std::uint64_t ns, std::uint64_t now_ns) {
    settle(now_ns);
    if (vm_state* vm = known(id)) {
        ns = std::min(ns, max_debt_ns);
        policy_->ran(*vm, ns);
        vm->held_ns += ns;
        vm->credit_ns -= static_cast<std::int64_t>(ns);
    }
    decide(now_ns);
}

void scheduler::advance(std::uint64_t now_ns) {
    settle(now_ns);
    decide(now_ns);
}

// ---- results

std::optional<action> scheduler::next_action() {
    if (actions_.empty())
        return {};
    const action next = actions_.front();
    actions_.pop_front();
    return next;
}

std::vector<vm_state> scheduler::vms(std::uint64_t now_ns) {
    settle(now_ns);
    return vms_;
}

// ---- time

void scheduler::settle(std::uint64_t now_ns) {
    for (vm_state& vm : vms_)
        settle(vm, now_ns);
    std::uint64_t least = UINT64_MAX;
    for (const vm_state& vm : vms_)
        if (has_gpu(vm) || (vm.phase == vm_phase::waiting && !vm.throttled))
            least = std::min(least, vm.virtual_ns);
    if (least != UINT64_MAX)
        floor_virtual_ns_ = std::max(floor_virtual_ns_, least);
}

void scheduler::settle(vm_state& vm, std::uint64_t now_ns) {
    const std::int64_t most = std::max(vm.credit_ns, most_saved_ns(*policy_, vm));
    if (now_ns > vm.credit_at_ns)
        vm.credit_ns +=
            static_cast<std::int64_t>((now_ns - vm.credit_at_ns) * vm.rate_permille / whole_permille);
    vm.credit_at_ns = std::max(vm.credit_at_ns, now_ns);
    if (has_gpu(vm) && now_ns > vm.charged_until_ns) {
        const std::uint64_t ns = now_ns - vm.charged_until_ns;
        vm.charged_until_ns = now_ns;
        vm.held_ns += ns;
        policy_->ran(vm, ns);
        vm.credit_ns -= static_cast<std::int64_t>(ns);
    }
    vm.credit_ns = std::min(vm.credit_ns, most);
    vm.credit_ns = std::max(vm.credit_ns, -static_cast<std::int64_t>(max_debt_ns));
    const std::uint64_t most_virtual = floor_virtual_ns_ + virtual_time(max_debt_ns, vm.weight_permille);
    vm.virtual_ns = std::min(vm.virtual_ns, most_virtual);
}

void scheduler::weigh(std::uint64_t) {
    std::uint32_t asked = 0, others = 0;
    for (const vm_state& vm : vms_) {
        asked += vm.terms.share_permille;
        others += vm.terms.share_permille == 0;
    }
    const std::uint32_t left = asked < whole_permille ? whole_permille - asked : 0;
    for (vm_state& vm : vms_) {
        vm.weight_permille = vm.terms.share_permille != 0 ? vm.terms.share_permille : left / others;
        vm.weight_permille = std::max(vm.weight_permille, least_permille);
        vm.rate_permille = policy_->rate_permille(vm);
        if (vm.rate_permille == 0)
            vm.credit_ns = 0;
    }
}

void scheduler::enter(vm_state& vm, vm_phase phase, std::uint64_t now_ns) {
    if (vm.phase == vm_phase::waiting)
        vm.waited_ns += now_ns - vm.since_ns;
    vm.phase = phase;
    vm.since_ns = now_ns;
}

void scheduler::wake(vm_state& vm, std::uint64_t now_ns) {
    policy_->wakes(vm, floor_virtual_ns_);
    enter(vm, vm_phase::waiting, now_ns);
}

// ---- decisions

bool scheduler::may_begin(const vm_state& vm) const {
    return vm.rate_permille == 0 || vm.credit_ns >= static_cast<std::int64_t>(min_slice_ns);
}

bool scheduler::anybody_waits() const {
    return std::ranges::any_of(vms_, [](const vm_state& vm) { return vm.phase == vm_phase::waiting; });
}

vm_state* scheduler::best_waiting(std::uint64_t now_ns) {
    vm_state* best = nullptr;
    for (vm_state& vm : vms_)
        if (vm.phase == vm_phase::waiting && may_begin(vm) &&
            (best == nullptr || policy_->before(vm, *best, now_ns)))
            best = &vm;
    return best;
}

std::uint64_t scheduler::slice_ns() const {
    const auto busy = std::ranges::count_if(
        vms_, [](const vm_state& vm) { return vm.phase != vm_phase::idle && vm.phase != vm_phase::stuck; });
    const auto turns = turns_of_second * static_cast<std::uint64_t>(std::max<std::ptrdiff_t>(busy, 1));
    return std::clamp(second / turns, least_slice_ns, max_slice_ns);
}

void scheduler::wake_at(std::uint64_t ns) {
    next_ns_ = std::min(next_ns_, ns);
}

void scheduler::begin_turn(vm_state& vm, std::uint64_t now_ns) {
    policy_->begins(vm, now_ns);
    enter(vm, vm_phase::running, now_ns);
    vm.charged_until_ns = now_ns;
    vm.turn_number = ++turn_number_;
    ++vm.turns;
    vm.works_since_ns = now_ns;
    current_ = vm.id;
    // A limited VM shares with nobody: what it does not use it must be seen not to use.
    current_shares_ = anybody_waits() || vm.rate_permille != 0;
    turn_began_ns_ = now_ns;
    turn_ends_ns_ = now_ns + slice_ns();
    actions_.push_back({action::kind::grant, vm.id, current_shares_});
}

void scheduler::end_turn(vm_state& vm, std::uint64_t now_ns) {
    if (now_ns < turn_began_ns_ + least_charge_ns) {
        policy_->ran(vm, turn_began_ns_ + least_charge_ns - now_ns);
        vm.credit_ns -= static_cast<std::int64_t>(turn_began_ns_ + least_charge_ns - now_ns);
    }
    vm.longest_turn_ns = std::max(vm.longest_turn_ns, now_ns - turn_began_ns_);
    vm.gap_ends_ns = 0;
    current_.reset();
}

// ---- gaps

// Whether the GPU stands still for the next task of a VM that has just ended its last one.
bool scheduler::keeps_in_gap(const vm_state& vm, std::uint64_t now_ns) {
    if (current_ != vm.id || vm.phase != vm_phase::running || vm.gap_ns > max_gap_ns ||
        vm.gap_ns * work_of_gap > vm.work_ns || (vm.rate_permille != 0 && vm.credit_ns <= 0))
        return false;
    const vm_state* best = best_waiting(now_ns);
    return best != nullptr && policy_->before(vm, *best, now_ns);
}

// It has a task again, in time or not.
void scheduler::end_gap(vm_state& vm, std::uint64_t now_ns) {
    if (vm.left_ns != 0)
        vm.gap_ns = (3 * vm.gap_ns + std::min(now_ns - vm.left_ns, unknown_gap_ns)) / 4;
    vm.left_ns = vm.gap_ends_ns = 0;
    vm.works_since_ns = now_ns;
}

void scheduler::decide_gap(vm_state& current, const vm_state* best, std::uint64_t now_ns) {
    if (now_ns < current.gap_ends_ns && best != nullptr && policy_->before(current, *best, now_ns)) {
        wake_at(current.gap_ends_ns);
        return;
    }
    end_turn(current, now_ns);
    enter(current, vm_phase::idle, now_ns);
}

// ---- turns

// A VM that its limit has held back comes as one that has slept: it is not to have what it was not allowed.
void scheduler::throttle(vm_state& vm) {
    if (!may_begin(vm))
        vm.throttled = true;
    else if (std::exchange(vm.throttled, false))
        policy_->wakes(vm, floor_virtual_ns_);
}

void scheduler::decide(std::uint64_t now_ns) {
    next_ns_ = UINT64_MAX;
    for (vm_state& vm : vms_)
        if (vm.phase == vm_phase::waiting)
            throttle(vm);
    vm_state* current = current_ ? known(*current_) : nullptr;
    if (current != nullptr && current->phase == vm_phase::leaving &&
        now_ns >= current->since_ns + patience_with(*current)) {
        enter(*current, vm_phase::stuck, now_ns);
        ++current->times_stuck;
        current_.reset();
        current = nullptr;
    }
    vm_state* best = best_waiting(now_ns);
    if (current != nullptr && current->gap_ends_ns != 0) {
        decide_gap(*current, best, now_ns);
        if (current_)
            return;
        current = nullptr;
    }
    if (current == nullptr && best != nullptr) {
        begin_turn(*best, now_ns);
        current = best;
        best = best_waiting(now_ns);
    }
    if (current != nullptr && current->phase == vm_phase::running)
        decide_turn(*current, best, now_ns);
    if (current != nullptr && current->phase == vm_phase::leaving)
        wake_at(current->since_ns + patience_with(*current));
    // Those whose credit is still to come.
    for (const vm_state& vm : vms_)
        if (vm.phase == vm_phase::waiting && !may_begin(vm)) {
            const auto missing =
                static_cast<std::uint64_t>(static_cast<std::int64_t>(min_slice_ns) - vm.credit_ns);
            wake_at(now_ns + missing * whole_permille / vm.rate_permille + 1);
        }
}

void scheduler::decide_turn(vm_state& current, vm_state* best, std::uint64_t now_ns) {
    if (!current_shares_ && anybody_waits()) {
        current_shares_ = true;
        actions_.push_back({action::kind::share, current.id});
        turn_began_ns_ = now_ns;
        turn_ends_ns_ = now_ns + slice_ns();
    }
    bool over = current.rate_permille != 0 && current.credit_ns <= 0;
    if (best != nullptr && now_ns >= turn_ends_ns_) {
        over |= policy_->before(*best, current, now_ns);
        turn_ends_ns_ = now_ns + slice_ns();
    }
    const bool early = best != nullptr && policy_->preempts(*best, current, now_ns);
    over |= early && now_ns >= turn_began_ns_ + min_turn_ns;
    if (over) {
        enter(current, vm_phase::leaving, now_ns);
        actions_.push_back({action::kind::take_back, current.id});
        return;
    }
    if (best != nullptr)
        wake_at(early ? turn_began_ns_ + min_turn_ns : turn_ends_ns_);
    if (current.rate_permille != 0) {
        // What it spends comes in again at its rate, meanwhile.
        const std::uint32_t spends = whole_permille - std::min(current.rate_permille, whole_permille - 1);
        wake_at(now_ns + static_cast<std::uint64_t>(current.credit_ns) * whole_permille / spends + 1);
    }
}

} // namespace kagemusha::share
