// SPDX-License-Identifier: GPL-2.0-or-later
// priorities: the VM of the highest priority waits for what another one has in flight, and now and then for
// one that rose because it had waited for long.
#include <algorithm>

#include "share/checkers/bounds.hpp"

namespace kagemusha::share::sim {

std::string check_priorities(const options& o, const record& r) {
    if (o.policy != policy_kind::priority ||
        std::ranges::any_of(o.vms, [](const vm_options& vm) { return vm.how == conduct::liar; }))
        return "";
    const auto top =
        std::ranges::max_element(o.vms, {}, [](const vm_options& vm) { return vm.terms.priority; });
    const auto equals = std::ranges::count_if(
        o.vms, [&](const vm_options& vm) { return vm.terms.priority == top->terms.priority; });
    if (equals != 1 || top->terms.cap_permille < whole_permille || top->how == conduct::hangs ||
        top->how == conduct::dies)
        return "";
    const auto at = static_cast<std::size_t>(top - o.vms.begin());
    std::uint64_t foreign = 0;
    for (std::size_t i = 0; i < o.vms.size(); ++i)
        if (i != at)
            foreign = std::max(foreign, r.vms[i].longest_unit_ns);
    const std::uint64_t bound = 2 * (foreign + min_turn_ns + 4 * (o.max_latency_ns + 1 * us)) +
                                hung_count(r) * (patience_ns + max_slice_ns);
    if (r.vms[at].longest_wait_ns > bound)
        return "VM " + std::to_string(at) + " has the highest priority and waited " +
               in_ms(r.vms[at].longest_wait_ns) + " ms, more than " + in_ms(bound);
    return "";
}

} // namespace kagemusha::share::sim
