// SPDX-License-Identifier: GPL-2.0-or-later
// policy: what policies have in common; see policy.hpp.
#include "share/core/policy.hpp"

#include <algorithm>

namespace kagemusha::share {

std::uint64_t virtual_time(std::uint64_t ns, std::uint32_t weight_permille) {
    return ns * whole_permille / std::max(weight_permille, 1u);
}

bool is_further_behind(const vm_state& a, const vm_state& b) {
    if (a.virtual_ns != b.virtual_ns)
        return a.virtual_ns < b.virtual_ns;
    return a.turn_number != b.turn_number ? a.turn_number < b.turn_number : a.id < b.id;
}

void policy::wakes(vm_state& vm, std::uint64_t least_virtual_ns) const {
    const std::uint64_t credit = virtual_time(sleeper_credit_ns, vm.weight_permille);
    const std::uint64_t from = least_virtual_ns > credit ? least_virtual_ns - credit : 0;
    vm.virtual_ns = std::max(vm.virtual_ns, from);
}

void policy::ran(vm_state& vm, std::uint64_t ns) const {
    vm.virtual_ns += virtual_time(ns, vm.weight_permille);
}

std::uint32_t policy::rate_permille(const vm_state& vm) const {
    return vm.terms.cap_permille < whole_permille ? vm.terms.cap_permille : 0;
}

std::uint64_t policy::saved_ns(const vm_state&) const {
    return saved_idle_ns;
}

void policy::begins(const vm_state&, std::uint64_t) {}

std::unique_ptr<policy> make_policy(policy_kind kind) {
    switch (kind) {
    case policy_kind::round_robin:
        return make_round_robin();
    case policy_kind::fixed:
        return make_fixed();
    case policy_kind::priority:
        return make_priority();
    case policy_kind::fair:
        break;
    }
    return make_fair();
}

} // namespace kagemusha::share
