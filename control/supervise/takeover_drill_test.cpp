// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/supervise/takeover_drill.hpp"

#include <gtest/gtest.h>

namespace kagemusha::control {
namespace {

constexpr std::uint64_t ms = 1'000'000, t0 = 5'000 * ms;

TEST(takeover_drill, its_times) {
    takeover_drill drill;
    EXPECT_FALSE(drill.under_way());
    drill.begin(35, t0);
    EXPECT_TRUE(drill.under_way());
    drill.killed(t0 + 2 * ms);
    drill.qemu_ended(t0 + 3 * ms);
    const auto result = drill.over(true, "the standby goes on", t0 + 12 * ms);
    EXPECT_EQ(result["checkpoint_age_ms"], 35);
    EXPECT_DOUBLE_EQ(result["noticed_ms"].get<double>(), 1.0);
    EXPECT_DOUBLE_EQ(result["running_ms"].get<double>(), 10.0);
    EXPECT_NE(drill_text(result).find("10.0 ms  the standby said"), std::string::npos);
}

TEST(takeover_drill, a_standby_that_says_nothing_is_no_success) {
    takeover_drill drill;
    drill.begin(35, t0);
    drill.killed(t0);
    drill.qemu_ended(t0 + ms);
    EXPECT_NE(drill.over(false, "the standby was told", t0 + 10'000 * ms)
                  .value("error", "")
                  .find("the standby was told"),
              std::string::npos);
}

TEST(takeover_drill, one_that_is_not_allowed_is_answered) {
    takeover_drill drill;
    drill.begin(35, t0);
    EXPECT_FALSE(drill.refusal(t0 + takeover_drill::permission_ns - 1));
    EXPECT_TRUE(drill.refusal(t0 + takeover_drill::permission_ns)->contains("error"));
    EXPECT_FALSE(drill.under_way());
    EXPECT_FALSE(drill.refusal(t0 + 2 * takeover_drill::permission_ns)) << "once";
    drill.begin(35, t0);
    drill.killed(t0 + ms);
    EXPECT_FALSE(drill.refusal(t0 + 2 * takeover_drill::permission_ns));
}

} // namespace
} // namespace kagemusha::control
