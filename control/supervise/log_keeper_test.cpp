// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/supervise/log_keeper.hpp"

#include "control/base/process.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sys/stat.h>
#include <unistd.h>

namespace kagemusha::control {
namespace {

namespace fs = std::filesystem;

struct log_keeper_test : testing::Test {
    fs::path folder = [] {
        auto name = (fs::temp_directory_path() / "kagemusha-log-XXXXXX").string();
        return fs::path(::mkdtemp(name.data()));
    }();
    std::string path = folder / "console.log", older = folder / "console.log.1";
    // As QEMU has it open, all the time.
    unique_fd qemu{::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)};

    ~log_keeper_test() override { fs::remove_all(folder); }
    void says(const std::string& text) {
        ASSERT_EQ(::write(qemu.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    }
    static std::string content(const std::string& of) {
        std::ifstream file(of);
        return {std::istreambuf_iterator<char>(file), {}};
    }
};

TEST_F(log_keeper_test, what_is_within_its_bound_stays) {
    says("12345678");
    EXPECT_EQ(bound_log(path, 8), "");
    EXPECT_EQ(content(path), "12345678");
    EXPECT_FALSE(fs::exists(older));
}

TEST_F(log_keeper_test, a_guest_that_writes_for_ever_fills_two_files_and_no_disk) {
    for (int i = 0; i < 1000; ++i) {
        says("line " + std::to_string(i) + "\n");
        EXPECT_EQ(bound_log(path, 100), "");
        EXPECT_LE(fs::file_size(path), 100u);
        if (fs::exists(older))
            EXPECT_LE(fs::file_size(older), 100u);
    }
    // And the newest is what is kept.
    EXPECT_TRUE((content(older) + content(path)).ends_with("line 998\nline 999\n"));
}

TEST_F(log_keeper_test, more_than_the_bound_at_once) {
    says("0123456789");
    EXPECT_EQ(bound_log(path, 4), "");
    EXPECT_EQ(content(older), "6789");
    says("next");
    EXPECT_EQ(content(path), "next") << "QEMU goes on at the beginning";
}

TEST_F(log_keeper_test, a_copy_that_can_not_be_made_does_not_stop_it) {
    ASSERT_EQ(::symlink("/etc/passwd", older.c_str()), 0);
    says("0123456789");
    EXPECT_NE(bound_log(path, 4), "");
    EXPECT_EQ(fs::file_size(path), 0u);
    EXPECT_TRUE(fs::is_symlink(older));
}

TEST_F(log_keeper_test, what_is_no_file_is_left_alone) {
    EXPECT_EQ(bound_log("/dev/null", 0), "");
    EXPECT_EQ(bound_log((folder / "nothing").string(), 0), "");
    const auto pipe = (folder / "pipe").string();
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_EQ(bound_log(pipe, 0), "");
}

TEST_F(log_keeper_test, it_looks_by_itself) {
    says("0123456789");
    {
        const log_keeper keeper({path}, 4, [](const std::string&) {});
        while (fs::file_size(path) != 0)
            std::this_thread::yield();
    }
    EXPECT_EQ(content(older), "6789");
}

} // namespace
} // namespace kagemusha::control
