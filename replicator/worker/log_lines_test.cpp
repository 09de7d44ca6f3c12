// SPDX-License-Identifier: GPL-2.0-or-later
// Tests of what becomes of a worker's standard error.
#include "worker/log_lines.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kagemusha::worker {
namespace {

struct log_lines_fixture : ::testing::Test {
    std::vector<std::string> out;
    log_lines lines{[this](const std::string& line) { out.push_back(line); }};
};

TEST_F(log_lines_fixture, puts_pieces_together) {
    lines.add("first ha", 0);
    lines.add("lf\nsecond\n\nrest", 0);
    EXPECT_EQ(out, (std::vector<std::string>{"first half", "second"}));
    lines.finish();
    EXPECT_EQ(out.back(), "rest");
}

TEST_F(log_lines_fixture, makes_bytes_printable) {
    lines.add("\x1b[2J\r\n", 0);
    EXPECT_EQ(out, (std::vector<std::string>{"\\x1b[2J\\x0d"}));
}

TEST_F(log_lines_fixture, cuts_endless_lines) {
    for (int i = 0; i < 100000; ++i)
        lines.add("xxxxxxxxxx", 0);
    lines.add("\n", 0);
    ASSERT_EQ(out.size(), 1u);
    EXPECT_LE(out[0].size(), max_log_line_bytes);
}

TEST_F(log_lines_fixture, limits_a_flood_and_tells_what_is_missing) {
    for (int i = 0; i < 1000; ++i)
        lines.add("flood\n", 1000);
    EXPECT_EQ(out.size(), log_burst_lines);
    lines.add("later\n", 1000 + 1000);
    ASSERT_EQ(out.size(), log_burst_lines + 2);
    EXPECT_EQ(out[log_burst_lines], "(" + std::to_string(1000 - log_burst_lines) + " lines were left out)");
    EXPECT_EQ(out.back(), "later");
}

TEST_F(log_lines_fixture, the_end_tells_what_is_missing) {
    for (unsigned i = 0; i < log_burst_lines + 3; ++i)
        lines.add("flood\n", 0);
    lines.finish();
    EXPECT_EQ(out.back(), "(3 lines were left out)");
}

} // namespace
} // namespace kagemusha::worker
