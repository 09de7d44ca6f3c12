// SPDX-License-Identifier: GPL-2.0-or-later
// options: see options.hpp.
#include "share/options.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "sim/rng.hpp"

namespace kagemusha::share::sim {

namespace {

using kagemusha::sim::rng;

constexpr std::array<std::pair<std::string_view, breach>, 9> breaches{{
    {"none", breach::none},
    {"forgets_waiting", breach::forgets_waiting},
    {"grants_twice", breach::grants_twice},
    {"never_takes_back", breach::never_takes_back},
    {"wrong_weight", breach::wrong_weight},
    {"ignores_cap", breach::ignores_cap},
    {"gives_unused", breach::gives_unused},
    {"idles", breach::idles},
    {"inverts_priorities", breach::inverts_priorities},
}};

conduct drawn_conduct(rng& chance) {
    const std::uint32_t n = chance.below(100);
    return n < 45   ? conduct::busy
           : n < 75 ? conduct::sleeps
           : n < 83 ? conduct::floods
           : n < 88 ? conduct::liar
           : n < 93 ? conduct::hangs
                    : conduct::dies;
}

void draw_vm(rng& chance, vm_options& vm, bool honest) {
    constexpr std::uint64_t lengths[] = {100 * us, 1 * ms, 10 * ms, 50 * ms};
    vm.task_ns = lengths[chance.below(std::size(lengths))];
    vm.how = !honest ? drawn_conduct(chance) : chance.chance(8000) ? conduct::busy : conduct::steps;
    if (vm.how == conduct::floods)
        vm.task_ns = 5 * us;
    if (vm.how == conduct::steps) {
        vm.task_ns = std::max(vm.task_ns, 1 * ms); // a gap that is waited for is a quarter of it at most
        vm.think_ns = std::uint64_t{chance.between(1, 40)} * us;
    }
    if (vm.how == conduct::sleeps)
        vm.think_ns = std::uint64_t{chance.between(20, 20000)} * us;
    if (vm.how == conduct::hangs || vm.how == conduct::dies)
        vm.turns_ns = std::uint64_t{chance.between(50, 1000)} * ms;
    if (!honest)
        vm.joins_ns = chance.chance(3000) ? std::uint64_t{chance.below(400)} * ms : 0;
    vm.terms.priority = chance.below(max_priority + 1);
}

// Shares of some of them, together at most the whole.
void draw_shares(rng& chance, std::vector<vm_options>& vms) {
    std::uint32_t left = whole_permille - least_permille * static_cast<std::uint32_t>(vms.size());
    for (vm_options& vm : vms) {
        if (chance.chance(3000))
            continue;
        const std::uint32_t most = std::max(1u, 2 * left / static_cast<std::uint32_t>(vms.size()));
        const std::uint32_t more = chance.below(std::min(left, most) + 1);
        vm.terms.share_permille = least_permille + more;
        left -= more;
    }
}

} // namespace

bool parse(std::string_view name, breach& out) {
    for (const auto& [known, kind] : breaches)
        if (known == name) {
            out = kind;
            return true;
        }
    return false;
}

options drawn(std::uint64_t seed, breach broken) {
    rng chance(seed);
    options o;
    o.seed = seed;
    o.broken = broken;
    o.policy = static_cast<policy_kind>(chance.below(4));
    if (broken == breach::inverts_priorities)
        o.policy = policy_kind::priority;
    if (broken == breach::gives_unused)
        o.policy = policy_kind::fixed;
    // Few more often than many: with few there is more that can be told apart.
    const std::uint32_t count =
        chance.chance(7000) ? chance.between(broken == breach::none ? 1 : 2, 5) : chance.between(2, 25);
    const bool honest = chance.chance(5000) || broken == breach::wrong_weight;
    o.vms.resize(count);
    for (vm_options& vm : o.vms)
        draw_vm(chance, vm, honest);
    if (chance.chance(7000))
        draw_shares(chance, o.vms);
    if (!honest || broken == breach::ignores_cap)
        for (vm_options& vm : o.vms)
            if (chance.chance(3000))
                vm.terms.cap_permille = chance.between(50, 900);
    o.max_latency_ns = std::uint64_t{chance.between(5, 60)} * us;
    return o;
}

} // namespace kagemusha::share::sim
