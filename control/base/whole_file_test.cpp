// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/base/whole_file.hpp"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace kagemusha::control {
namespace {

namespace fs = std::filesystem;

struct whole_file : testing::Test {
    whole_file() {
        std::string name = (fs::temp_directory_path() / "whole_file.XXXXXX").string();
        directory = ::mkdtemp(name.data());
    }
    ~whole_file() override { fs::remove_all(directory); }
    std::string directory;
};

TEST_F(whole_file, what_is_written_is_read) {
    for (const auto& text : std::vector<std::string>{"", "a line\n", std::string("\0\xff bytes", 8)}) {
        EXPECT_EQ(write_whole_file(directory + "/a", text), "");
        EXPECT_EQ(read_whole_file(directory + "/a"), text);
    }
    EXPECT_FALSE(fs::exists(directory + "/a.new"));
}

TEST_F(whole_file, an_old_file_stays_if_the_new_one_cannot_be_written) {
    ASSERT_EQ(write_whole_file(directory + "/a", "old"), "");
    fs::create_directory(directory + "/a.new"); // so that nobody can write there
    EXPECT_EQ(write_whole_file(directory + "/a", "new").find("cannot write " + directory + "/a: "), 0u);
    EXPECT_EQ(read_whole_file(directory + "/a"), "old");
}

TEST_F(whole_file, a_pipe_is_written_to_as_it_is) {
    const auto pipe = directory + "/pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    std::thread reader([&] { EXPECT_EQ(read_whole_file(pipe), "text"); });
    EXPECT_EQ(write_whole_file(pipe, "text"), "");
    reader.join();
    EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST_F(whole_file, what_is_not_there_is_no_text) {
    EXPECT_EQ(read_whole_file(directory + "/none"), std::nullopt);
    EXPECT_EQ(read_whole_file(directory), std::nullopt) << "a folder";
    EXPECT_EQ(write_whole_file(directory + "/none/a", "text").find("cannot write "), 0u);
}

} // namespace
} // namespace kagemusha::control
