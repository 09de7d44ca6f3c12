// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/base/process.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

namespace kagemusha::control {
namespace {

// Letters of /proc/PID/task/TID/stat
TEST(process, a_killed_process_that_the_kernel_holds) {
    EXPECT_TRUE(only_held("D"));
    EXPECT_TRUE(only_held("DZXD"));
    EXPECT_FALSE(only_held("DR")) << "one still runs";
    EXPECT_FALSE(only_held("DS")) << "a signal wakes it";
    EXPECT_FALSE(only_held("DT"));
    EXPECT_FALSE(only_held("Z")) << "it ends";
    EXPECT_FALSE(only_held(""));
}

TEST(process, a_process_that_runs_is_not_held) {
    EXPECT_FALSE(only_held_threads(::getpid()));
    EXPECT_FALSE(only_held_threads(-1)) << "there is none";
}

} // namespace
} // namespace kagemusha::control
