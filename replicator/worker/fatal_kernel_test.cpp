// SPDX-License-Identifier: GPL-2.0-or-later
// Kernels that end their worker, and a bystander whose worker must not notice: only their own worker may suffer.
//
// Needs a CPU device that compiles inline assembly (PoCL) on x86-64.
#include <sys/syscall.h>

#include <csignal>
#include <memory>
#include <string>

#include "worker/test_hostile_kernel.hpp"

namespace kagemusha::worker {
namespace {

struct fatal_kernel : hostile_kernel {
    static void SetUpTestSuite() {
        if (cpu_device().empty())
            return;
        bystander = std::make_unique<guest_session>();
        ASSERT_TRUE(bystander->opened()) << bystander->whole_log();
        ASSERT_EQ(bystander->build("kernel void k(global long* out, long a) { out[0] = a + 1; }"), 0);
    }
    static void TearDownTestSuite() { bystander.reset(); }

    static guest_session::outcome run(const std::string& body) {
        guest_session guest;
        EXPECT_TRUE(guest.opened()) << guest.whole_log();
        EXPECT_EQ(guest.build(kernel_of(body)), 0) << guest.build_log() << guest.whole_log();
        const auto got = guest.run();
        EXPECT_TRUE(got.lost);
        EXPECT_FALSE(got.completed);

        const auto other = bystander->run(41);
        EXPECT_FALSE(other.lost);
        EXPECT_EQ(other.out[0], 42) << "another worker was disturbed";
        return got;
    }

    static std::unique_ptr<guest_session> bystander;
};

std::unique_ptr<guest_session> fatal_kernel::bystander;

TEST_F(fatal_kernel, wild_write_ends_only_its_worker) {
    const auto got = run("*(volatile global int*)(argument + 16) = 1;");
    EXPECT_EQ(got.reason, VGPU_LOST_CRASHED);
    EXPECT_EQ(got.detail, static_cast<std::uint32_t>(SIGSEGV));
}

TEST_F(fatal_kernel, wild_read_ends_only_its_worker) {
    const auto got = run("out[0] = *(volatile global int*)(argument + 0x7fff00000000L);");
    EXPECT_EQ(got.reason, VGPU_LOST_CRASHED);
    EXPECT_EQ(got.detail, static_cast<std::uint32_t>(SIGSEGV));
}

TEST_F(fatal_kernel, illegal_instruction_ends_only_its_worker) {
    const auto got = run("__asm__ volatile(\"ud2\");");
    EXPECT_EQ(got.reason, VGPU_LOST_CRASHED);
    EXPECT_EQ(got.detail, static_cast<std::uint32_t>(SIGILL));
}

TEST_F(fatal_kernel, jump_to_nowhere_ends_only_its_worker) {
    const auto got = run("__asm__ volatile(\"call *%0\" : : \"r\"(argument));");
    EXPECT_EQ(got.reason, VGPU_LOST_CRASHED);
    EXPECT_EQ(got.detail, static_cast<std::uint32_t>(SIGSEGV));
}

TEST_F(fatal_kernel, exit_ends_only_its_worker) {
    const auto got = run("call(" + number(SYS_exit_group) + ", 7, 0, 0, 0, 0, 0);");
    EXPECT_EQ(got.reason, VGPU_LOST_CRASHED);
    EXPECT_EQ(got.detail, 7u);
}

TEST_F(fatal_kernel, a_call_of_the_32_bit_world_ends_only_its_worker) {
    const auto got =
        run("long r; __asm__ volatile(\"int $0x80\" : \"=a\"(r) : \"a\"(5L), \"b\"(0L), \"c\"(0L) : "
            "\"memory\"); out[0] = r;");
    EXPECT_EQ(got.reason, VGPU_LOST_CRASHED);
    EXPECT_EQ(got.detail, static_cast<std::uint32_t>(SIGSYS));
}

TEST_F(fatal_kernel, scribbling_over_everything_that_is_shared_with_the_device_ends_only_its_worker) {
    // Finds every writable shared mapping in /proc/self/maps (the rings and guest memory) and fills it.
    const auto got = run(R"(
        char path[] = "/proc/self/maps";
        char text[65536];
        long fd = call(2, (long)path, 0, 0, 0, 0, 0), used = 0, got;
        while (used < 65535 && (got = call(0, fd, (long)(text + used), 65535 - used, 0, 0, 0)) > 0) used += got;
        for (long line = 0; line < used;) {
            ulong bounds[2] = {0, 0};
            long at = line;
            for (int b = 0; b < 2; ++b, ++at)
                for (; at < used && ((text[at] >= '0' && text[at] <= '9') || (text[at] >= 'a' && text[at] <= 'f')); ++at)
                    bounds[b] = bounds[b] * 16 + (text[at] <= '9' ? text[at] - '0' : text[at] - 'a' + 10);
            if (text[at + 1] == 'w' && text[at + 3] == 's')
                for (volatile uchar* p = (volatile uchar*)bounds[0]; p < (volatile uchar*)bounds[1]; ++p) *p = 0xff;
            while (line < used && text[line] != '\n') ++line;
            ++line;
        }
    )");
    EXPECT_TRUE(got.reason == VGPU_LOST_PROTOCOL || got.reason == VGPU_LOST_CRASHED) << got.reason;
}

TEST_F(fatal_kernel, an_endless_loop_ends_when_the_device_kills_it) {
    guest_session guest;
    ASSERT_TRUE(guest.opened());
    ASSERT_EQ(guest.build("kernel void k(global long* out, long a) { volatile int x = 0; while (1) ++x; }"),
              0);
    guest.launch();
    EXPECT_EQ(bystander->run(1).out[0], 2);
    guest.worker().kill();
    EXPECT_EQ(bystander->run(2).out[0], 3);
    EXPECT_TRUE(bystander->sink().lost.empty());
}

} // namespace
} // namespace kagemusha::worker
