// SPDX-License-Identifier: GPL-2.0-or-later
//
// Numbers and sentences of the summary.
#include "control/status/summary.hpp"

#include <gtest/gtest.h>

namespace kagemusha::control {
namespace {

TEST(summary, counts_what_happened_between_two_readings) {
    const auto did = activity_between({{"launches", 10u}, {"bytes_to_gpu", 100u}},
                                      {{"launches", 25u}, {"bytes_to_gpu", 4196u}, {"requests", 3u}});
    EXPECT_EQ(did.launches, 15u);
    EXPECT_EQ(did.bytes_to_gpu, 4096u);
    EXPECT_EQ(did.requests, 3u);
    EXPECT_EQ(did.commands, 0u);
}

TEST(summary, accepts_names_with_dashes) {
    EXPECT_EQ(activity_between({}, {{"bytes-from-gpu", 7u}}).bytes_from_gpu, 7u);
}

TEST(summary, nonsense_counts_as_nothing) {
    EXPECT_EQ(activity_between({{"launches", 5u}}, {{"launches", 3u}}), gpu_activity{});
    EXPECT_EQ(activity_between(nullptr, nullptr), gpu_activity{});
    EXPECT_EQ(activity_between({}, {{"launches", "many"}}), gpu_activity{});
    EXPECT_EQ(activity_between({}, nlohmann::json::array({1})), gpu_activity{});
}

TEST(summary, bytes) {
    EXPECT_EQ(format_bytes(0), "0 B");
    EXPECT_EQ(format_bytes(1023), "1023 B");
    EXPECT_EQ(format_bytes(1536), "1.5 KiB");
    EXPECT_EQ(format_bytes(12u << 20), "12.0 MiB");
    EXPECT_EQ(format_bytes(~0ull), "16.0 EiB");
}

TEST(summary, counts) {
    EXPECT_EQ(format_count(0), "0");
    EXPECT_EQ(format_count(999), "999");
    EXPECT_EQ(format_count(1000), "1,000");
    EXPECT_EQ(format_count(1234567), "1,234,567");
}

TEST(summary, durations) {
    EXPECT_EQ(format_duration(3.24), "3.2 s");
    EXPECT_EQ(format_duration(125.2), "2 min 5 s");
}

TEST(summary, says_plainly_whether_the_answer_is_right) {
    demo_facts facts;
    facts.answer = "magpie";
    facts.verified = true;
    EXPECT_NE(demo_summary(facts).find("verified    yes"), std::string::npos);
    facts.verified = false;
    facts.why_not = "another word was hidden";
    EXPECT_NE(demo_summary(facts).find("verified    NO: another word was hidden"), std::string::npos);
}

} // namespace
} // namespace kagemusha::control
