// SPDX-License-Identifier: GPL-2.0-or-later
// simulator: one schedule of a primary, a standby and the network between them, in one thread, from one seed.
// The state machines are the real ones; what they command is done by models (device, GPU, network), and
// checkers that know nothing of the state machines watch what happens.
//
// A schedule is two parts. First anything happens, as the options draw it. Then the faults end and everybody
// is served in turn: now both sides must come to rest in a bounded number of rounds, as equal copies, with
// empty logs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "sim/options.hpp"

namespace kagemusha::sim {

// What happened in many schedules, to see that they are worth something.
struct statistics {
    std::uint64_t schedules = 0, steps = 0, entries = 0, runs = 0, skips = 0;
    std::uint64_t connections = 0, cuts = 0, takeovers = 0, restarts = 0, duplicates = 0, faults = 0;
    std::uint64_t comparisons = 0, differences = 0, syncs = 0, congestions = 0, requests = 0, resumed = 0;
    void add(const statistics& s);
    std::string text() const;
};

struct outcome_of_schedule {
    std::string failure; // empty: all rules were kept
    std::uint64_t steps = 0;
};

class simulator {
public:
    // `trace`: prints each event and action.
    simulator(const options& o, bool trace);
    ~simulator();
    outcome_of_schedule run(statistics& s);

private:
    struct impl;
    std::unique_ptr<impl> impl_;
};

} // namespace kagemusha::sim
