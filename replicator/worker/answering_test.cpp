// SPDX-License-Identifier: GPL-2.0-or-later
#include "worker/address_window.hpp"
#include "worker/answering_broker.hpp"
#include "worker/answering_protocol.hpp"
#include "worker/placed_thread.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CL/cl.h>

#include <array>
#include <future>

namespace kagemusha::worker {
namespace {

answering_request question(std::uint32_t process, std::uint64_t thread) {
    answering_request r{};
    r.wants = answering_wants::proof;
    r.question.process = process;
    r.question.thread = thread;
    return r;
}

TEST(answering_protocol, ids_that_no_program_has_are_refused) {
    constexpr std::uint64_t thread = 0x7f0000001000;
    EXPECT_TRUE(is_sound(question(1, thread)));
    EXPECT_TRUE(is_sound(question(max_process_id - 1, thread)));
    EXPECT_FALSE(is_sound(question(0, thread)));
    EXPECT_FALSE(is_sound(question(max_process_id, thread)));
    EXPECT_FALSE(is_sound(question(~0u, thread)));
    EXPECT_FALSE(is_sound(question(7, 0)));
    EXPECT_FALSE(is_sound(question(7, thread + 8)));
    EXPECT_FALSE(is_sound(question(7, std::uint64_t{1} << 47)));
    EXPECT_FALSE(is_sound(question(7, ~std::uint64_t{63})));
    answering_request unknown = question(7, thread);
    unknown.wants = answering_wants{3};
    EXPECT_FALSE(is_sound(unknown));
}

TEST(answering_protocol, a_process_answers_for_its_ids_and_its_gpu_only) {
    constexpr std::uint64_t thread = 0x7f0000001000;
    const answering_request has = question(7, thread);
    EXPECT_TRUE(fits(has, question(7, thread)));
    EXPECT_FALSE(fits(has, question(8, thread)));
    EXPECT_FALSE(fits(has, question(7, thread + 64)));
    answering_request other_gpu = question(7, thread);
    other_gpu.uuid[15] = 1;
    EXPECT_FALSE(fits(has, other_gpu));
    answering_request tables{};
    tables.wants = answering_wants::tables;
    EXPECT_TRUE(fits(has, tables));
    EXPECT_FALSE(fits(tables, has));
}

TEST(address_window, everything_but_what_is_taken_and_the_stack_s_room) {
    const char maps[] = "1000-2000 r--p 00000000 00:00 0\n"
                        "6000-7000 r-xp 00000000 00:00 0                          /lib/a\n"
                        "7000-8000 rw-p 00000000 00:00 0\n"
                        "20000-21000 rw-p 00000000 00:00 0                          [stack]\n"
                        "not a line\n"
                        "fff000-1000000 r-xp 00000000 00:00 0 [vdso]\n";
    const std::vector<address_range> free = {{0x5000, 0x6000}, {0x8000, 0x1c000}, {0x21000, 0x30000}};
    EXPECT_EQ(free_ranges(maps, 0x5000, 0x30000, 0x4000), free);
    EXPECT_EQ(free_ranges("", 1, 2, 3), (std::vector<address_range>{{1, 2}}));
    // A stack with less room than it may take.
    EXPECT_EQ(free_ranges("8000-9000 rw-p 0 0:0 0 [stack]", 0x5000, 0x9000, 0x4000),
              std::vector<address_range>{});
}

TEST(placed_thread, its_self_is_the_wanted_one) {
    void* const room = mmap(nullptr, std::size_t{64} << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(room, MAP_FAILED);
    munmap(room, std::size_t{64} << 20); // addresses that are free now
    const std::uint64_t wanted = reinterpret_cast<std::uint64_t>(room) + (std::uint64_t{32} << 20) + 0x740;
    std::promise<std::uint64_t> self;
    ASSERT_EQ(run_thread_at(wanted, [&] { self.set_value(static_cast<std::uint64_t>(pthread_self())); }), "");
    EXPECT_EQ(self.get_future().get(), wanted);
    EXPECT_NE(run_thread_at(wanted, [] {}), ""); // taken
    EXPECT_NE(run_thread_at(wanted + (std::uint64_t{8} << 20) + 4, [] {}), "");
}

TEST(answering_client, a_broker_that_is_gone_is_an_error_and_not_the_worker_s_end) {
    signal(SIGPIPE, SIG_IGN);
    std::array<int, 2> pair{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()), 0);
    const auto client = make_answering_client(unique_fd(pair[0]));
    ::close(pair[1]);
    vgpu_cuda_tables tables{};
    EXPECT_EQ(client->tables(tables), CL_INVALID_OPERATION);
    EXPECT_EQ(client->tables(tables), CL_INVALID_OPERATION);
}

TEST(answering_client, other_addresses_have_an_error_of_their_own) {
    std::array<int, 2> pair{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()), 0);
    const auto client = make_answering_client(unique_fd(pair[0]));
    const unique_fd broker(pair[1]);
    answering_answer answer{};
    answer.status = answering_status::other_addresses;
    ASSERT_EQ(write(broker.get(), &answer, sizeof answer), static_cast<ssize_t>(sizeof answer));
    vgpu_cuda_proof proof{};
    const std::array<std::byte, 16> uuid{};
    EXPECT_EQ(client->ask({}, uuid, proof), VGPU_CUDA_OTHER_ADDRESS);
}

TEST(driver_option, is_the_backend_s) {
    EXPECT_EQ(driver_option(""), "libcuda.so.1");
    EXPECT_EQ(driver_option("driver=/opt/libcuda.so"), "/opt/libcuda.so");
}

} // namespace
} // namespace kagemusha::worker
