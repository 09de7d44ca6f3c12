// SPDX-License-Identifier: GPL-2.0-or-later
// Tests of the device's end of a worker process, with workers that echo, crash, lie, hang and stay silent.
#include "worker/process_port.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <thread>

#include "worker/launcher.hpp"
#include "worker/limits.hpp"
#include "worker/port_test_helpers.hpp"
#include "worker/reaper.hpp"
#include "worker/spawn.hpp"
#include "worker/test_worker.hpp"

namespace kagemusha::worker {
namespace {

// Run with $KAGEMUSHA_TEST_LAUNCHED all of these start their workers through a launcher, as a QEMU that may
// not start processes does. Before main(), as it is there before QEMU.
[[maybe_unused]] const bool launched = [] {
    if (std::getenv("KAGEMUSHA_TEST_LAUNCHED") == nullptr)
        return false;
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
        std::abort();
    if (fork() == 0) {
        close(ends[0]);
        execl(KAGEMUSHA_TEST_WORKER, KAGEMUSHA_TEST_WORKER, launcher_word, std::to_string(ends[1]).c_str(),
              static_cast<char*>(nullptr));
        _exit(127);
    }
    close(ends[1]);
    setenv(launcher_variable, std::to_string(ends[0]).c_str(), 1);
    return true;
}();

struct process_port_fixture : ::testing::Test {
    worker_options options;
    std::vector<std::string> log;
    recording_sink sink;

    process_port_fixture() {
        options.name = "test";
        options.backend = "echo";
        options.gpu = "zero";
        options.worker_path = KAGEMUSHA_TEST_WORKER;
        options.sandbox = sandbox_mode::off;
        options.log = [this](kagemusha_log_level level, const std::string& line) {
            if (level <= KAGEMUSHA_LOG_INFO)
                log.push_back(line);
        };
    }

    std::unique_ptr<port> start() {
        std::string error;
        auto made = start_worker(options, error);
        EXPECT_TRUE(made) << error;
        return made;
    }

    bool submit(port& p, std::uint64_t token, test_command command) {
        const auto word = static_cast<std::uint64_t>(command);
        return submit_words(p, token, {&word, 1});
    }

    std::uint64_t worker_pid(port& p) {
        submit(p, 4711, test_command::report_pid);
        const std::size_t before = sink.done.size();
        EXPECT_TRUE(drain_until(p, sink, [&] { return sink.done.size() > before; }));
        return sink.done.back().response.value;
    }

    std::string whole_log() const {
        std::string all;
        for (const auto& line : log)
            all += line + "\n";
        return all;
    }
};

// Workers of other tests, which were killed and may still be on their way out.
void wait_for_other_tests() {
    while (sweep_reaped() != 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::size_t open_descriptors() {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
        ++count;
    return count;
}

TEST_F(process_port_fixture, answers_thousands_of_requests_in_order) {
    const auto port = start();
    constexpr std::uint64_t count = 20000;
    std::vector<std::uint64_t> stream(200);
    for (std::uint64_t token = 0; token < count; ++token) {
        const auto bytes = std::as_bytes(std::span(stream)).first(8 * (token % 200));
        while (port->submit({token, bytes, {}, {}}) == submit_result::full) {
            port->kick();
            const std::size_t before = sink.done.size();
            ASSERT_TRUE(drain_until(*port, sink, [&] { return sink.done.size() > before; }));
        }
    }
    port->kick();
    ASSERT_TRUE(drain_until(*port, sink, [&] { return sink.done.size() == count; }));
    for (std::uint64_t i = 0; i < count; ++i) {
        ASSERT_EQ(sink.done[i].token, i);
        ASSERT_EQ(sink.done[i].response.value, 8 * (i % 200));
    }
    EXPECT_GE(port->progress(), count);
    EXPECT_TRUE(sink.lost.empty());
}

TEST_F(process_port_fixture, carries_the_largest_request) {
    const auto port = start();
    std::vector<std::uint64_t> stream(VGPU_MAX_STREAM_BYTES / 8);
    std::vector<kagemusha_payload> payloads(VGPU_MAX_PAYLOADS);
    std::vector<kagemusha_segment> segments(VGPU_MAX_SEGMENTS);
    for (std::uint64_t token = 0; token < 5; ++token) {
        const request_view request{token, std::as_bytes(std::span(stream)), payloads, segments};
        while (port->submit(request) == submit_result::full)
            ASSERT_TRUE(drain_until(*port, sink, [&] { return sink.done.size() == token; }));
        port->kick();
    }
    ASSERT_TRUE(drain_until(*port, sink, [&] { return sink.done.size() == 5; }));
    EXPECT_EQ(sink.done[4].response.value, VGPU_MAX_STREAM_BYTES);
    EXPECT_EQ(sink.done[4].response.result_bytes, VGPU_MAX_SEGMENTS);
}

TEST_F(process_port_fixture, the_worker_reads_and_writes_the_regions) {
    const int fd = memfd_create("region", MFD_CLOEXEC);
    ASSERT_EQ(ftruncate(fd, 3 * 4096), 0);
    auto* memory =
        static_cast<unsigned char*>(mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    std::memset(memory, 0x0f, 3 * 4096);
    options.regions.resize(4);
    options.regions[3] = {fd, 4096, 8192}; // numbers 0 to 2 do not exist
    const auto port = start();
    close(fd);
    const auto word = static_cast<std::uint64_t>(test_command::invert);
    const kagemusha_segment segment{10, 20, 3, 0};
    const kagemusha_payload payload{20, 0, 1, 1, 0};
    ASSERT_EQ(port->submit({1, std::as_bytes(std::span(&word, 1)), {&payload, 1}, {&segment, 1}}),
              submit_result::accepted);
    port->kick();
    ASSERT_TRUE(drain_until(*port, sink, [&] { return !sink.done.empty(); }));
    EXPECT_EQ(memory[4096 + 9], 0x0f);
    EXPECT_EQ(memory[4096 + 10], 0xf0);
    EXPECT_EQ(memory[4096 + 29], 0xf0);
    EXPECT_EQ(memory[4096 + 30], 0x0f);
    munmap(memory, 3 * 4096);
}

TEST_F(process_port_fixture, everything_printed_comes_before_the_completion) {
    std::string expected;
    for (int i = 0; i < 20000; ++i)
        expected += "line " + std::to_string(i) + "\n";
    const auto port = start();
    ASSERT_TRUE(submit(*port, 1, test_command::print));
    ASSERT_TRUE(drain_until(*port, sink, [&] { return !sink.done.empty(); }));
    EXPECT_EQ(sink.text, expected);
    ASSERT_EQ(sink.text_at_record.size(), 1u);
    EXPECT_EQ(sink.text_at_record[0], expected.size());
}

TEST_F(process_port_fixture, a_crash_is_told_once_with_its_signal) {
    const auto port = start();
    ASSERT_TRUE(submit(*port, 1, test_command::echo));
    ASSERT_TRUE(submit(*port, 2, test_command::crash));
    ASSERT_TRUE(drain_until(*port, sink, [&] { return !sink.lost.empty(); }));
    port->drain(sink);
    ASSERT_EQ(sink.lost.size(), 1u);
    EXPECT_EQ(sink.lost[0], std::make_pair(VGPU_LOST_CRASHED, std::uint32_t{SIGSEGV}));
    ASSERT_EQ(sink.done.size(), 1u) << "what was finished before the crash is told";
    EXPECT_EQ(port->submit({3, {}, {}, {}}), submit_result::dead);
}

TEST_F(process_port_fixture, a_lost_gpu_is_told) {
    const auto port = start();
    ASSERT_TRUE(submit(*port, 1, test_command::lose_gpu));
    ASSERT_TRUE(drain_until(*port, sink, [&] { return !sink.lost.empty(); }));
    EXPECT_EQ(sink.lost[0], std::make_pair(VGPU_LOST_GPU, std::uint32_t{99}));
}

TEST_F(process_port_fixture, a_worker_without_a_gpu_tells_why) {
    options.backend = "refuse";
    const auto port = start();
    ASSERT_TRUE(drain_until(*port, sink, [&] { return !sink.lost.empty(); }));
    EXPECT_EQ(sink.lost[0].first, VGPU_LOST_START);
    EXPECT_NE(whole_log().find("there is no GPU \\x1b here"), std::string::npos) << whole_log();
}

TEST_F(process_port_fixture, a_worker_that_dies_while_it_starts_is_a_failed_start) {
    options.backend = "crash";
    const auto port = start();
    ASSERT_TRUE(drain_until(*port, sink, [&] { return !sink.lost.empty(); }));
    EXPECT_EQ(sink.lost[0], std::make_pair(VGPU_LOST_START, std::uint32_t{SIGABRT}));
}

TEST_F(process_port_fixture, a_relative_folder_of_libraries_is_left_out_with_a_sentence) {
    if (launched)
        GTEST_SKIP() << "the launcher has the environment that it was started with";
    setenv("LD_LIBRARY_PATH", "build/lib:/usr/lib", 1);
    options.sandbox = sandbox_mode::best_effort;
    const auto port = start();
    unsetenv("LD_LIBRARY_PATH");
    ASSERT_TRUE(submit(*port, 1, test_command::echo));
    ASSERT_TRUE(drain_until(*port, sink, [&] { return !sink.done.empty(); }));
    EXPECT_NE(whole_log().find("workers don't look into 'build/lib' of LD_LIBRARY_PATH"), std::string::npos)
        << whole_log();
}

// A client of MPS can be ended by another one's fault (docs/sharing.md).
TEST_F(process_port_fixture, a_worker_is_no_client_of_mps) {
    setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps", 1);
    setenv("CUDA_CACHE_DISABLE", "1", 1);
    bool mps = false, other = false;
    for (const char* variable : worker_environment()) {
        mps |= variable && std::string_view(variable).starts_with("CUDA_MPS_");
        other |= variable && std::string_view(variable) == "CUDA_CACHE_DISABLE=1";
    }
    unsetenv("CUDA_MPS_PIPE_DIRECTORY");
    unsetenv("CUDA_CACHE_DISABLE");
    EXPECT_FALSE(mps);
    EXPECT_TRUE(other);
}

TEST_F(process_port_fixture, a_missing_executable_is_a_sentence) {
    options.worker_path = "/nowhere/kagemusha-worker";
    std::string error;
    EXPECT_FALSE(start_worker(options, error));
    EXPECT_NE(error.find("/nowhere/kagemusha-worker"), std::string::npos);
}

TEST_F(process_port_fixture, a_program_that_is_no_worker_is_a_failed_start) {
    if (launched)
        GTEST_SKIP() << "a launcher starts its own program, whatever it is asked for";
    options.worker_path = "/bin/false";
    const auto port = start();
    ASSERT_TRUE(drain_until(*port, sink, [&] { return !sink.lost.empty(); }));
    EXPECT_EQ(sink.lost[0], std::make_pair(VGPU_LOST_START, std::uint32_t{1}));
}

TEST_F(process_port_fixture, a_flood_of_messages_becomes_few_lines) {
    const auto port = start();
    ASSERT_TRUE(submit(*port, 1, test_command::flood_log));
    ASSERT_TRUE(drain_until(*port, sink, [&] { return !sink.done.empty(); }));
    ASSERT_TRUE(end_port(*port));
    EXPECT_GE(log.size(), 2u);
    EXPECT_LT(log.size(), 1000u);
    EXPECT_NE(log[0].find("flood \\x1b 0"), std::string::npos) << log[0];
    EXPECT_NE(whole_log().find("lines were left out"), std::string::npos);
}

struct garbage_worker : process_port_fixture, ::testing::WithParamInterface<int> {};

TEST_P(garbage_worker, is_a_broken_protocol_and_nothing_else) {
    options.name = "garbage " + std::to_string(GetParam());
    const auto port = start();
    // Way 5 is seen by the device only when it submits.
    ASSERT_TRUE(drain_until(*port, sink, [&] {
        port->submit({1, {}, {}, {}});
        return !sink.lost.empty();
    }));
    EXPECT_EQ(sink.lost[0].first, VGPU_LOST_PROTOCOL);
    EXPECT_TRUE(sink.done.empty());
    EXPECT_EQ(port->submit({2, {}, {}, {}}), submit_result::dead);
}

INSTANTIATE_TEST_SUITE_P(ways, garbage_worker, ::testing::Range(0, 7));

TEST_F(process_port_fixture, a_worker_that_reads_nothing_fills_its_ring_and_can_be_killed) {
    options.name = "garbage 7";
    const auto port = start();
    std::vector<std::uint64_t> stream(VGPU_MAX_STREAM_BYTES / 8);
    int accepted = 0;
    submit_result result;
    while ((result = port->submit({1, std::as_bytes(std::span(stream)), {}, {}})) == submit_result::accepted)
        ++accepted;
    EXPECT_EQ(result, submit_result::full);
    EXPECT_EQ(accepted, 15); // 16 streams fill 4 MiB, but for the frames
    port->kill();
    port->drain(sink);
    EXPECT_TRUE(sink.lost.empty());
}

// It has changed the flags of every descriptor it got, and lets the doorbells fill up. Whoever waits here
// waits for ever.
TEST_F(process_port_fixture, a_worker_that_plays_with_its_descriptors_stops_nobody) {
    options.name = "garbage 8";
    const auto port = start();
    std::vector<std::uint64_t> stream(1);
    for (int i = 0; i < 300000; ++i) {
        port->submit({1, std::as_bytes(std::span(stream)), {}, {}});
        port->kick();
    }
    ASSERT_TRUE(drain_until(*port, sink, [&] { return !sink.lost.empty(); }));
    EXPECT_EQ(sink.lost[0].first, VGPU_LOST_PROTOCOL);
}

TEST_F(process_port_fixture, a_killed_worker_is_gone_when_the_port_says_so) {
    const auto port = start();
    const auto pid = static_cast<pid_t>(worker_pid(*port));
    ASSERT_TRUE(submit(*port, 2, test_command::hang));
    EXPECT_FALSE(port->gone()) << "nobody has killed it";
    ASSERT_TRUE(end_port(*port));
    EXPECT_EQ(::kill(pid, 0), -1);
    EXPECT_EQ(errno, ESRCH);
    EXPECT_TRUE(port->gone());
}

// A real process that SIGKILL does not end for now, as one in a GPU driver that is stuck: a thread of it that
// somebody traces stays until its tracer has heard of its end, and the process with it.
struct stuck_worker : process_port_fixture {
    std::unique_ptr<port> stuck = start();
    pid_t pid = 0, thread = 0;

    void SetUp() override {
        pid = static_cast<pid_t>(worker_pid(*stuck));
        ASSERT_TRUE(submit(*stuck, 4712, test_command::thread));
        const std::size_t before = sink.done.size();
        ASSERT_TRUE(drain_until(*stuck, sink, [&] { return sink.done.size() > before; }));
        thread = static_cast<pid_t>(sink.done.back().response.value);
        if (ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0)
            GTEST_SKIP() << "this process may not trace its children: " << std::strerror(errno);
    }
    void TearDown() override {
        if (!stuck)
            return;
        stuck->kill();
        if (thread != 0)
            waitpid(thread, nullptr, __WALL);
        EXPECT_TRUE(end_port(*stuck));
    }
    // The kernel has ended its other threads; what is left does not go away by itself.
    void wait_until_killed() const {
        while (std::filesystem::exists("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) +
                                       "/fd/0"))
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
};

TEST_F(stuck_worker, holds_nobody_up) {
    stuck->kill();
    wait_until_killed();
    EXPECT_FALSE(stuck->gone());
    stuck->drain(sink);
    EXPECT_TRUE(sink.lost.empty());
    EXPECT_EQ(::kill(pid, 0), 0) << "it was not stuck at all";

    const auto other = start();
    recording_sink others;
    ASSERT_TRUE(submit(*other, 1, test_command::echo));
    EXPECT_TRUE(drain_until(*other, others, [&] { return !others.done.empty(); }));

    ASSERT_EQ(waitpid(thread, nullptr, __WALL), thread);
    thread = 0;
    EXPECT_TRUE(end_port(*stuck)) << "event_fd() tells of its end";
    EXPECT_EQ(::kill(pid, 0), -1);
}

TEST_F(stuck_worker, is_told_lost_before_it_is_gone) {
    ASSERT_TRUE(submit(*stuck, 1, test_command::lose_gpu));
    ASSERT_TRUE(drain_until(*stuck, sink, [&] { return !sink.lost.empty(); }));
    EXPECT_EQ(sink.lost[0].first, VGPU_LOST_GPU);
    EXPECT_FALSE(stuck->gone());
    ASSERT_EQ(waitpid(thread, nullptr, __WALL), thread);
    thread = 0;
    EXPECT_TRUE(end_port(*stuck));
}

TEST_F(stuck_worker, is_reaped_although_its_port_has_ended) {
    wait_for_other_tests();
    stuck->kill();
    wait_until_killed();
    stuck.reset();
    EXPECT_EQ(sweep_reaped(), 1u);
    ASSERT_EQ(waitpid(thread, nullptr, __WALL), thread);
    thread = 0;
    while (sweep_reaped() != 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(::kill(pid, 0), -1) << "a zombie is left";
}

TEST_F(process_port_fixture, kills_at_random_points_leave_nothing_behind) {
    {
        const auto first = start(); // whatever is made once per program is there now
        ASSERT_TRUE(end_port(*first));
        wait_for_other_tests();
    }
    const std::size_t descriptors = open_descriptors();
    for (unsigned round = 0; round < 30; ++round) {
        const auto port = start();
        for (std::uint64_t token = 0; token < 200; ++token)
            submit(*port, token, round % 2 == 0 ? test_command::record : test_command::echo);
        std::this_thread::sleep_for(std::chrono::microseconds(round * 400));
        if (round % 3 == 0)
            port->drain(sink);
        ASSERT_TRUE(end_port(*port));
    }
    EXPECT_EQ(open_descriptors(), descriptors);
    // No child has ended unseen, and none is left but the launcher.
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), launched ? 0 : -1) << "a worker was not reaped";
}

TEST_F(process_port_fixture, a_worker_killed_from_outside_is_a_crash) {
    const auto port = start();
    const auto pid = static_cast<pid_t>(worker_pid(*port));
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    ASSERT_TRUE(drain_until(*port, sink, [&] { return !sink.lost.empty(); }));
    EXPECT_EQ(sink.lost[0], std::make_pair(VGPU_LOST_CRASHED, std::uint32_t{SIGKILL}));
}

TEST_F(process_port_fixture, two_workers_do_not_notice_each_other) {
    const auto one = start(), two = start();
    recording_sink other;
    ASSERT_TRUE(submit(*one, 1, test_command::crash));
    ASSERT_TRUE(drain_until(*one, sink, [&] { return !sink.lost.empty(); }));
    ASSERT_TRUE(submit(*two, 2, test_command::echo));
    ASSERT_TRUE(drain_until(*two, other, [&] { return !other.done.empty(); }));
    EXPECT_TRUE(other.lost.empty());
}

// Not a test of its own: the program that the next test starts and that ends without a word to its worker.
TEST_F(process_port_fixture, DISABLED_device_that_dies) {
    const char* out = std::getenv("KAGEMUSHA_TEST_PID_FD");
    ASSERT_NE(out, nullptr);
    const auto port = start();
    const std::uint64_t pid = worker_pid(*port);
    submit(*port, 9, test_command::hang);
    _exit(write(static_cast<int>(std::strtol(out, nullptr, 10)), &pid, sizeof pid) == sizeof pid ? 0 : 1);
}

TEST_F(process_port_fixture, a_worker_ends_with_the_device) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t device = fork();
    if (device == 0) {
        setenv("KAGEMUSHA_TEST_PID_FD", std::to_string(ends[1]).c_str(), 1);
        execl("/proc/self/exe", "device", "--gtest_also_run_disabled_tests",
              "--gtest_filter=*DISABLED_device_that_dies", "--gtest_brief=1", static_cast<char*>(nullptr));
        _exit(1);
    }
    std::uint64_t pid = 0;
    ASSERT_EQ(read(ends[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
    waitpid(device, nullptr, 0);
    bool gone = false;
    for (int i = 0; i < 6000 && !gone; ++i) {
        gone = ::kill(static_cast<pid_t>(pid), 0) != 0;
        // A zombie that nobody reaps (a container without an init) is gone as well.
        if (!gone) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            std::error_code error;
            gone = !std::filesystem::exists("/proc/" + std::to_string(pid) + "/exe", error);
        }
    }
    EXPECT_TRUE(gone);
    close(ends[0]);
    close(ends[1]);
}

TEST_F(process_port_fixture, a_probe_tells_the_name_of_the_gpu) {
    std::string error;
    const probed_gpu probed = probe_gpu(options, 60000, error);
    EXPECT_EQ(probed.name, "test GPU zero") << error;
    EXPECT_EQ(probed.own_selector, "cpu:0:test");
}

TEST_F(process_port_fixture, a_probe_tells_why_there_is_none) {
    options.backend = "refuse";
    std::string error;
    EXPECT_EQ(probe_gpu(options, 60000, error).name, "");
    EXPECT_EQ(error, "there is no GPU \\x1b here");
}

TEST_F(process_port_fixture, a_probe_of_a_crashing_driver_ends) {
    options.backend = "crash";
    std::string error;
    EXPECT_EQ(probe_gpu(options, 60000, error).name, "");
    EXPECT_NE(error.find("signal"), std::string::npos) << error;
}

TEST_F(process_port_fixture, a_probe_does_not_wait_for_ever) {
    options.backend = "hang";
    std::string error;
    EXPECT_EQ(probe_gpu(options, 300, error).name, "");
    EXPECT_NE(error.find("300 ms"), std::string::npos) << error;
}

} // namespace
} // namespace kagemusha::worker
