// SPDX-License-Identifier: GPL-2.0-or-later
// window: how many tasks a worker may have in the GPU's queues while others share the GPU. Pure.
//
// Their time is what every other VM waits for at a switch, and it must suffice to keep the GPU busy until the
// worker has handed over the next task. So it is learnt: how long a task takes, and how long after an end this
// worker's thread runs. Where that is at once, 1 ms of work is enough; on a host whose processors are busy it is up
// to 4 ms. Where a single task is the whole window, the next one is handed over shortly before the end that is
// expected, and the GPU does not stand still between them.
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
        // Longer tasks count at once, shorter ones little by little: the bound is for the others. Of the least it is the
        // other way round: the first task of a turn also takes the GPU's change to this process.
        cost_ns_ = took > cost_ns_ ? took : cost_ns_ - (cost_ns_ - took) / 8;
        least_ns_ = took < least_ns_ ? took : least_ns_ + (took - least_ns_) / 8;
    }
    // A task that had waited for the window heard of the last end, and is handed over now.
    void refilled(std::uint64_t now_ns) {
        const std::uint64_t took = now_ns > busy_since_ns_ ? now_ns - busy_since_ns_ : 0;
        reaction_ns_ = (7 * reaction_ns_ + std::min(took, window_target_ns)) / 8;
    }
    std::uint32_t tasks() const {
        const std::uint64_t fit = target_ns() / std::max<std::uint64_t>(cost_ns_, 1);
        return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(fit, 1, max_window_tasks));
    }
    // When the next task may be handed over though as many are in flight; UINT64_MAX: only after an end. So it is
    // where tasks are unlike, and with one that takes longer than was expected.
    std::uint64_t opens_ns(std::uint32_t in_flight, std::uint64_t now_ns) const {
        if (in_flight != 1 || tasks() != 1 || 3 * least_ns_ < 2 * cost_ns_ ||
            now_ns >= busy_since_ns_ + cost_ns_)
            return UINT64_MAX;
        return busy_since_ns_ + least_ns_ - std::min(least_ns_, window_lead_ns);
    }
    // Of one task, about.
    std::uint64_t cost_ns() const { return cost_ns_; }

private:
    std::uint64_t target_ns() const {
        return std::clamp(window_reactions * reaction_ns_, min_window_target_ns, window_target_ns);
    }

    std::uint64_t busy_since_ns_ = 0;
    // Until one has ended it may be a long one.
    std::uint64_t cost_ns_ = window_target_ns, least_ns_ = window_target_ns;
    std::uint64_t reaction_ns_ = window_target_ns / window_reactions; // until some were seen
};

} // namespace kagemusha::share
