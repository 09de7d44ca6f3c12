// SPDX-License-Identifier: GPL-2.0-or-later
// The order of QEMU's end: its exit handler, which was registered before anything of this library was made,
// ends the devices. So it runs after the destructors of everything static that was made later. What devices
// use must still be there.
//
// Each test is a process of its own, which ends as QEMU does.
#include <gtest/gtest.h>

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "worker/port_test_helpers.hpp"
#include "worker/process_port.hpp"
#include "worker/reaper.hpp"
#include "worker/test_worker.hpp"

namespace kagemusha::worker {
namespace {

// Only ends a test that is lost anyway.
constexpr unsigned lost_after_s = 60;

void ends_with(void (*at_exit)()) {
    alarm(lost_after_s);
    std::atexit(at_exit);
}

[[noreturn]] void failed(const char* what) {
    fprintf(stderr, "in the exit handler: %s\n", what);
    _exit(1);
}

// ---- a worker that outlives its device

pid_t left_process = -1;

unique_fd process_that_waits() {
    const pid_t parent = getpid();
    left_process = fork();
    if (left_process == 0) {
        close_range(0, ~0u, 0); // GoogleTest waits for the end of its pipes
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (getppid() == parent)
            pause();
        _exit(0);
    }
    return unique_fd(static_cast<int>(syscall(SYS_pidfd_open, left_process, 0)));
}

void leave_one() {
    // What anybody allocates meanwhile, in the places that were given back.
    std::array<std::unique_ptr<int>, 64> others;
    for (auto& other : others)
        other = std::make_unique<int>(-1);
    reap_later(process_that_waits());
    for (const auto& other : others)
        if (*other != -1)
            failed("reap_later() wrote into memory that is somebody else's");
    kill(left_process, SIGKILL);
    while (sweep_reaped() != 0)
        usleep(1000);
    if (kill(left_process, 0) == 0)
        failed("a zombie is left");
}

TEST(exit_test, a_worker_that_outlives_its_device) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(
        {
            ends_with(leave_one);
            reap_later(process_that_waits());
            kill(left_process, SIGKILL);
            while (sweep_reaped() != 0)
                usleep(1000);
            std::exit(0);
        },
        testing::ExitedWithCode(0), "");
}

// ---- devices that work until then

std::unique_ptr<port> start() {
    worker_options options;
    options.name = "test";
    options.backend = "echo";
    options.gpu = "zero";
    options.worker_path = KAGEMUSHA_TEST_WORKER;
    options.sandbox = sandbox_mode::off;
    std::string error;
    auto made = start_worker(options, error);
    if (!made)
        failed(error.c_str());
    return made;
}

bool answers(port& p) {
    recording_sink sink;
    const auto word = static_cast<std::uint64_t>(test_command::echo);
    return submit_words(p, 1, {&word, 1}) &&
           drain_until(p, sink, [&] { return !sink.done.empty() || !sink.lost.empty(); }) &&
           !sink.done.empty();
}

port* of_device = nullptr;

void go_on() {
    if (!answers(*of_device))
        failed("its worker was killed before the device was ended");
    const auto another = start();
    if (!answers(*another))
        failed("another worker does not answer");
    delete of_device;
}

TEST(exit_test, a_device_has_its_workers_until_it_is_ended) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(
        {
            ends_with(go_on);
            of_device = start().release();
            if (!answers(*of_device))
                failed("no answer");
            std::exit(0);
        },
        testing::ExitedWithCode(0), "");
}

} // namespace
} // namespace kagemusha::worker
