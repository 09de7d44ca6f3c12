// SPDX-License-Identifier: GPL-2.0-or-later
// pace: the token of the next launch: how many callbacks each lane may run before the kernel ends, and with
// it gives the GPU back. Pure.
//
// A token is fixed before its launch, because a standby repeats launches (docs/adr/0031-…): so the wish of
// others for the GPU is seen between launches, by what the last ones had to wait.
#pragma once

#include <algorithm>
#include <cstdint>

#include "loop/core/limits.hpp"

namespace kagemusha::loop {

class pace {
public:
    // `fixed`: so many callbacks, whatever they take; 0: as the times say.
    explicit pace(std::uint32_t fixed = 0) : fixed_(fixed) {}

    std::uint32_t callbacks() const {
        if (fixed_ != 0)
            return fixed_;
        const std::uint64_t target = others_wait() ? launch_shared_ns : launch_alone_ns;
        return static_cast<std::uint32_t>(
            std::clamp<std::uint64_t>(target / std::max<std::uint64_t>(cost_ns_, 1), 1, max_callbacks));
    }
    bool others_wait() const { return short_ > 0; }

    // A launch is over. `callbacks`: of the lane that ran most; `device_ns`: on the device, 0: not known;
    // `elapsed_ns`: from its submission until the host saw its end.
    void launched(std::uint32_t callbacks, std::uint64_t device_ns, std::uint64_t elapsed_ns) {
        const std::uint64_t took = std::min(device_ns != 0 ? device_ns : elapsed_ns, elapsed_ns);
        if (callbacks != 0) {
            // More expensive ones count at once, cheaper ones little by little: the bound is for the others.
            const std::uint64_t one = took / callbacks;
            cost_ns_ = one > cost_ns_ ? one : cost_ns_ - (cost_ns_ - one) / 8;
        }
        const std::uint64_t waited = elapsed_ns - took;
        if (short_ > 0)
            --short_;
        if (seen_ && waited > least_wait_ns_ + others_wait_ns)
            short_ = shared_launches;
        // The least rises slowly: a guest that is slower from now on is not one that others keep waiting.
        least_wait_ns_ = seen_ ? std::min(waited, least_wait_ns_ + least_wait_ns_ / 32 + 1000) : waited;
        seen_ = true;
    }

private:
    const std::uint32_t fixed_;
    std::uint64_t cost_ns_ = launch_shared_ns / 4; // until some have run they may be expensive
    std::uint64_t least_wait_ns_ = 0;
    std::uint32_t short_ = 0;
    bool seen_ = false;
};

} // namespace kagemusha::loop
