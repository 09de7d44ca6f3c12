// SPDX-License-Identifier: GPL-2.0-or-later
// window: how many tasks a worker may have in the GPU's queues while others share the GPU: as many as take
// about window_target_ns, learnt from those that ended. Pure.
//
// Their time is what every other VM waits for at a switch, and it must suffice to keep the GPU busy until the
// worker has heard of an end and handed over the next task.
#pragma once

#include <algorithm>
#include <cstdint>

#include "share/core/limits.hpp"

namespace kagemusha::share {

class window {
public:
    // A task began or ended, with the number in flight after it.
    void began(std::uint32_t in_flight, std::uint64_t now_ns) {
        if (in_flight == 1)
            busy_since_ns_ = now_ns;
    }
    void ended(std::uint64_t now_ns) {
        // Tasks of one queue run one after the other: one took from the end of the last to its own.
        const std::uint64_t took = now_ns > busy_since_ns_ ? now_ns - busy_since_ns_ : 0;
        busy_since_ns_ = std::max(busy_since_ns_, now_ns);
        // Longer tasks count at once, shorter ones little by little: the bound is for the others.
        cost_ns_ = took > cost_ns_ ? took : cost_ns_ - (cost_ns_ - took) / 8;
    }
    std::uint32_t tasks() const {
        const std::uint64_t fit = window_target_ns / std::max<std::uint64_t>(cost_ns_, 1);
        return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(fit, 1, max_window_tasks));
    }
    // Of one task, about.
    std::uint64_t cost_ns() const { return cost_ns_; }

private:
    std::uint64_t busy_since_ns_ = 0;
    std::uint64_t cost_ns_ = window_target_ns; // until one has ended it may be a long one
};

} // namespace kagemusha::share
