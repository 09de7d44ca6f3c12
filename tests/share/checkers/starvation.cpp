// SPDX-License-Identifier: GPL-2.0-or-later
// starvation: whoever waits gets the GPU within a bound that follows from the others' tasks and its weight.
#include <algorithm>
#include <numeric>

#include "share/checkers/bounds.hpp"

namespace kagemusha::share::sim {

std::string check_starvation(const options& o, const record& r) {
    const auto weights = weights_of(o);
    const std::uint64_t all = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
    const std::uint64_t unit = longest_unit(r);
    const std::uint64_t hung = hung_count(r) * (patience_ns + max_slice_ns);
    const auto liars = static_cast<std::uint64_t>(std::ranges::count(o.vms, conduct::liar, &vm_options::how));
    for (std::size_t i = 0; i < o.vms.size(); ++i) {
        const vm_options& vm = o.vms[i];
        if (vm.how == conduct::liar || vm.how == conduct::hangs || vm.how == conduct::dies)
            continue;
        const std::uint64_t weight = o.policy == policy_kind::round_robin ? all / o.vms.size() : weights[i];
        // A liar's tasks run in the turns of others, and are charged to them.
        const std::uint64_t turn = (1 + 2 * liars) * unit + max_slice_ns + 4 * o.max_latency_ns;
        std::uint64_t bound = 2 * turn * (all / weight + 1) + turn * o.vms.size() + hung;
        if (o.policy == policy_kind::priority)
            bound += ageing_ns * (max_priority + 1 + o.vms.size());
        // VMs come and go, and what nobody asked for is divided anew: what it has in any case.
        std::uint64_t rate = o.policy == policy_kind::fixed
                                 ? std::max(vm.terms.share_permille, least_permille)
                                 : whole_permille;
        rate = std::min<std::uint64_t>(rate, vm.terms.cap_permille);
        if (rate < whole_permille)
            bound += 2 * turn * whole_permille / rate;
        if (r.vms[i].longest_wait_ns > bound)
            return "VM " + std::to_string(i) + " starves: it waited " + in_ms(r.vms[i].longest_wait_ns) +
                   " ms, and is to wait at most " + in_ms(bound);
    }
    return "";
}

} // namespace kagemusha::share::sim
