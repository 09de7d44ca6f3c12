// SPDX-License-Identifier: GPL-2.0-or-later
//
// Runs in the guest (or on the host, for comparison): computes with CUDA, round after round, on memory that lives
// from the first round to the last, and computes the same on the processor. What a copy of the GPU could get
// wrong is in it: two streams ordered by events, pointers in memory that kernels wrote, a __device__ and a
// __constant__ variable, memory and modules that come and go, pinned memory that kernels read and write.
//
//   cuda_job ROUNDS [STOP]    until so many rounds, or until the file STOP is there
//
// CUDA_JOB_LIBRARY in the environment: another library than libcuda.so.1.
//
// Prints "round N: CHECKSUM" now and then, and "N rounds, CHECKSUM" at the end. Exit status 0: every result was
// right; 1: one was not, or a call failed; a line says which.
#include "control/demo/guest/driver_calls.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unistd.h>
#include <vector>

namespace {

constexpr std::uint32_t cells = 4096, threads = 128, factors = 16;

const char kernels[] = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .global .align 8 .u64 total = 0;
.visible .const .align 4 .b8 factor[64];

// a[i] = a[i] * 1664525 + factor[i % 16] + round, and adds a[i] to `total`
.visible .entry step(.param .u64 a, .param .u32 round)
{
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [a];
    ld.param.u32 %r1, [round];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    mul.wide.u32 %d2, %r2, 4;
    add.u64 %d1, %d1, %d2;
    and.b32 %r3, %r2, 15;
    mul.wide.u32 %d3, %r3, 4;
    mov.u64 %d4, factor;
    add.u64 %d4, %d4, %d3;
    ld.const.u32 %r5, [%d4];
    ld.global.u32 %r6, [%d1];
    mad.lo.u32 %r6, %r6, 1664525, %r5;
    add.u32 %r6, %r6, %r1;
    st.global.u32 [%d1], %r6;
    cvt.u64.u32 %d5, %r6;
    mov.u64 %d6, total;
    red.global.add.u64 [%d6], %d5;
    ret;
}

// b[i] = b[i] ^ *p[i]
.visible .entry follow(.param .u64 b, .param .u64 p)
{
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [b];
    ld.param.u64 %d2, [p];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    mul.wide.u32 %d3, %r2, 4;
    add.u64 %d1, %d1, %d3;
    mul.wide.u32 %d4, %r2, 8;
    add.u64 %d2, %d2, %d4;
    ld.global.u64 %d5, [%d2];
    ld.global.u32 %r5, [%d5];
    ld.global.u32 %r6, [%d1];
    xor.b32 %r6, %r6, %r5;
    st.global.u32 [%d1], %r6;
    ret;
}

// p[i] = &a[i * 7 % n]; n is a power of two
.visible .entry link(.param .u64 p, .param .u64 a, .param .u32 n)
{
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [p];
    ld.param.u64 %d2, [a];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    mul.wide.u32 %d3, %r2, 8;
    add.u64 %d1, %d1, %d3;
    mul.lo.u32 %r5, %r2, 7;
    sub.u32 %r1, %r1, 1;
    and.b32 %r5, %r5, %r1;
    mul.wide.u32 %d4, %r5, 4;
    add.u64 %d4, %d2, %d4;
    st.global.u64 [%d1], %d4;
    ret;
}

// out[i] += in[i] ^ a[i], all three anywhere
.visible .entry weigh(.param .u64 out, .param .u64 in, .param .u64 a)
{
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [out];
    ld.param.u64 %d2, [in];
    ld.param.u64 %d3, [a];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    mul.wide.u32 %d4, %r2, 4;
    add.u64 %d1, %d1, %d4;
    add.u64 %d2, %d2, %d4;
    add.u64 %d3, %d3, %d4;
    ld.global.u32 %r5, [%d1];
    ld.global.u32 %r6, [%d2];
    ld.global.u32 %r7, [%d3];
    xor.b32 %r6, %r6, %r7;
    add.u32 %r5, %r5, %r6;
    st.global.u32 [%d1], %r5;
    ret;
}
)";

// A module of its own for a while: out[0] = times, which counts up.
const char visitor[] = R"(
.version 6.0
.target sm_50
.address_size 64
.visible .global .align 4 .u32 times = 5;
.visible .entry visit(.param .u64 out)
{
    .reg .b32 %r<3>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [out];
    ld.global.u32 %r1, [times];
    st.global.u32 [%d1], %r1;
    add.u32 %r1, %r1, 1;
    st.global.u32 [times], %r1;
    ret;
}
)";

#define FUNCTIONS(X)                                                                                         \
    X(cuInit)                                                                                                \
    X(cuGetErrorName)                                                                                        \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuCtxSetCurrent)                                                                                       \
    X(cuModuleLoadData)                                                                                      \
    X(cuModuleUnload)                                                                                        \
    X(cuModuleGetFunction)                                                                                   \
    X(cuModuleGetGlobal_v2)                                                                                  \
    X(cuLaunchKernel)                                                                                        \
    X(cuMemAlloc_v2)                                                                                         \
    X(cuMemFree_v2)                                                                                          \
    X(cuMemHostAlloc)                                                                                        \
    X(cuMemcpyHtoD_v2)                                                                                       \
    X(cuMemcpyDtoH_v2)                                                                                       \
    X(cuMemsetD32_v2)                                                                                        \
    X(cuStreamCreate)                                                                                        \
    X(cuStreamSynchronize)                                                                                   \
    X(cuStreamWaitEvent)                                                                                     \
    X(cuEventCreate)                                                                                         \
    X(cuEventRecord)

KAGEMUSHA_CUDA_CALLS(cu, FUNCTIONS, "FAILED");
#define NEED(call) cu.need(cu.call, #call)

class job {
public:
    job() : a_(cells), b_(cells, 0), weight_(cells, 0) {
        CUcontext primary = nullptr;
        NEED(cuInit(0));
        NEED(cuDevicePrimaryCtxRetain(&primary, 0));
        NEED(cuCtxSetCurrent(primary));
        NEED(cuModuleLoadData(&module_, kernels));
        NEED(cuModuleGetFunction(&step_, module_, "step"));
        NEED(cuModuleGetFunction(&follow_, module_, "follow"));
        NEED(cuModuleGetFunction(&link_, module_, "link"));
        NEED(cuModuleGetFunction(&weigh_, module_, "weigh"));
        std::size_t bytes = 0;
        NEED(cuModuleGetGlobal_v2(&total_at_, &bytes, module_, "total"));
        NEED(cuModuleGetGlobal_v2(&factor_at_, &bytes, module_, "factor"));
        NEED(cuStreamCreate(&first_, CU_STREAM_NON_BLOCKING));
        NEED(cuStreamCreate(&second_, CU_STREAM_NON_BLOCKING));
        NEED(cuEventCreate(&stepped_, CU_EVENT_DISABLE_TIMING));
        NEED(cuEventCreate(&followed_, CU_EVENT_DISABLE_TIMING));
        NEED(cuMemAlloc_v2(&a_at_, cells * 4));
        NEED(cuMemAlloc_v2(&b_at_, cells * 4));
        NEED(cuMemAlloc_v2(&p_at_, cells * 8));
        void* memory = nullptr;
        NEED(cuMemHostAlloc(&memory, cells * 8, 0));
        pinned_ = static_cast<std::uint32_t*>(memory);
        std::fill_n(pinned_, cells * 2, 0u);
        for (std::uint32_t i = 0; i < cells; ++i)
            a_[i] = i * 2654435761u;
        NEED(cuMemcpyHtoD_v2(a_at_, a_.data(), cells * 4));
        NEED(cuMemsetD32_v2(b_at_, 0, cells));
        change_factors(0);
        std::uint32_t count = cells;
        void* arguments[] = {&p_at_, &a_at_, &count};
        launch(link_, first_, arguments);
        NEED(cuStreamSynchronize(first_));
    }

    void round(std::uint32_t n) {
        if (n % 8 == 0) {
            NEED(cuStreamSynchronize(first_)); // which use them
            change_factors(n);
        }
        void* arguments[] = {&a_at_, &n};
        if (n > 0)
            NEED(cuStreamWaitEvent(first_, followed_, 0));
        launch(step_, first_, arguments);
        if (n % 3 == 0)
            weigh(n);
        NEED(cuEventRecord(stepped_, first_));
        NEED(cuStreamWaitEvent(second_, stepped_, 0));
        void* others[] = {&b_at_, &p_at_};
        launch(follow_, second_, others);
        NEED(cuEventRecord(followed_, second_));
        for (std::uint32_t i = 0; i < cells; ++i) {
            a_[i] = a_[i] * 1664525 + factor_[i % factors] + n;
            total_ += a_[i];
        }
        for (std::uint32_t i = 0; i < cells; ++i)
            b_[i] ^= a_[i * 7 % cells];
        if (n % 3 == 0)
            for (std::uint32_t i = 0; i < cells; ++i)
                weight_[i] += pinned_[i] ^ a_[i];
    }

    // All results against the processor's.
    bool is_right(std::uint32_t n) {
        std::vector<std::uint32_t> a(cells), b(cells);
        std::uint64_t total = 0;
        NEED(cuStreamSynchronize(second_));
        NEED(cuMemcpyDtoH_v2(a.data(), a_at_, cells * 4));
        NEED(cuMemcpyDtoH_v2(b.data(), b_at_, cells * 4));
        NEED(cuMemcpyDtoH_v2(&total, total_at_, 8));
        const bool weighed = std::equal(weight_.begin(), weight_.end(), pinned_ + cells);
        if (a == a_ && b == b_ && total == total_ && weighed)
            return true;
        std::printf("FAILED: round %u: %s%s%s%s\n", n, a == a_ ? "" : "a differs ",
                    b == b_ ? "" : "b differs ", total == total_ ? "" : "the total differs ",
                    weighed ? "" : "pinned memory differs");
        return false;
    }

    // Memory of its own and a module, used and gone.
    bool visit(std::uint32_t n) {
        CUmodule module = nullptr;
        CUfunction function = nullptr;
        CUdeviceptr room = 0;
        std::uint32_t times = 0;
        const std::size_t bytes = std::size_t{34 + n % 3} << 20;
        NEED(cuMemAlloc_v2(&room, bytes));
        NEED(cuModuleLoadData(&module, visitor));
        NEED(cuModuleGetFunction(&function, module, "visit"));
        CUdeviceptr out = room + bytes - 4;
        void* arguments[] = {&out};
        for (int i = 0; i < 3; ++i)
            NEED(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, first_, arguments, nullptr));
        NEED(cuStreamSynchronize(first_));
        NEED(cuMemcpyDtoH_v2(&times, out, 4));
        NEED(cuModuleUnload(module));
        NEED(cuMemFree_v2(room));
        if (times != 7)
            std::printf("FAILED: round %u: the visitor counted to %u\n", n, times);
        return times == 7;
    }

    std::uint64_t checksum() const {
        std::uint64_t sum = total_;
        for (std::uint32_t i = 0; i < cells; ++i)
            sum = sum * 31 + (std::uint64_t{a_[i]} << 32 | b_[i]) + weight_[i];
        return sum;
    }

private:
    void launch(CUfunction function, CUstream where, void** arguments) {
        NEED(cuLaunchKernel(function, cells / threads, 1, 1, threads, 1, 1, 0, where, arguments, nullptr));
    }
    // The first half of the pinned memory is the program's, when no kernel reads it; kernels add to the other one.
    void weigh(std::uint32_t n) {
        NEED(cuStreamSynchronize(first_));
        for (std::uint32_t i = n % 7; i < cells; i += n % 5 + 1)
            pinned_[i] = n * 69069u + i;
        std::uint32_t* in = pinned_;
        std::uint32_t* out = pinned_ + cells;
        void* arguments[] = {&out, &in, &a_at_};
        launch(weigh_, first_, arguments);
    }
    void change_factors(std::uint32_t n) {
        for (std::uint32_t i = 0; i < factors; ++i)
            factor_[i] = (n + 1) * 977 + i * 131;
        NEED(cuMemcpyHtoD_v2(factor_at_, factor_, sizeof factor_));
    }

    CUmodule module_ = nullptr;
    CUfunction step_ = nullptr, follow_ = nullptr, link_ = nullptr, weigh_ = nullptr;
    CUstream first_ = nullptr, second_ = nullptr;
    CUevent stepped_ = nullptr, followed_ = nullptr;
    CUdeviceptr a_at_ = 0, b_at_ = 0, p_at_ = 0, total_at_ = 0, factor_at_ = 0;
    std::vector<std::uint32_t> a_, b_, weight_;
    std::uint32_t* pinned_ = nullptr;
    std::uint32_t factor_[factors] = {};
    std::uint64_t total_ = 0;
};

} // namespace

int main(int count, char** arguments) {
    const auto rounds = static_cast<std::uint32_t>(count > 1 ? std::atoi(arguments[1]) : 100);
    const char* const stop = count > 2 ? arguments[2] : nullptr;
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    if (!cu.load(std::getenv("CUDA_JOB_LIBRARY")))
        return 1;
    job work;
    std::uint32_t n = 0;
    for (; n < rounds && !(stop && ::access(stop, F_OK) == 0); ++n) {
        work.round(n);
        if (n % 5 == 0 && !work.is_right(n))
            return 1;
        if (n % 20 == 10 && !work.visit(n))
            return 1;
        if (n % 10 == 0)
            std::printf("round %u: %016llx\n", n, static_cast<unsigned long long>(work.checksum()));
    }
    if (!work.is_right(n))
        return 1;
    std::printf("%u rounds, %016llx\n", n, static_cast<unsigned long long>(work.checksum()));
    return 0;
}
