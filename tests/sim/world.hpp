// SPDX-License-Identifier: GPL-2.0-or-later
// world: what both hosts of the simulator share: time, chance, the network and the checkers.
#pragma once

#include <cstdio>
#include <string>

#include "sim/checkers/flow_checker.hpp"
#include "sim/checkers/run_checker.hpp"
#include "sim/checkers/state_checker.hpp"
#include "sim/network.hpp"
#include "sim/options.hpp"
#include "sim/simulator.hpp"

namespace kagemusha::sim {

struct world {
    const options& o;
    rng& random;
    std::uint64_t now = 0;
    bool faults = true;
    bool guest_waits = true; // some of its requests have no answer at a checkpoint
    bool trace = false;
    std::string failure{};
    connection link{};
    run_checker runs{};
    flow_checker flow{};
    statistics st{};

    bool ok() const { return failure.empty(); }
    void fail(std::string why) {
        if (failure.empty()) {
            failure = std::move(why);
            say("checker", failure);
        }
    }
    void check(const char* checker, const std::string& result) {
        if (!result.empty())
            fail(std::string(checker) + ": " + result);
    }
    void say(const char* who, const std::string& what) const {
        if (trace)
            std::printf("%6llu %-8s %s\n", static_cast<unsigned long long>(now), who, what.c_str());
    }
};

} // namespace kagemusha::sim
