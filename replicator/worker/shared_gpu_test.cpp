// SPDX-License-Identifier: GPL-2.0-or-later
// Workers with their sandbox on a CPU device (PoCL) that share it through the real arbiter: shares in its
// accounts, a worker that is killed, an arbiter that dies, commands that wait for the guest.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "share/arbiter/test_fairness.hpp"
#include "worker/share_join.hpp"
#include "worker/test_guest_session.hpp"

extern char** environ;

namespace kagemusha::worker {
namespace {

constexpr char spin[] = "kernel void k(global long* out, long rounds) {"
                        "  float x = get_global_id(0);"
                        "  for (long i = 0; i < rounds; ++i) x = mad(x, 0.9999f, 0.5f);"
                        "  out[0] = x > 0.0f ? 7 : 8; }";
constexpr std::int64_t rounds = 30'000; // some tenths of a millisecond

class shared_gpu_test : public testing::Test {
protected:
    void SetUp() override {
        if (cpu_device().empty())
            GTEST_SKIP() << "no OpenCL device of the CPU";
        char path[] = "/tmp/kagemusha-shared-gpu-XXXXXX";
        directory_ = mkdtemp(path);
        int ends[2];
        ASSERT_EQ(pipe(ends), 0);
        const std::string socket = directory_ + "/gpu", ready = std::to_string(ends[1]);
        const char* arguments[] = {KAGEMUSHA_GPU_ARBITER, "--socket",    socket.c_str(),
                                   "--ready-fd",          ready.c_str(), nullptr};
        ASSERT_EQ(posix_spawn(&pid_, arguments[0], nullptr, nullptr, const_cast<char**>(arguments), environ),
                  0);
        close(ends[1]);
        char byte;
        EXPECT_EQ(read(ends[0], &byte, 1), 0);
        close(ends[0]);
    }
    void TearDown() override {
        kill_arbiter();
        std::filesystem::remove_all(directory_);
    }
    void kill_arbiter() {
        if (pid_ > 0) {
            kill(pid_, SIGKILL);
            waitpid(pid_, nullptr, 0);
        }
        pid_ = 0;
    }
    std::unique_ptr<guest_session> guest(const std::string& vm, std::uint32_t permille) {
        share_hello hello{};
        hello.cap_permille = 1000;
        hello.share_permille = permille;
        std::memcpy(hello.vm, vm.data(), vm.size());
        auto one = std::make_unique<guest_session>(cpu_device(), sandbox_mode::required,
                                                   share_text(directory_ + "/gpu", hello));
        EXPECT_TRUE(one->opened()) << one->whole_log();
        EXPECT_EQ(one->build(spin), 0) << one->build_log();
        return one;
    }
    std::vector<share_row> rows() {
        share_hello asks{};
        asks.magic = SHARE_MAGIC;
        asks.version = SHARE_VERSION;
        asks.role = SHARE_ASKER;
        const auto joined = join_share(directory_ + "/gpu", asks);
        std::vector<share_row> out(joined.answer.rows);
        for (share_row& row : out) {
            pollfd event{joined.socket.get(), POLLIN, 0};
            poll(&event, 1, 60000);
            EXPECT_EQ(recv(joined.socket.get(), &row, sizeof row, 0), static_cast<ssize_t>(sizeof row));
        }
        return out;
    }
    share::two_rows rows_of_two() {
        const auto read = rows();
        EXPECT_EQ(read.size(), 2u);
        share::two_rows out{};
        std::ranges::copy_n(read.begin(), std::min(read.size(), out.size()), out.begin());
        return out;
    }

    std::string directory_;
    pid_t pid_ = 0;
};

bool has_ended(guest_session& guest, std::uint64_t event) {
    for (const auto& bytes : guest.sink().records) {
        vgpu_record_completion record{};
        std::memcpy(&record, bytes.data(), std::min(sizeof record, bytes.size()));
        if (record.record.type == VGPU_RECORD_COMPLETION && record.event == event)
            return true;
    }
    return false;
}

// Launches of a VM that were sent, and how many of them have not ended.
class flow {
public:
    explicit flow(guest_session& guest) : guest_(guest) {}
    void fill(std::size_t launches, std::int64_t of_rounds) {
        while (events_.size() < launches)
            events_.push_back(guest_.launch_with_event(of_rounds, 64, 0));
    }
    std::size_t left() {
        guest_.worker().drain(guest_.sink());
        EXPECT_TRUE(guest_.sink().lost.empty());
        while (!events_.empty() && has_ended(guest_, events_.front()))
            events_.pop_front();
        return events_.size();
    }

private:
    guest_session& guest_;
    std::deque<std::uint64_t> events_;
};

// Both always have some launches in their queues, until together they have had so many.
void keep_busy(guest_session& a, guest_session& b, std::size_t launches) {
    constexpr std::size_t depth = 64;
    flow flows[] = {flow(a), flow(b)};
    for (std::size_t ended = 0; ended < launches;) {
        for (flow& f : flows) {
            f.fill(depth, rounds);
            ended += depth - f.left();
            ASSERT_FALSE(testing::Test::HasFailure());
        }
        pollfd events[] = {{a.worker().event_fd(), POLLIN, 0}, {b.worker().event_fd(), POLLIN, 0}};
        poll(events, 2, 1000);
    }
}

// What was sent ahead keeps both busy however seldom this thread runs. The last rows count that were read
// while both were.
TEST_F(shared_gpu_test, two_vms_have_what_they_asked_for) {
    const auto a = guest("a", 750), b = guest("b", 250);
    constexpr std::size_t launches = 250;
    flow of_a(*a), of_b(*b);
    // Long ones: the next one is there before one has ended, on a machine whose threads wait, too.
    of_a.fill(launches, rounds * 8);
    of_b.fill(launches, rounds * 8);
    while (of_a.left() > launches - 10 && of_b.left() > launches - 10)
        poll(nullptr, 0, 1);
    using clock = std::chrono::steady_clock;
    const auto began = clock::now();
    const auto before = rows_of_two();
    auto after = before;
    auto ended = began;
    for (auto seen = before; of_a.left() != 0 && of_b.left() != 0; seen = rows_of_two()) {
        after = seen;
        ended = clock::now();
        poll(nullptr, 0, 5);
    }
    const auto shared = share::fairness_between(before, after, rows_of_two(), ended - began);
    EXPECT_LT(shared.difference_ns, shared.bound_ns);
    EXPECT_GT(after[0].turns, before[0].turns);
    EXPECT_GT(after[1].turns, before[1].turns);
}

TEST_F(shared_gpu_test, a_worker_that_is_killed_leaves_the_gpu_to_the_other) {
    auto a = guest("a", 500);
    const auto b = guest("b", 500);
    for (int i = 0; i < 64; ++i)
        a->launch(rounds * 1000);
    a.reset();
    const auto got = b->run(rounds);
    EXPECT_TRUE(got.completed);
    EXPECT_EQ(got.out[0], 7);
    ASSERT_EQ(rows().size(), 1u);
    EXPECT_STREQ(rows()[0].vm, "b");
}

TEST_F(shared_gpu_test, programs_go_on_when_the_arbiter_dies) {
    const auto a = guest("a", 500), b = guest("b", 500);
    keep_busy(*a, *b, 50);
    kill_arbiter();
    keep_busy(*a, *b, 200);
    EXPECT_EQ(a->run(rounds).out[0], 7);
    EXPECT_EQ(b->run(rounds).out[0], 7);
}

TEST_F(shared_gpu_test, without_an_arbiter_a_program_begins_all_the_same) {
    kill_arbiter();
    const auto a = guest("a", 500);
    EXPECT_EQ(a->run(rounds).out[0], 7);
    EXPECT_NE(a->whole_log().find("can't be reached"), std::string::npos) << a->whole_log();
}

TEST(share_text, what_is_written_is_read) {
    share_hello hello{}, read{};
    hello.share_permille = 250;
    hello.cap_permille = 500;
    hello.priority = 3;
    hello.memory_bytes = 8ull << 30;
    hello.flags = SHARE_IS_STANDBY;
    std::memcpy(hello.vm, "web", 3);
    std::string socket;
    ASSERT_TRUE(parse_share_text(share_text("/run/gpu", hello), socket, read));
    EXPECT_EQ(socket, "/run/gpu");
    EXPECT_STREQ(read.vm, "web");
    EXPECT_EQ(read.share_permille, 250u);
    EXPECT_EQ(read.cap_permille, 500u);
    EXPECT_EQ(read.priority, 3u);
    EXPECT_EQ(read.memory_bytes, 8ull << 30);
    EXPECT_EQ(read.flags, SHARE_IS_STANDBY);
    EXPECT_EQ(read.role, SHARE_SESSION);
    for (const char* wrong : {"", "/run/gpu", "/run/gpu web 1 2 3 4", "/run/gpu web 1 2 3 4 0 more",
                              "/run/gpu web a 2 3 4 0", "/run/gpu web 1 2 3 4 2"})
        EXPECT_FALSE(parse_share_text(wrong, socket, read)) << wrong;
}

} // namespace
} // namespace kagemusha::worker
