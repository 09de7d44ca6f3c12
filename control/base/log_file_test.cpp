// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/base/log_file.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <unistd.h>

namespace kagemusha::control {
namespace {

TEST(log_file, its_last_lines) {
    const auto path =
        (std::filesystem::temp_directory_path() / ("kagemusha-log-" + std::to_string(::getpid()))).string();
    EXPECT_TRUE(last_lines(path, 3).empty());
    std::ofstream(path) << "one\n\ntwo\r\nthree";
    EXPECT_EQ(last_lines(path, 2), (std::deque<std::string>{"two", "three"}));
    EXPECT_EQ(last_lines(path, 9), (std::deque<std::string>{"one", "", "two", "three"}));
    std::filesystem::remove(path);
}

} // namespace
} // namespace kagemusha::control
