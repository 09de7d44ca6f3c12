// SPDX-License-Identifier: GPL-2.0-or-later
// test_fairness: what a fair arbiter promises of two VMs, on a machine of any speed. For tests.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "proto/share/share_protocol.h"

namespace kagemusha::share {

using two_rows = std::array<share_row, 2>;

// While two VMs have work, what each had, divided by its weight, differs by no more than the longest turn of
// each (start-time fair queueing, Goyal, Vin, Cheng, "Start-time Fair Queueing", SIGCOMM 1996, theorem 1),
// however long a busy machine makes those turns. Who had nothing to do for a while lost that to the other.
struct fairness {
    double difference_ns = 0, bound_ns = 0;
};

// `window` reaches from before the first rows were asked for until after the second ones came; `last` are rows
// of later, in whose longest turns are those that went on then.
inline fairness fairness_between(const two_rows& before, const two_rows& after, const two_rows& last,
                                 std::chrono::nanoseconds window) {
    const double weight[] = {after[0].weight_permille / 1000.0, after[1].weight_permille / 1000.0};
    double normalized[2], bound_ns = 0;
    for (std::size_t i = 0; i < 2; ++i) {
        const auto had = static_cast<double>(after[i].held_ns - before[i].held_ns);
        const auto waited = static_cast<double>(after[i].waited_ns - before[i].waited_ns);
        const double idle = std::max(static_cast<double>(window.count()) - had - waited, 0.0);
        normalized[i] = had / weight[i];
        bound_ns += static_cast<double>(last[i].longest_turn_ns) / weight[i] + idle / weight[1 - i];
    }
    return {std::abs(normalized[0] - normalized[1]), bound_ns};
}

} // namespace kagemusha::share
