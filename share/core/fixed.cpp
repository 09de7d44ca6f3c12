// SPDX-License-Identifier: GPL-2.0-or-later
// fixed: a VM gets its share and nothing else: what one leaves is left. Its time is the same whatever the
// others do. Credit comes in at the rate of the share; who has saved most, measured in its own rate, is next.
#include "share/core/policy.hpp"

#include <algorithm>

namespace kagemusha::share {

namespace {

class fixed final : public policy {
    bool before(const vm_state& a, const vm_state& b, std::uint64_t) const override {
        const auto left = a.credit_ns * b.rate_permille, right = b.credit_ns * a.rate_permille;
        return left != right ? left > right : is_further_behind(a, b);
    }
    bool preempts(const vm_state&, const vm_state&, std::uint64_t) const override { return false; }
    std::uint32_t rate_permille(const vm_state& vm) const override {
        return std::min(vm.weight_permille, vm.terms.cap_permille);
    }
    // What others' long kernels keep from it is its own all the same.
    std::uint64_t saved_ns(const vm_state& vm) const override {
        return vm.phase == vm_phase::waiting ? saved_waiting_ns : saved_idle_ns;
    }
};

} // namespace

std::unique_ptr<policy> make_fixed() {
    return std::make_unique<fixed>();
}

} // namespace kagemusha::share
