// SPDX-License-Identifier: GPL-2.0-or-later
// Hostile kernels against a real worker: PoCL compiles them to native code, so they can try what any program
// can. Only their own worker may suffer, and what the sandbox must deny is denied. Kernels write what the
// kernel of the host answered into their buffer, so the tests see the very error numbers.
#include <gtest/gtest.h>

#include <cstdio>

#include "worker/guest_session.hpp"

namespace kagemusha::worker {
namespace {

TEST(worker_with_pocl, builds_and_runs_a_kernel_in_the_sandbox) {
    guest_session guest;
    ASSERT_TRUE(guest.opened()) << guest.whole_log();
    ASSERT_EQ(guest.build(
                  "kernel void k(global long* out, long a) { out[0] = a * 2; printf(\"hello %ld\\n\", a); }"),
              0)
        << guest.build_log() << guest.whole_log();
    const auto got = guest.run(21);
    ASSERT_TRUE(got.completed) << guest.whole_log();
    EXPECT_EQ(got.status, 0) << guest.whole_log();
    EXPECT_EQ(got.out[0], 42);
    EXPECT_EQ(guest.sink().text, "hello 21\n");
    EXPECT_EQ(guest.whole_log(), "");
}

} // namespace
} // namespace kagemusha::worker
