// SPDX-License-Identifier: GPL-2.0-or-later
// priority: the highest first, at the next task. A VM that waits rises by one for each ageing_ns, so that none
// waits for ever; but a turn that a VM has only because it rose comes once in ageing_ns at most, and ends at
// the next task of it: many VMs that have waited for long must not become a wall. Equals share fairly.
#include "share/core/policy.hpp"

namespace kagemusha::share {

namespace {

class by_priority final : public policy {
    bool before(const vm_state& a, const vm_state& b, std::uint64_t now_ns) const override {
        const auto left = risen(a, now_ns), right = risen(b, now_ns);
        return left != right ? left > right : is_further_behind(a, b);
    }
    bool preempts(const vm_state& waiting, const vm_state& current, std::uint64_t now_ns) const override {
        return risen(waiting, now_ns) > current.terms.priority;
    }
    void begins(const vm_state& vm, std::uint64_t now_ns) override {
        if (risen(vm, now_ns) > vm.terms.priority)
            nobody_rises_until_ns_ = now_ns + ageing_ns;
    }
    std::uint64_t risen(const vm_state& vm, std::uint64_t now_ns) const {
        if (vm.phase != vm_phase::waiting || now_ns < vm.since_ns || now_ns < nobody_rises_until_ns_)
            return vm.terms.priority;
        return vm.terms.priority + (now_ns - vm.since_ns) / ageing_ns;
    }

    std::uint64_t nobody_rises_until_ns_ = 0;
};

} // namespace

std::unique_ptr<policy> make_priority() {
    return std::make_unique<by_priority>();
}

} // namespace kagemusha::share
