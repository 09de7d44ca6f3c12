// SPDX-License-Identifier: GPL-2.0-or-later
// Libraries, variables of modules, the ways to launch, occupancy.
#include "check.hpp"
#include "check_source.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace check {

namespace {

constexpr std::uint32_t count = 1000;

std::vector<std::uint32_t> read(CUdeviceptr from, std::size_t number) {
    std::vector<std::uint32_t> made(number);
    NEED(cuMemcpyDtoH_v2(made.data(), from, number * 4));
    return made;
}

void launch_bump(CUfunction bump, CUdeviceptr at, std::uint32_t by) {
    std::uint32_t n = count;
    void* parameters[] = {&at, &n, &by};
    NEED(cuLaunchKernel(bump, 8, 1, 1, 128, 1, 1, 0, nullptr, parameters, nullptr));
}

void variables(CUmodule module, CUdeviceptr at) {
    CUdeviceptr bias = 0, none = 0;
    std::size_t bytes = 0;
    NEED(cuModuleGetGlobal_v2(&bias, &bytes, module, "bias"));
    EXPECT(bytes == 4 && bias != 0);
    EXPECT_RESULT(cuModuleGetGlobal_v2(&none, &bytes, module, "nothing"), CUDA_ERROR_NOT_FOUND);
    std::uint32_t value = 0;
    NEED(cuMemcpyDtoH_v2(&value, bias, 4));
    EXPECT(value == 5);
    CUfunction bump = nullptr;
    NEED(cuModuleGetFunction(&bump, module, "bump"));
    NEED(cuMemsetD32Async(at, 0, count, nullptr));
    NEED(cuMemsetD32Async(bias, 100, 1, nullptr));
    launch_bump(bump, at, 7);
    EXPECT(read(at, count) == std::vector<std::uint32_t>(count, 107));
    value = 5;
    NEED(cuMemcpyHtoD_v2(bias, &value, 4));
    // What a kernel stores into a variable is there for a copy.
    CUdeviceptr calls = 0;
    NEED(cuModuleGetGlobal_v2(&calls, &bytes, module, "calls"));
    EXPECT(bytes == 8 && read(calls, 1)[0] > 0);
}

void functions(CUmodule module) {
    unsigned number = 0;
    NEED(cuModuleGetFunctionCount(&number, module));
    EXPECT(number == 2);
    std::vector<CUfunction> all(number);
    NEED(cuModuleEnumerateFunctions(all.data(), number, module));
    std::vector<std::string> names;
    for (CUfunction one : all) {
        const char* name = nullptr;
        CUmodule of = nullptr;
        NEED(cuFuncGetName(&name, one));
        NEED(cuFuncGetModule(&of, one));
        EXPECT(of == module);
        names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    EXPECT((names == std::vector<std::string>{"bump", "shared_sum"}));
    std::size_t offset = 0, bytes = 0;
    CUfunction bump = nullptr;
    NEED(cuModuleGetFunction(&bump, module, "bump"));
    NEED(cuFuncGetParamInfo(bump, 2, &offset, &bytes));
    EXPECT(offset == 12 && bytes == 4);
    EXPECT_RESULT(cuFuncGetParamInfo(bump, 3, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
}

void libraries(CUdeviceptr at) {
    CUlibrary library = nullptr, owner = nullptr;
    CUkernel kernel = nullptr, none = nullptr;
    CUfunction function = nullptr;
    CUmodule module = nullptr;
    NEED(cuLibraryLoadData(&library, bump_source, nullptr, nullptr, 0, nullptr, nullptr, 0));
    NEED(cuLibraryGetKernel(&kernel, library, "bump"));
    EXPECT_RESULT(cuLibraryGetKernel(&none, library, "nothing"), CUDA_ERROR_NOT_FOUND);
    NEED(cuKernelGetFunction(&function, kernel));
    NEED(cuLibraryGetModule(&module, library));
    const char* name = nullptr;
    int threads = 0;
    unsigned number = 0;
    std::size_t offset = 0, bytes = 0;
    NEED(cuKernelGetName(&name, kernel));
    NEED(cuKernelGetLibrary(&owner, kernel));
    NEED(cuKernelGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0));
    NEED(cuKernelGetParamInfo(kernel, 1, &offset, &bytes));
    NEED(cuLibraryGetKernelCount(&number, library));
    EXPECT(std::strcmp(name, "bump") == 0 && owner == library && threads >= 128);
    EXPECT(offset == 8 && bytes == 4 && number == 2);
    CUkernel two[2] = {};
    NEED(cuLibraryEnumerateKernels(two, 2, library));
    EXPECT((two[0] == kernel) != (two[1] == kernel));
    // The kernel itself may stand for its function.
    NEED(cuMemsetD32Async(at, 0, count, nullptr));
    launch_bump(function, at, 1);
    launch_bump(reinterpret_cast<CUfunction>(kernel), at, 1);
    EXPECT(read(at, count) == std::vector<std::uint32_t>(count, 12));
    // A library's variables are not those of a module of the same image.
    CUdeviceptr bias = 0;
    NEED(cuLibraryGetGlobal(&bias, &bytes, library, "bias"));
    EXPECT(bytes == 4);
    NEED(cuMemsetD32Async(bias, 0, 1, nullptr));
    launch_bump(function, at, 0);
    EXPECT(read(at, count) == std::vector<std::uint32_t>(count, 12));
    NEED(cuLibraryUnload(library));
}

// More dynamic shared memory than a launch may have unasked.
void shared_memory(CUmodule module, CUdeviceptr at) {
    CUfunction sum = nullptr;
    int most = 0, fixed = 0;
    NEED(cuModuleGetFunction(&sum, module, "shared_sum"));
    NEED(cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 0));
    NEED(cuFuncGetAttribute(&fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, sum));
    const int bytes = most - fixed;
    std::uint32_t words = static_cast<std::uint32_t>(bytes / 4);
    void* parameters[] = {&at, &words};
    if (bytes > 48 << 10) {
        EXPECT_RESULT(cuLaunchKernel(sum, 1, 1, 1, 32, 1, 1, static_cast<unsigned>(bytes), nullptr,
                                     parameters, nullptr),
                      CUDA_ERROR_INVALID_VALUE);
        NEED(cuFuncSetAttribute(sum, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes));
    }
    EXPECT_RESULT(cuFuncSetAttribute(sum, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes + 1),
                  CUDA_ERROR_INVALID_VALUE);
    NEED(cuLaunchKernel(sum, 1, 1, 1, 32, 1, 1, static_cast<unsigned>(bytes), nullptr, parameters, nullptr));
    EXPECT(read(at, 1)[0] == words * (words - 1) / 2);
}

void ways_to_launch(CUmodule module, CUdeviceptr at) {
    CUfunction bump = nullptr;
    NEED(cuModuleGetFunction(&bump, module, "bump"));
    NEED(cuMemsetD32Async(at, 0, count, nullptr));
    std::uint32_t n = count, by = 1;
    void* parameters[] = {&at, &n, &by};
    CUlaunchAttribute attributes[3]{};
    CUlaunchConfig config{8, 1, 1, 128, 1, 1, 0, nullptr, attributes, 0};
    NEED(cuLaunchKernelEx(&config, bump, parameters, nullptr));
    attributes[0].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attributes[0].value.cooperative = 1;
    config.numAttrs = 1;
    int can = 0, clusters = 0;
    NEED(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 0));
    NEED(cuDeviceGetAttribute(&clusters, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 0));
    if (can) {
        NEED(cuLaunchKernelEx(&config, bump, parameters, nullptr));
        NEED(cuLaunchCooperativeKernel(bump, 8, 1, 1, 128, 1, 1, 0, nullptr, parameters));
    }
    attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attributes[0].value.clusterDim = {2, 1, 1};
    if (clusters)
        NEED(cuLaunchKernelEx(&config, bump, parameters, nullptr));
    else
        EXPECT(cu.cuLaunchKernelEx(&config, bump, parameters, nullptr) != CUDA_SUCCESS);
    const std::uint32_t launches = 1 + (can ? 2 : 0) + (clusters ? 1 : 0);
    EXPECT(read(at, count) == std::vector<std::uint32_t>(count, 6 * launches));
}

void occupancy(CUmodule module) {
    CUfunction bump = nullptr;
    int blocks = 0, grid = 0, size = 0, fewer = 0;
    std::size_t dynamic = 0;
    NEED(cuModuleGetFunction(&bump, module, "bump"));
    NEED(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, bump, 128, 0));
    NEED(cuOccupancyMaxActiveBlocksPerMultiprocessor(&fewer, bump, 128, 40 << 10));
    EXPECT(blocks >= 1 && fewer >= 1 && fewer <= blocks);
    NEED(cuOccupancyMaxPotentialBlockSize(&grid, &size, bump, nullptr, 0, 0));
    EXPECT(grid >= 1 && size >= 32 && size <= 1024);
    NEED(cuOccupancyMaxPotentialBlockSize(&grid, &size, bump, nullptr, 0, 64));
    EXPECT(size <= 64);
    NEED(cuOccupancyAvailableDynamicSMemPerBlock(&dynamic, bump, 1, 128));
    EXPECT(dynamic >= 16 << 10);
}

} // namespace

void launches() {
    CUdeviceptr at = 0;
    CUmodule module = nullptr;
    NEED(cuMemAlloc_v2(&at, count * 4));
    NEED(cuModuleLoadData(&module, bump_source));
    variables(module, at);
    functions(module);
    libraries(at);
    shared_memory(module, at);
    ways_to_launch(module, at);
    occupancy(module);
    NEED(cuModuleUnload(module));
    NEED(cuMemFree_v2(at));
}

} // namespace check
