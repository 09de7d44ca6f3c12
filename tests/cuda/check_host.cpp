// SPDX-License-Identifier: GPL-2.0-or-later
// What needs no kernel: devices, contexts, memory, streams, events, errors, names.
#include "check.hpp"
#include "check_source.hpp"

#include "proto/cuda/export_tables.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace check {

namespace {

std::vector<unsigned char> pattern(std::size_t bytes, unsigned seed) {
    std::vector<unsigned char> made(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
        made[i] = static_cast<unsigned char>((i * 2654435761u + seed) >> 13);
    return made;
}

} // namespace

void devices() {
    int count = 0, version = 0, major = 0, warp = 0, active = 0;
    unsigned flags = 0;
    char name[256] = {};
    std::size_t bytes = 0, free_bytes = 0, total = 0;
    CUdevice device = -1, other = -1;
    NEED(cuDeviceGetCount(&count));
    NEED(cuDriverGetVersion(&version));
    NEED(cuDeviceGet(&device, 0));
    NEED(cuDeviceGetName(name, sizeof name, device));
    NEED(cuDeviceTotalMem_v2(&bytes, device));
    NEED(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
    NEED(cuDeviceGetAttribute(&warp, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device));
    NEED(cuMemGetInfo_v2(&free_bytes, &total));
    NEED(cuDevicePrimaryCtxGetState(0, &flags, &active));
    std::printf("%s, %zu MiB, CUDA %d.%d, compute %d\n", name, bytes >> 20, version / 1000,
                version % 1000 / 10, major);
    EXPECT(count >= 1 && version >= 11000 && name[0] && major >= 3 && warp == 32 && active == 1);
    EXPECT(total > 0 && free_bytes <= total);
    EXPECT_RESULT(cuDeviceGet(&other, count), CUDA_ERROR_INVALID_DEVICE);

    CUdevprop old{};
    int threads = 0;
    NEED(cuDeviceGetProperties(&old, device));
    NEED(cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device));
    EXPECT(old.maxThreadsPerBlock == threads && old.SIMDWidth == warp && old.maxGridSize[2] > 0);

    CUcontext before = nullptr, made = nullptr, popped = nullptr;
    NEED(cuCtxGetCurrent(&before));
    NEED(cuCtxCreate_v2(&made, 0, device));
    NEED(cuCtxGetCurrent(&popped));
    EXPECT(popped == made && made != before);
    NEED(cuCtxPopCurrent_v2(&popped));
    EXPECT(popped == made);
    NEED(cuCtxPushCurrent_v2(made));
    NEED(cuCtxGetDevice(&other));
    EXPECT(other == device);
    std::size_t heap = 0, smaller = 0;
    NEED(cuCtxGetLimit(&heap, CU_LIMIT_MALLOC_HEAP_SIZE));
    EXPECT(heap >= 2u << 20);
    NEED(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap / 2));
    NEED(cuCtxGetLimit(&smaller, CU_LIMIT_MALLOC_HEAP_SIZE));
    EXPECT(smaller == heap / 2);
    EXPECT(cu.cuCtxGetLimit(&heap, static_cast<CUlimit>(1000)) != CUDA_SUCCESS);
    NEED(cuCtxDestroy_v2(made));
    NEED(cuCtxGetCurrent(&popped));
    EXPECT(popped == before);
    NEED(cuCtxGetLimit(&heap, CU_LIMIT_MALLOC_HEAP_SIZE));
    EXPECT(heap >= 2 * smaller); // each context has its own
}

// A device that has them encodes one; the same bytes each time, others for another address.
void tensor_maps() {
    CUdeviceptr memory = 0;
    CUtensorMap first{}, again{}, moved{};
    const cuuint64_t sizes[] = {256, 64}, strides[] = {1024};
    const cuuint32_t box[] = {32, 16}, steps[] = {1, 1};
    int has = 0;
    cu.cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, 0);
    NEED(cuMemAlloc_v2(&memory, 2 << 20));
    const auto encode = [&](CUtensorMap* map, CUdeviceptr address) {
        constexpr unsigned float32 = 7;
        return cu.cuTensorMapEncodeTiled(map, float32, 2, reinterpret_cast<void*>(address), sizes, strides,
                                         box, steps, 0, 0, 0, 0);
    };
    if (has != 0) {
        EXPECT(encode(&first, memory) == CUDA_SUCCESS && encode(&again, memory) == CUDA_SUCCESS);
        EXPECT(std::memcmp(&first, &again, sizeof first) == 0);
        EXPECT(encode(&moved, memory + 4096) == CUDA_SUCCESS);
        EXPECT(std::memcmp(&first, &moved, sizeof first) != 0);
        NEED(cuTensorMapReplaceAddress(&again, reinterpret_cast<void*>(memory + 4096)));
        EXPECT(std::memcmp(&moved, &again, sizeof moved) == 0);
    } else {
        EXPECT(encode(&first, memory) == CUDA_ERROR_NOT_SUPPORTED);
    }
    NEED(cuMemFree_v2(memory));
}

// What NVIDIA's libraries ask of tables without names (docs/notes/nvidia.md).
void tables() {
    const CUuuid numbers = KVG_CUDA_TABLE_NUMBERS, functions = KVG_CUDA_TABLE_FUNCTIONS;
    const void *of_numbers = nullptr, *of_functions = nullptr;
    if (cu.cuGetExportTable(&of_numbers, &numbers) != CUDA_SUCCESS)
        return; // a driver of another maker
    NEED(cuGetExportTable(&of_functions, &functions));
    const auto slot = [](const void* table, unsigned word) { return static_cast<void* const*>(table)[word]; };
    CUcontext context = nullptr;
    CUstream streams[2] = {};
    unsigned long long seen[2] = {};
    NEED(cuCtxGetCurrent(&context));
    NEED(cuStreamCreate(&streams[1], CU_STREAM_NON_BLOCKING));
    const auto behind = reinterpret_cast<CUresult (*)(CUcontext, CUstream, void**)>(slot(of_numbers, 51));
    const auto number =
        reinterpret_cast<CUresult (*)(CUcontext, void*, unsigned long long*)>(slot(of_numbers, 39));
    for (int i = 0; i < 2; ++i) {
        void* object = nullptr;
        EXPECT(behind(context, streams[i], &object) == CUDA_SUCCESS && object);
        EXPECT(number(context, object, &seen[i]) == CUDA_SUCCESS);
    }
    EXPECT(seen[0] != seen[1]);
    NEED(cuStreamDestroy_v2(streams[1]));

    CUmodule module = nullptr;
    unsigned count = 0, visited = 0;
    NEED(cuModuleLoadData(&module, bump_source));
    NEED(cuModuleGetFunctionCount(&count, module));
    using visitor = void (*)(void*, CUfunction);
    const visitor visit = [](void* user, CUfunction one) { *static_cast<unsigned*>(user) += one != nullptr; };
    reinterpret_cast<unsigned (*)(CUcontext, CUmodule, visitor, void*)>(slot(of_functions, 7))(
        context, module, visit, &visited);
    EXPECT(count > 0 && visited == count);
    NEED(cuModuleUnload(module));
}

void memory() {
    const std::size_t sizes[] = {1, 4096, 4097, 1 << 20, (5 << 20) + 3, 40 << 20};
    for (const std::size_t bytes : sizes) {
        CUdeviceptr first = 0, second = 0, base = 0;
        std::size_t known = 0;
        NEED(cuMemAlloc_v2(&first, bytes));
        NEED(cuMemAlloc_v2(&second, bytes));
        EXPECT(first != second && first % 256 == 0);
        NEED(cuMemGetAddressRange_v2(&base, &known, first + bytes / 2));
        EXPECT(base == first && known == bytes);
        const auto sent = pattern(bytes, static_cast<unsigned>(bytes));
        std::vector<unsigned char> got(bytes);
        NEED(cuMemcpyHtoD_v2(first, sent.data(), bytes));
        NEED(cuMemcpyDtoD_v2(second, first, bytes));
        NEED(cuMemcpyDtoH_v2(got.data(), second, bytes));
        EXPECT(got == sent);
        NEED(cuMemsetD8_v2(first, 0x5a, bytes));
        NEED(cuMemcpy(reinterpret_cast<std::uintptr_t>(got.data()), first, bytes));
        EXPECT(got == std::vector<unsigned char>(bytes, 0x5a));
        NEED(cuMemFree_v2(first));
        NEED(cuMemFree_v2(second));
    }
    // Parts of an allocation, and many small ones that do not touch each other.
    std::vector<CUdeviceptr> small(300);
    for (std::size_t i = 0; i < small.size(); ++i) {
        NEED(cuMemAlloc_v2(&small[i], 4 * (i + 1)));
        NEED(cuMemsetD16_v2(small[i], static_cast<unsigned short>(i), 2 * (i + 1)));
    }
    for (std::size_t i = 0; i < small.size(); ++i) {
        std::vector<unsigned short> got(2 * (i + 1));
        NEED(cuMemcpyDtoH_v2(got.data(), small[i], 4 * (i + 1)));
        EXPECT(got == std::vector<unsigned short>(2 * (i + 1), static_cast<unsigned short>(i)));
        NEED(cuMemFree_v2(small[i]));
    }
}

void streams() {
    constexpr std::size_t count = 100000;
    CUstream one = nullptr, other = nullptr;
    CUevent half = nullptr, end = nullptr;
    CUdeviceptr memory = 0;
    NEED(cuStreamCreate(&one, CU_STREAM_DEFAULT));
    NEED(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    NEED(cuEventCreate(&half, CU_EVENT_DEFAULT));
    NEED(cuEventCreate(&end, CU_EVENT_DEFAULT));
    EXPECT_RESULT(cuEventQuery(half), CUDA_SUCCESS); // never recorded
    NEED(cuMemAlloc_v2(&memory, count * 4));
    std::vector<std::uint32_t> got(count);
    for (std::uint32_t round = 0; round < 20; ++round) {
        NEED(cuMemsetD32Async(memory, round, count, one));
        NEED(cuEventRecord(half, one));
        NEED(cuStreamWaitEvent(other, half, 0));
        NEED(cuMemsetD32Async(memory, round + 1000, count / 2, other));
        NEED(cuEventRecord(end, other));
        NEED(cuEventSynchronize(end));
        EXPECT_RESULT(cuEventQuery(half), CUDA_SUCCESS);
        NEED(cuMemcpyDtoHAsync_v2(got.data(), memory, count * 4, other));
        NEED(cuStreamSynchronize(other));
        EXPECT_RESULT(cuStreamQuery(other), CUDA_SUCCESS); // nothing came since
        EXPECT(got.front() == round + 1000 && got[count / 2 - 1] == round + 1000);
        EXPECT(got[count / 2] == round && got.back() == round);
    }
    float milliseconds = -1;
    NEED(cuEventElapsedTime(&milliseconds, half, end));
    EXPECT(milliseconds >= 0);
    int called = 0;
    NEED(cuLaunchHostFunc(one, [](void* data) { ++*static_cast<int*>(data); }, &called));
    NEED(cuCtxSynchronize());
    EXPECT(called == 1);
    // What a stream calls may not call CUDA: two of them that did would wait for each other's streams.
    struct asked_by {
        CUdeviceptr memory;
        CUresult answer;
    };
    asked_by asked[2] = {{memory, CUDA_SUCCESS}, {memory, CUDA_SUCCESS}};
    const auto ask = [](CUstream, CUresult, void* data) {
        auto& by = *static_cast<asked_by*>(data);
        CUdeviceptr base = 0;
        std::size_t bytes = 0;
        by.answer = cu.cuMemGetAddressRange_v2(&base, &bytes, by.memory);
    };
    NEED(cuStreamAddCallback(one, ask, &asked[0], 0));
    NEED(cuStreamAddCallback(other, ask, &asked[1], 0));
    NEED(cuCtxSynchronize());
    EXPECT(asked[0].answer == CUDA_ERROR_NOT_PERMITTED && asked[1].answer == CUDA_ERROR_NOT_PERMITTED);
    CUresult state = CUDA_ERROR_NOT_READY; // nothing is in it any more, which may take a moment to be known
    while (state == CUDA_ERROR_NOT_READY)
        state = cu.cuStreamQuery(one);
    EXPECT(state == CUDA_SUCCESS);
    // Bytes that a program may change when the function has returned.
    std::uint32_t number = 7;
    NEED(cuMemcpyHtoDAsync_v2(memory, &number, 4, one));
    number = 8;
    NEED(cuStreamSynchronize(one));
    NEED(cuMemcpyDtoH_v2(&number, memory, 4));
    EXPECT(number == 7);
    NEED(cuEventDestroy_v2(half));
    NEED(cuEventDestroy_v2(end));
    NEED(cuStreamDestroy_v2(one));
    NEED(cuStreamDestroy_v2(other));
    NEED(cuMemFree_v2(memory));
}

void errors() {
    CUdeviceptr memory = 0;
    char octet = 0;
    CUmodule module = nullptr;
    EXPECT_RESULT(cuMemAlloc_v2(&memory, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_RESULT(cuMemAlloc_v2(&memory, std::size_t{1} << 60), CUDA_ERROR_OUT_OF_MEMORY);
    NEED(cuMemAlloc_v2(&memory, 100));
    EXPECT_RESULT(cuMemFree_v2(memory + 8), CUDA_ERROR_INVALID_VALUE);
    EXPECT_RESULT(cuMemcpyDtoH_v2(&octet, 0x10, 1), CUDA_ERROR_INVALID_VALUE);
    NEED(cuMemFree_v2(memory));
    EXPECT(cu.cuModuleLoadData(&module, "this is no PTX") != CUDA_SUCCESS || module);
    const char* text = nullptr;
    NEED(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
    EXPECT(std::string(text) == "CUDA_ERROR_ILLEGAL_ADDRESS");
    NEED(cuGetErrorString(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
    EXPECT(std::strlen(text) > 0);
    CUcontext context = nullptr;
    NEED(cuCtxGetCurrent(&context));
    NEED(cuCtxSetCurrent(nullptr));
    EXPECT_RESULT(cuMemAlloc_v2(&memory, 1), CUDA_ERROR_INVALID_CONTEXT);
    NEED(cuCtxSetCurrent(context));
}

void names() {
    const struct {
        const char* plain;
        int version;
        const char* symbol;
    } wanted[] = {{"cuMemAlloc", 3020, "cuMemAlloc_v2"},
                  {"cuMemAlloc", 12000, "cuMemAlloc_v2"},
                  {"cuLaunchKernel", 4000, "cuLaunchKernel"},
                  {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
                  {"cuCtxDestroy", 4000, "cuCtxDestroy_v2"}};
    for (const auto& one : wanted) {
        void* found = nullptr;
        CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        NEED(cuGetProcAddress_v2(one.plain, &found, one.version, 0, &status));
        EXPECT(status == CU_GET_PROC_ADDRESS_SUCCESS && found != nullptr);
        EXPECT(found == dlsym(cu.library, one.symbol));
    }
    void* found = nullptr;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    // The reference does not say whether the call succeeds; NVIDIA's 580 does.
    cu.cuGetProcAddress_v2("cuNothing", &found, 12000, 0, &status);
    EXPECT(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND && found == nullptr);
}

} // namespace check
