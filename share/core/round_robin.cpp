// SPDX-License-Identifier: GPL-2.0-or-later
// round_robin: equal turns, one VM after the other, whatever they asked for: NVIDIA's "best effort". A VM
// whose kernels are longer than a turn comes less often, so that time is equal and not only the number of
// turns.
#include "share/core/policy.hpp"

#include <algorithm>

namespace kagemusha::share {

namespace {

class round_robin final : public policy {
    // Behind those that have waited already.
    void wakes(vm_state& vm, std::uint64_t least_virtual_ns) const override {
        vm.virtual_ns = std::max(vm.virtual_ns, least_virtual_ns);
    }
    void ran(vm_state& vm, std::uint64_t ns) const override { vm.virtual_ns += ns; }
    bool before(const vm_state& a, const vm_state& b, std::uint64_t) const override {
        return is_further_behind(a, b);
    }
    bool preempts(const vm_state&, const vm_state&, std::uint64_t) const override { return false; }
};

} // namespace

std::unique_ptr<policy> make_round_robin() {
    return std::make_unique<round_robin>();
}

} // namespace kagemusha::share
