// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/vm/takeover_queue.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

namespace kagemusha::control {
namespace {

using phase = ha::takeover_phase;
constexpr std::uint64_t now = 1'000'000'000;

class takeover_queues : public testing::Test {
protected:
    takeover_queues() {
        char path[] = "/tmp/kagemusha-takeovers-XXXXXX";
        directory_ = mkdtemp(path);
    }
    ~takeover_queues() override { std::filesystem::remove_all(directory_); }
    // As of another process: an own open file, and so an own lock.
    std::unique_ptr<takeover_queue> standby(const std::string& name, std::uint32_t priority) {
        std::string error;
        auto made = std::make_unique<takeover_queue>(directory_, name, priority, 100, error);
        EXPECT_EQ(error, "");
        return made;
    }
    std::string directory_;
};

TEST_F(takeover_queues, a_lower_one_waits_until_the_higher_one_runs) {
    const auto low = standby("low", 1), high = standby("high", 5);
    low->enter(phase::taking_over);
    high->enter(phase::taking_over);
    EXPECT_TRUE(high->turn(now, now).begins);
    const auto turn = low->turn(now, now);
    EXPECT_FALSE(turn.begins);
    EXPECT_EQ(turn.for_whom, "high");
    high->enter(phase::runs);
    EXPECT_TRUE(low->turn(now, now).begins);
}

TEST_F(takeover_queues, heartbeats_are_seen) {
    const auto low = standby("low", 0), high = standby("high", 1);
    high->enter(phase::standing_by);
    high->heard(now - 50'000'000);
    EXPECT_TRUE(low->turn(now, now).begins);
    high->heard(now - 200'000'000);
    EXPECT_FALSE(low->turn(now, now).begins);
}

TEST_F(takeover_queues, one_that_ended_is_not_waited_for) {
    const auto low = standby("low", 0);
    auto high = standby("high", 7);
    high->enter(phase::taking_over);
    EXPECT_FALSE(low->turn(now, now).begins);
    high.reset();
    EXPECT_TRUE(low->turn(now, now).begins);
    EXPECT_TRUE(low->others().empty());
}

TEST_F(takeover_queues, one_that_was_killed_is_not_waited_for) {
    const auto low = standby("low", 0);
    const pid_t child = fork();
    if (child == 0) {
        std::string error;
        takeover_queue high(directory_, "high", 7, 100, error);
        high.enter(phase::taking_over);
        _exit(0); // without its destructor: the file stays
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(std::filesystem::exists(directory_ + "/takeovers/high"));
    EXPECT_TRUE(low->turn(now, now).begins);
    const auto again = standby("high", 7); // its successor uses the file
    again->enter(phase::taking_over);
    EXPECT_FALSE(low->turn(now, now).begins);
}

TEST_F(takeover_queues, files_that_are_no_pages_are_nothing) {
    const auto low = standby("low", 0);
    std::ofstream(directory_ + "/takeovers/short") << "x";
    std::filesystem::create_symlink("/etc/passwd", directory_ + "/takeovers/link");
    std::filesystem::create_directory(directory_ + "/takeovers/folder");
    EXPECT_TRUE(low->others().empty());
}

TEST_F(takeover_queues, without_a_directory_it_stands_alone) {
    std::string error;
    takeover_queue alone("/no/such/directory", "alone", 0, 100, error);
    EXPECT_NE(error, "");
    alone.enter(phase::taking_over);
    alone.heard(1);
    EXPECT_TRUE(alone.turn(now, now).begins);
}

} // namespace
} // namespace kagemusha::control
