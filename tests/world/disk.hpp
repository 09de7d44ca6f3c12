// SPDX-License-Identifier: GPL-2.0-or-later
// A host's image of the VM's disk: a few blocks with the number of the request that wrote them, a volatile
// cache in front, and the mark beside the image.
#pragma once

#include <array>
#include <cstdint>

#include "control/ha/disk_mark.hpp"
#include "sim/rng.hpp"
#include "world/events.hpp"

namespace kagemusha::world {

constexpr std::uint32_t slots = 4; // blocks of a disk; words of memory that the GPU reads into
using block_values = std::array<std::uint32_t, slots>;

class disk {
public:
    const block_values& read() const { return cached_; }
    void write(std::uint32_t block, std::uint32_t value) { cached_[block] = value; }
    void flush() { durable_ = cached_; }
    // What was not flushed is there or not, block by block.
    void lose_power(sim::rng& random) {
        for (std::uint32_t i = 0; i < slots; ++i)
            if (random.chance(5000))
                durable_[i] = cached_[i];
        cached_ = durable_;
    }

    bool exists = false; // the host was a primary or a standby once
    ha::disk_mark mark;

    // Faults. A request that meets one waits until its end, takes longer, or fails.
    time_us hangs_until = 0, slow_until = 0, fails_until = 0;
    // When a request of `usual` ends.
    time_us ends(time_us now, time_us usual) const {
        if (now < hangs_until)
            return hangs_until + usual;
        return now + (now < slow_until ? 20 * usual : usual);
    }

private:
    block_values cached_{}, durable_{};
};

} // namespace kagemusha::world
