// SPDX-License-Identifier: GPL-2.0-or-later
//
// Runs in the guest (bench/takeover/run --cuda): keeps a GPU busy for half of the time with CUDA kernels of a few
// milliseconds, and checks every result. Its memory lives from the beginning to the end.
//
//   cuda_pulse SECONDS [STOP_FILE [MIB]]    until so long, or until the file is there; with so much other memory
//
// CUDA_JOB_LIBRARY in the environment: another library than libcuda.so.1. Prints "computing" when it begins, and
// "N pulses are right" at the end. Exit status 1: a result was wrong, or a call failed; a line says which.
#include "control/demo/guest/driver_calls.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

constexpr std::uint32_t cells = 256, pattern = 0x5eed;
constexpr std::size_t chunk_bytes = std::size_t{64} << 20;
constexpr double wanted_ms = 4;

// v[i] goes through `rounds` steps of a linear congruence; one thread for each.
const char kernels[] = R"(
.version 6.0
.target sm_50
.address_size 64
.visible .entry busy(.param .u64 v, .param .u32 rounds)
{
    .reg .pred %p;
    .reg .b32 %r<4>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [v];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %d2, %r2, 4;
    add.u64 %d1, %d1, %d2;
    ld.global.u32 %r3, [%d1];
AGAIN:
    mad.lo.u32 %r3, %r3, 1664525, 1013904223;
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %p, %r1, 0;
    @%p bra AGAIN;
    st.global.u32 [%d1], %r3;
    ret;
}
)";

#define FUNCTIONS(X)                                                                                         \
    X(cuInit)                                                                                                \
    X(cuGetErrorName)                                                                                        \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuCtxSetCurrent)                                                                                       \
    X(cuModuleLoadData)                                                                                      \
    X(cuModuleGetFunction)                                                                                   \
    X(cuLaunchKernel)                                                                                        \
    X(cuMemAlloc_v2)                                                                                         \
    X(cuMemcpyDtoH_v2)                                                                                       \
    X(cuMemsetD32_v2)                                                                                        \
    X(cuEventCreate)                                                                                         \
    X(cuEventRecord)                                                                                         \
    X(cuEventSynchronize)                                                                                    \
    X(cuEventElapsedTime)

KAGEMUSHA_CUDA_CALLS(cu, FUNCTIONS, "FAILED");
#define NEED(call) cu.need(cu.call, #call)

class pulses {
public:
    pulses() {
        CUcontext primary = nullptr;
        CUmodule module = nullptr;
        NEED(cuInit(0));
        NEED(cuDevicePrimaryCtxRetain(&primary, 0));
        NEED(cuCtxSetCurrent(primary));
        NEED(cuModuleLoadData(&module, kernels));
        NEED(cuModuleGetFunction(&busy_, module, "busy"));
        NEED(cuEventCreate(&begin_, CU_EVENT_DEFAULT));
        NEED(cuEventCreate(&end_, CU_EVENT_DEFAULT));
        NEED(cuMemAlloc_v2(&values_, cells * 4));
    }

    void hold(std::size_t mib) {
        for (std::size_t left = mib << 20; left != 0; left -= std::min(left, chunk_bytes)) {
            still_.push_back({0, std::min(left, chunk_bytes)});
            NEED(cuMemAlloc_v2(&still_.back().at, still_.back().bytes));
            NEED(cuMemsetD32_v2(still_.back().at, pattern, still_.back().bytes / 4));
        }
    }

    // Chooses how many rounds last about `wanted_ms`.
    void calibrate() {
        const std::uint32_t most = 1u << 24; // the processor does them once
        while ((kernel_ms_ = time()) < wanted_ms / 2 && rounds_ < most)
            rounds_ *= 2;
        rounds_ = static_cast<std::uint32_t>(std::min<double>(most, rounds_ * (wanted_ms / kernel_ms_)));
        kernel_ms_ = time();
        for (std::uint32_t i = 0; i < rounds_; ++i) {
            factor_ *= 1664525u;
            term_ = term_ * 1664525u + 1013904223u;
        }
        NEED(cuMemsetD32_v2(values_, 0, cells));
    }

    bool pulse() {
        std::vector<std::uint32_t> got(cells);
        launch();
        NEED(cuMemcpyDtoH_v2(got.data(), values_, cells * 4));
        value_ = value_ * factor_ + term_;
        return got == std::vector<std::uint32_t>(cells, value_);
    }

    bool memory_is_still() {
        std::vector<std::uint32_t> rest(1024);
        for (const memory& each : still_) {
            NEED(cuMemcpyDtoH_v2(rest.data(), each.at, rest.size() * 4));
            if (rest != std::vector<std::uint32_t>(rest.size(), pattern))
                return false;
        }
        return true;
    }

    double kernel_ms() const { return kernel_ms_; }

private:
    struct memory {
        CUdeviceptr at;
        std::size_t bytes;
    };

    void launch() {
        void* arguments[] = {&values_, &rounds_};
        NEED(cuLaunchKernel(busy_, 1, 1, 1, cells, 1, 1, 0, nullptr, arguments, nullptr));
    }

    // Of the kernel on the GPU: the shortest of five times.
    double time() {
        float shortest = 1e9f;
        for (int i = 0; i < 5; ++i) {
            float ms = 0;
            NEED(cuEventRecord(begin_, nullptr));
            launch();
            NEED(cuEventRecord(end_, nullptr));
            NEED(cuEventSynchronize(end_));
            NEED(cuEventElapsedTime(&ms, begin_, end_));
            shortest = std::min(shortest, ms);
        }
        return std::max<double>(shortest, 1e-3);
    }

    CUfunction busy_ = nullptr;
    CUevent begin_ = nullptr, end_ = nullptr;
    CUdeviceptr values_ = 0;
    std::vector<memory> still_;
    std::uint32_t rounds_ = 4096, factor_ = 1, term_ = 0, value_ = 0;
    double kernel_ms_ = 0;
};

int fail(const char* what) {
    std::printf("FAILED: %s\n", what);
    return 1;
}

} // namespace

int main(int count, char** arguments) {
    using clock = std::chrono::steady_clock;
    const double seconds = count > 1 ? std::strtod(arguments[1], nullptr) : 1;
    const char* const stop = count > 2 ? arguments[2] : nullptr;
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    if (!cu.load(std::getenv("CUDA_JOB_LIBRARY")))
        return 1;
    pulses work;
    work.hold(count > 3 ? std::strtoul(arguments[3], nullptr, 10) : 64);
    work.calibrate();
    std::printf("computing\n");
    const auto started = clock::now();
    const std::chrono::duration<double> all(seconds), each(2e-3 * work.kernel_ms());
    unsigned checked = 0;
    for (auto begin = started; begin - started < all && !(stop && ::access(stop, F_OK) == 0);
         begin = clock::now()) {
        if (!work.pulse())
            return fail("a wrong value");
        ++checked;
        std::this_thread::sleep_until(begin + std::chrono::duration_cast<clock::duration>(each));
    }
    if (!work.memory_is_still())
        return fail("memory changed that nothing writes");
    const std::chrono::duration<double> took = clock::now() - started;
    std::printf("%u pulses are right; kernels of %.1f ms kept the GPU busy for %.0f %% of the time\n",
                checked, work.kernel_ms(), 0.1 * checked * work.kernel_ms() / took.count());
    return 0;
}
