// SPDX-License-Identifier: GPL-2.0-or-later
//
// How many checkpoints of the present stream the standby has. QEMU sets its counters back only when the new
// standby has loaded the VM's first state, some time after it says that checkpoints begin; until then they
// are those of the stream before. So what was counted before a stream began says nothing about it.
#pragma once

#include <cstdint>

namespace kagemusha::control {

class checkpoint_count {
public:
    // `counted`: what QEMU says when no stream is under way and the next one has not been asked for.
    void begin(std::uint64_t counted) { before_ = counted; }
    // `counted`: what it says now. A new stream that has come to just the old number is a checkpoint late.
    std::uint64_t read(std::uint64_t counted) {
        if (counted == before_)
            return 0;
        before_ = 0;
        return counted;
    }

private:
    std::uint64_t before_ = 0; // 0: the counters are this stream's
};

} // namespace kagemusha::control
