// SPDX-License-Identifier: GPL-2.0-or-later
// shares: who always has work, but for short gaps, gets what it asked for, within 3 % and what can't be
// divided (a turn, its own longest task, the longest of the others); nobody gets more than its cap or its fixed
// share.
#include <algorithm>
#include <numeric>

#include "share/checkers/bounds.hpp"

namespace kagemusha::share::sim {

namespace {

// What a limited VM may have used in the measured time.
std::string check_limits(const options& o, const record& r, const std::vector<std::uint64_t>& weights) {
    for (std::size_t i = 0; i < o.vms.size(); ++i) {
        const std::uint64_t rate = rate_of(o, i, weights);
        if (rate == 0 || o.vms[i].how == conduct::liar)
            continue;
        const std::uint64_t saved =
            (o.policy == policy_kind::fixed ? r.vms[i].longest_wait_ns : 0) + saved_idle_ns;
        const std::uint64_t most = r.measured_ns * rate / whole_permille * 103 / 100 +
                                   saved * rate / whole_permille + max_slice_ns + r.vms[i].longest_unit_ns;
        if (r.vms[i].used_ns > most)
            return "VM " + std::to_string(i) + " is limited to " + std::to_string(rate) +
                   " permille, at most " + in_ms(most) + " ms, and used " + in_ms(r.vms[i].used_ns);
    }
    return "";
}

} // namespace

std::string check_shares(const options& o, const record& r) {
    const auto weights = weights_of(o);
    if (auto error = check_limits(o, r, weights); !error.empty())
        return error;
    const bool all_busy = std::ranges::all_of(o.vms, [](const vm_options& vm) {
        return (vm.how == conduct::busy || vm.how == conduct::steps) && vm.joins_ns == 0 &&
               vm.terms.cap_permille == whole_permille;
    });
    if (!all_busy || o.policy == policy_kind::priority)
        return "";
    const std::uint64_t all = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
    std::uint64_t left_over = 0;
    for (const vm_record& vm : r.vms)
        left_over += vm.longest_unit_ns;
    for (std::size_t i = 0; i < o.vms.size(); ++i) {
        std::uint64_t asked =
            o.policy == policy_kind::round_robin ? r.used_ns / o.vms.size() : r.used_ns * weights[i] / all;
        if (o.policy == policy_kind::fixed)
            asked = std::min(asked, r.measured_ns * weights[i] / whole_permille);
        // What others had too little for a task of theirs to begin is divided by weight, too.
        const std::uint64_t part =
            o.policy == policy_kind::round_robin ? left_over / o.vms.size() : left_over * weights[i] / all;
        const std::uint64_t indivisible = max_slice_ns + r.vms[i].longest_unit_ns + longest_unit(r) + part;
        // What stands still in a VM's gaps is of its own time; the others may have had a little more for it.
        if (o.vms[i].how == conduct::steps)
            asked = asked * o.vms[i].task_ns /
                    (o.vms[i].task_ns + o.vms[i].think_ns + 4 * (o.max_latency_ns + 1 * us));
        const bool too_much = r.vms[i].used_ns > asked;
        if (too_much && std::ranges::count(o.vms, conduct::steps, &vm_options::how) != 0)
            continue;
        const std::uint64_t off = too_much ? r.vms[i].used_ns - asked : asked - r.vms[i].used_ns;
        if (off > asked * 3 / 100 + indivisible)
            return "VM " + std::to_string(i) + " was to have " + in_ms(asked) + " ms and had " +
                   in_ms(r.vms[i].used_ns);
    }
    return "";
}

} // namespace kagemusha::share::sim
