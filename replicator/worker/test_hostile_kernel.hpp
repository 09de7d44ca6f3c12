// SPDX-License-Identifier: GPL-2.0-or-later
// Hostile kernels for tests of the sandbox: OpenCL C whose inline assembly makes raw system calls and writes what
// Linux answered into its buffer. Needs a CPU device that compiles inline assembly (PoCL) on x86-64.
#pragma once

#include <gtest/gtest.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

#include "worker/test_guest_session.hpp"

namespace kagemusha::worker {

inline constexpr const char* prelude = R"(
long call(long number, long a, long b, long c, long d, long e, long f) {
    long result, arguments[6] = {a, b, c, d, e, f};
    __asm__ volatile("movq (%2), %%rdi\n movq 8(%2), %%rsi\n movq 16(%2), %%rdx\n"
                     "movq 24(%2), %%r10\n movq 32(%2), %%r8\n movq 40(%2), %%r9\n syscall"
                     : "=a"(result) : "a"(number), "b"(arguments)
                     : "rdi", "rsi", "rdx", "r10", "r8", "r9", "rcx", "r11", "memory");
    return result;
}
)";

// One system call of a kernel; arguments are OpenCL C expressions.
struct attempt {
    const char* what;
    long number;
    std::vector<std::string> arguments;
    std::vector<int> allowed_errors; // any of them is a denial
};

inline std::string text(const std::string& literal) {
    return "(long)(constant char*)\"" + literal + "\"";
}
inline std::string number(long value) {
    return std::to_string(value) + "L";
}

inline std::string kernel_of(const std::string& body) {
    return std::string(prelude) + "kernel void k(global long* out, long argument) {\n" + body + "\n}\n";
}

inline std::string kernel_of(const std::vector<attempt>& attempts) {
    std::string body = "long zeros[64] = {0};\n";
    for (std::size_t i = 0; i < attempts.size(); ++i) {
        body += "out[" + std::to_string(i) + "] = call(" + number(attempts[i].number);
        for (std::size_t a = 0; a < 6; ++a)
            body += ", " + (a < attempts[i].arguments.size() ? attempts[i].arguments[a] : std::string("0L"));
        body += ");\n";
    }
    return kernel_of(body);
}

// Runs all attempts in one kernel of one worker, and expects that each is denied and the worker lives.
inline void expect_denied(const std::vector<attempt>& attempts) {
    ASSERT_LE(attempts.size(), guest_session::result_words);
    guest_session guest;
    ASSERT_TRUE(guest.opened()) << guest.whole_log();
    ASSERT_EQ(guest.build(kernel_of(attempts)), 0) << guest.build_log() << guest.whole_log();
    const auto got = guest.run();
    ASSERT_TRUE(got.completed) << guest.whole_log();
    ASSERT_EQ(got.status, 0);
    for (std::size_t i = 0; i < attempts.size(); ++i) {
        bool denied = false;
        for (const int error : attempts[i].allowed_errors)
            // What has no name in the worker's own root is denied as well.
            denied |= got.out[i] == -error || (error == EACCES && got.out[i] == -ENOENT);
        EXPECT_TRUE(denied) << attempts[i].what << " gave " << got.out[i];
    }
}

struct hostile_kernel : ::testing::Test {
    void SetUp() override {
#ifndef __x86_64__
        GTEST_SKIP() << "these kernels are written for x86-64";
#endif
        if (cpu_device().empty())
            GTEST_SKIP() << "no OpenCL device that runs kernels on the CPU: install pocl-opencl-icd";
    }
};

} // namespace kagemusha::worker
