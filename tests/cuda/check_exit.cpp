// SPDX-License-Identifier: GPL-2.0-or-later
// A program that ends with everything that it has, and calls the library once more from an exit handler, as the
// runtimes and frameworks above it do.
#include "check.hpp"
#include "check_source.hpp"

#include <unistd.h>

#include <array>
#include <cstdint>

namespace check {

namespace {

bool left = false;
std::array<void*, 8> pinned_memory;
CUdeviceptr reserved = 0, numbers = 0;
CUfunction kernel = nullptr;

} // namespace

void leaves_everything() {
    for (void*& one : pinned_memory)
        NEED(cuMemHostAlloc(&one, 1 << 16, 0));
    NEED(cuMemAddressReserve(&reserved, 2 << 20, 0, 0, 0));
    NEED(cuMemAlloc_v2(&numbers, 4096));
    CUmodule module = nullptr;
    NEED(cuModuleLoadData(&module, bump_source));
    NEED(cuModuleGetFunction(&kernel, module, "bump"));
    left = true;
}

void at_exit() {
    if (!left)
        return;
    const auto must = [](CUresult result, const char* what) {
        if (result == CUDA_SUCCESS)
            return;
        std::printf("at the end: %s: error %d\n", what, static_cast<int>(result));
        std::fflush(stdout);
        _exit(1);
    };
    std::uint32_t count = 1024, by = 1;
    void* parameters[] = {&numbers, &count, &by};
    must(cu.cuLaunchKernel(kernel, 8, 1, 1, 128, 1, 1, 0, nullptr, parameters, nullptr), "cuLaunchKernel");
    must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
    must(cu.cuMemFreeHost(pinned_memory[0]), "cuMemFreeHost");
    must(cu.cuMemAddressFree(reserved, 2 << 20), "cuMemAddressFree");
    must(cu.cuDevicePrimaryCtxRelease_v2(0), "cuDevicePrimaryCtxRelease");
    std::printf("the end     ok\n");
}

} // namespace check
