// SPDX-License-Identifier: GPL-2.0-or-later
//
// Random schedules of world.hpp. KAGEMUSHA_HA_SEED=N runs one of them and prints what happens in it,
// KAGEMUSHA_HA_MUTATION=N with a rule broken on purpose; KAGEMUSHA_HA_SEEDS=N runs so many.
#include "control/ha/sim/world.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace kagemusha::ha {
namespace {

using namespace test;

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
    const char* const text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(ha_simulation, one_speaker_nothing_taken_back_and_protected_again) {
    if (const auto seed = from_environment("KAGEMUSHA_HA_SEED", 0); seed != 0) {
        world w(seed, true, static_cast<mutation>(from_environment("KAGEMUSHA_HA_MUTATION", 0)));
        w.run();
        EXPECT_EQ(w.violation(), "");
        return;
    }
    unsigned takeovers = 0, protected_ones = 0, switchovers = 0, taken_back = 0, restored = 0, stopped = 0,
             again = 0;
    std::uint64_t longest = 0;
    const auto seeds = from_environment("KAGEMUSHA_HA_SEEDS", 4000);
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        world w(seed, false);
        w.run();
        takeovers += w.takeovers();
        switchovers += w.switchovers();
        taken_back += w.taken_back();
        restored += w.restored();
        stopped += w.stopped();
        protected_ones += w.was_protected();
        again += w.protected_again();
        longest = std::max(longest, w.took_ms());
        ASSERT_EQ(w.violation(), "") << "KAGEMUSHA_HA_SEED=" << seed << " shows the schedule";
    }
    fmt::print("{} schedules: {} were protected, {} takeovers, {} switchovers, {} taken back, {} records "
               "made again, "
               "{} stopped; {} protected again, after {} ms at most\n",
               seeds, protected_ones, takeovers, switchovers, taken_back, restored, stopped, again, longest);
    // The schedules reach what they are for.
    EXPECT_GT(protected_ones, seeds / 2);
    EXPECT_GT(takeovers, seeds / 4);
    EXPECT_GT(switchovers, seeds / 20);
    EXPECT_GT(taken_back, seeds / 200);
    EXPECT_GT(restored, seeds / 40);
    EXPECT_GT(stopped, seeds / 40);
    EXPECT_GT(again, seeds / 2);
}

// A checker that finds nothing may be one that can't.
TEST(ha_simulation, every_rule_that_is_broken_on_purpose_is_found) {
    for (int i = 1; i <= static_cast<int>(last_mutation); ++i) {
        std::uint64_t seed = 0;
        std::string found;
        while (found.empty() && ++seed <= 4000) {
            world w(seed, false, static_cast<mutation>(i));
            w.run();
            found = w.violation();
        }
        EXPECT_FALSE(found.empty()) << "mutation " << i;
        fmt::print("mutation {:2}: seed {:4}, {}\n", i, seed, found);
    }
}

} // namespace
} // namespace kagemusha::ha
