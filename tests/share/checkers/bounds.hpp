// SPDX-License-Identifier: GPL-2.0-or-later
// bounds: what the checkers have in common. Weights are computed from the description anew, not read from the
// scheduler.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "share/record.hpp"

namespace kagemusha::share::sim {

inline std::vector<std::uint64_t> weights_of(const options& o) {
    std::uint64_t asked = 0, others = 0;
    for (const vm_options& vm : o.vms) {
        asked += vm.terms.share_permille;
        others += vm.terms.share_permille == 0;
    }
    std::vector<std::uint64_t> out;
    for (const vm_options& vm : o.vms)
        out.push_back(std::max<std::uint64_t>(least_permille, vm.terms.share_permille != 0
                                                                  ? vm.terms.share_permille
                                                                  : (whole_permille - asked) / others));
    return out;
}

inline std::uint64_t rate_of(const options& o, std::size_t vm, const std::vector<std::uint64_t>& weights) {
    const std::uint64_t cap = o.vms[vm].terms.cap_permille;
    if (o.policy == policy_kind::fixed && std::ranges::all_of(o.vms, [](const vm_options& v) {
            return v.joins_ns == 0 && v.how != conduct::dies;
        }))
        return std::min(weights[vm], cap);
    return cap < whole_permille ? cap : 0;
}

inline std::uint64_t longest_unit(const record& r) {
    std::uint64_t longest = 0;
    for (const vm_record& vm : r.vms)
        longest = std::max(longest, vm.longest_unit_ns);
    return longest;
}

inline std::uint64_t hung_count(const record& r) {
    return static_cast<std::uint64_t>(
        std::ranges::count_if(r.vms, [](const vm_record& v) { return v.hung; }));
}

inline std::string in_ms(std::uint64_t ns) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3f", static_cast<double>(ns) / 1e6);
    return text;
}

} // namespace kagemusha::share::sim
