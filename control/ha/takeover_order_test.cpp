// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/ha/takeover_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace kagemusha::ha {
namespace {

constexpr std::uint64_t ms = 1'000'000;
using phase = takeover_phase;

other_standby other(std::uint32_t priority, phase what, std::uint64_t heard_ns) {
    return {"p" + std::to_string(priority), priority, what, heard_ns, 100 * ms};
}

TEST(takeover_order, nobody_waits_for_equal_or_lower_ones) {
    const std::vector<other_standby> others{other(3, phase::taking_over, 0), other(1, phase::taking_over, 0)};
    EXPECT_TRUE(turn_of(3, 1000 * ms, others, 1000 * ms).begins);
}

TEST(takeover_order, higher_ones_that_take_over_are_first_until_they_run) {
    std::vector<other_standby> others{other(5, phase::taking_over, 0), other(4, phase::taking_over, 0)};
    const auto turn = turn_of(3, 1000 * ms, others, 1000 * ms);
    EXPECT_FALSE(turn.begins);
    EXPECT_EQ(turn.for_whom, "p5, p4");
    others[0].phase = phase::runs;
    EXPECT_FALSE(turn_of(3, 1000 * ms, others, 1010 * ms).begins);
    others[1].phase = phase::none; // it failed
    EXPECT_TRUE(turn_of(3, 1000 * ms, others, 1020 * ms).begins);
}

TEST(takeover_order, higher_ones_whose_primaries_are_silent_too_are_waited_for) {
    const std::vector<other_standby> silent{other(5, phase::standing_by, 800 * ms)};
    EXPECT_FALSE(turn_of(0, 1000 * ms, silent, 1000 * ms).begins);
}

TEST(takeover_order, one_vms_own_death_waits_for_nobody) {
    const std::vector<other_standby> healthy{other(5, phase::standing_by, 950 * ms),
                                             other(6, phase::none, 0)};
    EXPECT_TRUE(turn_of(0, 1000 * ms, healthy, 1000 * ms).begins);
}

TEST(takeover_order, nobody_waits_for_ever) {
    const std::vector<other_standby> stuck{other(5, phase::taking_over, 0)};
    const std::uint64_t decided = 1000 * ms;
    EXPECT_FALSE(turn_of(0, decided, stuck, decided + longest_order_wait_ns - 1).begins);
    const auto turn = turn_of(0, decided, stuck, decided + longest_order_wait_ns);
    EXPECT_TRUE(turn.begins);
    EXPECT_TRUE(turn.gave_up);
}

TEST(takeover_order, a_clock_that_goes_back_is_no_wait_that_ended) {
    const std::vector<other_standby> stuck{other(5, phase::taking_over, 2000 * ms)};
    EXPECT_FALSE(turn_of(0, 1000 * ms, stuck, 900 * ms).begins);
}

// A host with up to 25 primaries dies. Each standby notices within a heartbeat of the others, and starts in some
// milliseconds: nobody begins before all higher ones run, and all begin.
TEST(takeover_order, in_simulated_deaths_of_hosts_priorities_are_the_order) {
    for (std::uint32_t seed = 1; seed <= 500; ++seed) {
        std::mt19937 random(seed);
        const auto number = 2 + random() % 24;
        struct one {
            other_standby seen;
            std::uint64_t decides, decided = 0, runs_at = 0;
        };
        std::vector<one> all;
        for (std::uint32_t i = 0; i < number; ++i) {
            const std::uint64_t heard = random() % (100 * ms); // one heartbeat
            all.push_back({other(random() % 8, phase::standing_by, heard), heard + 200 * ms + random() % ms});
            all.back().seen.name = std::to_string(i);
        }
        std::vector<std::uint32_t> order;
        for (std::uint64_t now = 0; order.size() < number; now += ms) {
            ASSERT_LT(now, 5000 * ms) << "seed " << seed;
            for (one& mine : all) {
                if (mine.seen.phase == phase::standing_by && now >= mine.decides) {
                    mine.seen.phase = phase::taking_over;
                    mine.decided = now;
                }
                if (mine.seen.phase != phase::taking_over)
                    continue;
                if (mine.runs_at != 0) {
                    if (now >= mine.runs_at)
                        mine.seen.phase = phase::runs;
                    continue;
                }
                std::vector<other_standby> others;
                for (const one& another : all)
                    if (&another != &mine)
                        others.push_back(another.seen);
                const auto turn = turn_of(mine.seen.priority, mine.decided, others, now);
                ASSERT_FALSE(turn.gave_up) << "seed " << seed;
                if (turn.begins) {
                    mine.runs_at = now + (5 + random() % 15) * ms;
                    order.push_back(mine.seen.priority);
                    for (const one& another : all)
                        ASSERT_TRUE(another.seen.priority <= mine.seen.priority ||
                                    another.seen.phase == phase::runs)
                            << "seed " << seed;
                }
            }
        }
        EXPECT_TRUE(std::ranges::is_sorted(order, std::greater<>())) << "seed " << seed;
    }
}

} // namespace
} // namespace kagemusha::ha
