// SPDX-License-Identifier: GPL-2.0-or-later
//
// difference_watch: what people are told of GPU memory that differs on the standby (docs/vm.md, "GPU"), from
// the device's counters, which are read now and then. The first time at once, then at most once a minute:
// a guest's program may make differences for ever. Time is an argument.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kagemusha::control {

class difference_watch {
public:
    using clock = std::chrono::steady_clock;
    static constexpr std::chrono::seconds period{60};

    // `chunks`: that differed, ever. `objects`: that are shipped now because they differed again and again.
    // Gives what is to be told, mostly nothing.
    std::vector<std::string> read(clock::time_point now, std::uint64_t chunks, std::uint64_t objects) {
        std::vector<std::string> said;
        if (const auto more = chunks_.read(now, chunks))
            said.push_back(
                fmt::format("{} chunks of GPU memory differ on the standby, and are sent again: kernels give "
                            "something else there, or one of the GPUs is faulty",
                            more));
        if (objects_.read(now, objects) != 0)
            said.push_back(fmt::format("{} memory objects differed again and again, and are sent after each "
                                       "request that may have written them",
                                       objects));
        return said;
    }

private:
    struct counted {
        std::uint64_t told = 0;
        std::optional<clock::time_point> at;

        // How many have come since they were told of; 0: nothing is to be told now. A number that has become
        // smaller is another replication's.
        std::uint64_t read(clock::time_point now, std::uint64_t count) {
            if (count < told)
                told = 0;
            if (count == told || (at && now - *at < period))
                return 0;
            at = now;
            return count - std::exchange(told, count);
        }
    };
    counted chunks_, objects_;
};

} // namespace kagemusha::control
