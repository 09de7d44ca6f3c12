// SPDX-License-Identifier: GPL-2.0-or-later
// options: one mix of VMs on one GPU, drawn from a seed.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "share/core/terms.hpp"

namespace kagemusha::share::sim {

enum class conduct : std::uint8_t {
    busy,   // always has a task
    steps,  // one task at a time, and a short gap before the next
    sleeps, // thinks between its tasks
    floods, // tiny tasks without end
    liar,   // gives the GPU back at once, whatever it has in flight
    hangs,  // after a while a task of seconds
    dies,   // after a while
};

struct vm_options {
    vm_terms terms;
    conduct how = conduct::busy;
    std::uint64_t task_ns = 1 * ms;
    std::uint64_t think_ns = 0; // between two tasks: about
    std::uint64_t joins_ns = 0;
    std::uint64_t turns_ns = UINT64_MAX; // when it hangs or dies
};

// What a mix breaks on purpose: a checker that can't fail shows nothing.
enum class breach : std::uint8_t {
    none,
    forgets_waiting,    // wants() of one VM gets lost
    grants_twice,       // a second VM is granted the GPU beside the first
    never_takes_back,   // a turn has no end
    wrong_weight,       // one VM has more than it asked for
    ignores_cap,        // a cap is not known to the scheduler
    gives_unused,       // fixed shares are not fixed
    idles,              // a grant comes late
    inverts_priorities, // the lowest first
};
bool parse(std::string_view name, breach& out);

struct options {
    std::uint64_t seed = 0;
    policy_kind policy = policy_kind::fair;
    std::vector<vm_options> vms;
    std::uint64_t runs_ns = 1500 * ms;
    std::uint64_t measured_from_ns = 500 * ms;
    std::uint64_t max_latency_ns = 50 * us; // of a message between a worker and the arbiter
    breach broken = breach::none;
};

options drawn(std::uint64_t seed, breach broken);

} // namespace kagemusha::share::sim
