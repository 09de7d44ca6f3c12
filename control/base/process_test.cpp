// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/base/process.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/wait.h>
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

std::string all_of(int fd) {
    std::string text;
    char buffer[256];
    for (ssize_t got; (got = ::read(fd, buffer, sizeof buffer)) > 0;)
        text.append(buffer, static_cast<std::size_t>(got));
    return text;
}

TEST(process, a_detached_one_has_a_session_and_no_descriptors_of_ours_and_lives_on) {
    int ends[2], others[2];
    ASSERT_EQ(::pipe(ends), 0); // stay open on exec, as those of libraries do
    ASSERT_EQ(::pipe(others), 0);
    const unique_fd reading(ends[0]), other(others[0]), written(others[1]);
    unique_fd writing(ends[1]);
    spawn_request request;
    const auto number = std::to_string(writing.get());
    request.command = {"/bin/sh",
                       "-c",
                       "read -r word; for fd; do [ ! -e /proc/$$/fd/$fd ] || echo $fd; done; "
                       "cut -d ' ' -f 6 /proc/$$/stat; echo $$ $word",
                       "sh",
                       std::to_string(reading.get()),
                       std::to_string(other.get()),
                       std::to_string(written.get()),
                       number};
    int in[2];
    ASSERT_EQ(::pipe2(in, O_CLOEXEC), 0);
    const unique_fd input(in[0]);
    unique_fd asks(in[1]);
    request.in = input.get();
    request.out = writing.get();
    request.inherit = {writing.get()};
    request.detached = true;
    std::string error;
    int pid = 0;
    {
        auto child = child_process::start(request, error);
        ASSERT_TRUE(child) << error;
        pid = child->pid();
        EXPECT_FALSE(child->wait_for(std::chrono::milliseconds(0)));
    } // whose end is not the child's
    writing.reset();
    ASSERT_EQ(::write(asks.get(), "on\n", 3), 3);
    asks.reset();
    const auto own = std::to_string(pid);
    EXPECT_EQ(all_of(reading.get()), number + "\n" + own + "\n" + own + " on\n");
    EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
}

} // namespace
} // namespace kagemusha::control
