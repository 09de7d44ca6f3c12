// SPDX-License-Identifier: GPL-2.0-or-later
// fair: weighted fair queueing. Charged time divided by weight is a VM's virtual time; who has least of it is
// next. What a VM leaves the others get, by their weights.
#include "share/core/policy.hpp"

namespace kagemusha::share {

namespace {

class fair final : public policy {
    bool before(const vm_state& a, const vm_state& b, std::uint64_t) const override {
        return is_further_behind(a, b);
    }
    // One that slept comes at the next task, not after a turn: its kernels are few, and somebody waits.
    bool preempts(const vm_state& waiting, const vm_state& current, std::uint64_t) const override {
        return waiting.virtual_ns + virtual_time(min_turn_ns, waiting.weight_permille) < current.virtual_ns;
    }
};

} // namespace

std::unique_ptr<policy> make_fair() {
    return std::make_unique<fair>();
}

} // namespace kagemusha::share
