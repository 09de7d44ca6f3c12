// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/arbiter/endpoint_race.hpp"

#include <gtest/gtest.h>

namespace kagemusha::control {

TEST(endpoint_race, the_one_that_answered_last_is_asked_alone_while_it_answers) {
    endpoint_race race(3, 2, 100);
    EXPECT_EQ(race.next(1000), 2u);
    EXPECT_EQ(race.next(1000), std::nullopt);
    EXPECT_EQ(race.next(1099), std::nullopt);
    EXPECT_EQ(race.next_ms(), 1100u);
}

TEST(endpoint_race, one_that_is_silent_does_not_hold_the_others_up) {
    endpoint_race race(3, 2, 100);
    race.next(1000);
    EXPECT_EQ(race.next(1100), 0u);
    EXPECT_EQ(race.next(1100), std::nullopt);
    EXPECT_EQ(race.next(1250), 1u);
    EXPECT_EQ(race.next(5000), std::nullopt) << "each once";
    EXPECT_EQ(race.next_ms(), UINT64_MAX);
    EXPECT_FALSE(race.lost());
}

TEST(endpoint_race, after_an_error_the_next_one_is_asked_at_once) {
    endpoint_race race(2, 0, 100);
    race.next(1000);
    race.failed();
    EXPECT_EQ(race.next(1000), 1u);
    race.failed();
    EXPECT_TRUE(race.lost());
}

} // namespace kagemusha::control
