// SPDX-License-Identifier: GPL-2.0-or-later
// Memory in other ways than cuMemAlloc: pools, addresses and memory apart, the program's own, pointers.
#include "check.hpp"

#include <cstdint>
#include <cstring>
#include <vector>

namespace check {

namespace {

constexpr std::size_t words = 50000;

std::vector<std::uint32_t> numbers(std::uint32_t seed) {
    std::vector<std::uint32_t> made(words);
    for (std::size_t i = 0; i < words; ++i)
        made[i] = static_cast<std::uint32_t>(i * 2654435761u + seed);
    return made;
}

template <class Value>
Value about(CUdeviceptr address, CUpointer_attribute attribute) {
    Value value{};
    NEED(cuPointerGetAttribute(&value, attribute, address));
    return value;
}

void in_stream_order() {
    CUstream one = nullptr, other = nullptr;
    CUevent done = nullptr;
    CUmemoryPool pool = nullptr, own = nullptr;
    int can = 0;
    NEED(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0));
    if (!can)
        return;
    NEED(cuDeviceGetDefaultMemPool(&pool, 0));
    NEED(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    NEED(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    NEED(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
    std::vector<std::uint32_t> got(words);
    for (std::uint32_t round = 0; round < 40; ++round) {
        CUdeviceptr memory = 0;
        NEED(cuMemAllocAsync(&memory, words * 4, one));
        NEED(cuMemsetD32Async(memory, round, words, one));
        NEED(cuEventRecord(done, one));
        NEED(cuStreamWaitEvent(other, done, 0));
        NEED(cuMemcpyDtoHAsync_v2(got.data(), memory, words * 4, other));
        NEED(cuStreamSynchronize(other));
        EXPECT(got == std::vector<std::uint32_t>(words, round));
        NEED(cuMemFreeAsync(memory, one));
    }
    NEED(cuCtxSynchronize());
    cuuint64_t used = 1, threshold = 12345, told = 0;
    NEED(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &used));
    EXPECT(used >= words * 4);
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    NEED(cuMemPoolCreate(&own, &properties));
    NEED(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    NEED(cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &told));
    EXPECT(told == threshold);
    CUdeviceptr memory = 0;
    NEED(cuMemAllocFromPoolAsync(&memory, 1000, own, one));
    NEED(cuStreamSynchronize(one));
    EXPECT(about<CUmemoryPool>(memory, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) == own);
    NEED(cuMemFreeAsync(memory, one));
    NEED(cuStreamSynchronize(one));
    NEED(cuMemPoolTrimTo(own, 0));
    NEED(cuMemPoolDestroy(own));
    NEED(cuEventDestroy_v2(done));
    NEED(cuStreamDestroy_v2(one));
    NEED(cuStreamDestroy_v2(other));
}

void addresses_apart() {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    std::size_t unit = 0;
    NEED(cuMemGetAllocationGranularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    EXPECT(unit > 0 && (unit & (unit - 1)) == 0);
    CUdeviceptr at = 0;
    CUmemGenericAllocationHandle first = 0, second = 0;
    NEED(cuMemAddressReserve(&at, 2 * unit, 0, 0, 0));
    NEED(cuMemCreate(&first, unit, &properties, 0));
    NEED(cuMemCreate(&second, unit, &properties, 0));
    NEED(cuMemMap(at, unit, 0, first, 0));
    NEED(cuMemMap(at + unit, unit, 0, second, 0));
    NEED(cuMemSetAccess(at, 2 * unit, &access, 1));
    // Side by side they are one piece of memory, for sets and copies too.
    const auto sent = numbers(1);
    std::vector<std::uint32_t> got(words);
    const CUdeviceptr across = at + unit - words * 2;
    NEED(cuMemcpyHtoD_v2(across, sent.data(), words * 4));
    NEED(cuMemcpyDtoH_v2(got.data(), across, words * 4));
    EXPECT(got == sent);
    NEED(cuMemsetD32Async(across, 77, words, nullptr));
    NEED(cuMemcpyDtoH_v2(got.data(), across, words * 4));
    EXPECT(got == std::vector<std::uint32_t>(words, 77));
    NEED(cuMemcpyHtoD_v2(at + unit, sent.data(), words * 4));
    NEED(cuMemcpyDtoD_v2(across - words * 4, at + unit, words * 4));
    NEED(cuMemcpyDtoH_v2(got.data(), across - words * 4, words * 4));
    EXPECT(got == sent);
    // Memory that is unmapped keeps its content, and another may take its place.
    NEED(cuCtxSynchronize());
    NEED(cuMemUnmap(at, unit));
    NEED(cuMemUnmap(at + unit, unit));
    NEED(cuMemMap(at, unit, 0, second, 0));
    NEED(cuMemSetAccess(at, unit, &access, 1));
    NEED(cuMemcpyDtoH_v2(got.data(), at, words * 4));
    EXPECT(got == sent);
    unsigned long long flags = 0;
    NEED(cuMemGetAccess(&flags, &properties.location, at));
    EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    NEED(cuMemRelease(first));
    NEED(cuMemRelease(second)); // what is mapped stays
    NEED(cuMemcpyDtoH_v2(got.data(), at, words * 4));
    EXPECT(got == sent);
    NEED(cuMemUnmap(at, unit));
    NEED(cuMemAddressFree(at, 2 * unit));
}

void of_the_program() {
    void* pinned = nullptr;
    unsigned flags = 0;
    CUdeviceptr memory = 0;
    CUstream stream = nullptr;
    NEED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    NEED(cuMemAlloc_v2(&memory, words * 4));
    NEED(cuMemHostAlloc(&pinned, words * 4, CU_MEMHOSTALLOC_PORTABLE));
    NEED(cuMemHostGetFlags(&flags, pinned));
    EXPECT(flags & CU_MEMHOSTALLOC_PORTABLE);
    const auto sent = numbers(2);
    auto got = numbers(3);
    std::memcpy(pinned, sent.data(), words * 4);
    NEED(cuMemHostRegister_v2(got.data(), words * 4, 0));
    EXPECT_RESULT(cuMemHostRegister_v2(got.data(), words * 4, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    NEED(cuMemcpyHtoDAsync_v2(memory, pinned, words * 4, stream));
    NEED(cuMemcpyDtoHAsync_v2(got.data(), memory, words * 4, stream));
    NEED(cuStreamSynchronize(stream));
    EXPECT(got == sent);
    EXPECT(about<unsigned>(reinterpret_cast<std::uintptr_t>(pinned), CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == 1);
    NEED(cuMemHostUnregister(got.data()));
    EXPECT_RESULT(cuMemHostUnregister(got.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    NEED(cuMemFreeHost(pinned));
    EXPECT(about<unsigned>(memory + 4, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == 2);
    EXPECT(about<CUdeviceptr>(memory + 4, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) == memory);
    EXPECT(about<std::size_t>(memory + 4, CU_POINTER_ATTRIBUTE_RANGE_SIZE) == words * 4);
    EXPECT(about<int>(memory, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) == 0);
    EXPECT(about<unsigned char>(memory, CU_POINTER_ATTRIBUTE_IS_MANAGED) == 0);
    unsigned type = 7;
    EXPECT_RESULT(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        reinterpret_cast<std::uintptr_t>(&type)),
                  CUDA_ERROR_INVALID_VALUE);
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_CONTEXT};
    CUcontext context = reinterpret_cast<CUcontext>(&type);
    void* values[] = {&type, &context};
    NEED(cuPointerGetAttributes(2, asked, values, reinterpret_cast<std::uintptr_t>(&type)));
    EXPECT(type == 0 && context == nullptr);
    NEED(cuMemFree_v2(memory));
    NEED(cuStreamDestroy_v2(stream));
}

// From one piece of GPU memory to another through pinned memory, in the order of a stream, or of two whose order an
// event makes: nothing waits in between, so the bytes are not there when the second copy is asked for.
void through_pinned_memory() {
    constexpr std::size_t busy_bytes = std::size_t{64} << 20;
    CUdeviceptr busy = 0, source = 0, target = 0;
    void* pinned = nullptr;
    CUstream first = nullptr, second = nullptr;
    CUevent there = nullptr;
    NEED(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    NEED(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    NEED(cuEventCreate(&there, CU_EVENT_DISABLE_TIMING));
    NEED(cuMemAlloc_v2(&busy, busy_bytes));
    NEED(cuMemAlloc_v2(&source, words * 4));
    NEED(cuMemAlloc_v2(&target, words * 4));
    NEED(cuMemHostAlloc(&pinned, words * 4, 0));
    const auto wanted = numbers(5);
    auto got = numbers(6);
    NEED(cuMemcpyHtoD_v2(source, wanted.data(), words * 4));
    for (const std::size_t bytes : {std::size_t{64}, words * 4})
        for (const CUstream last : {first, second}) {
            std::memset(pinned, 0, words * 4);
            NEED(cuMemsetD8_v2(target, 0, words * 4));
            NEED(cuMemsetD32Async(busy, 1, busy_bytes / 4, first));
            NEED(cuMemcpyDtoHAsync_v2(pinned, source, bytes, first));
            if (last != first) {
                NEED(cuEventRecord(there, first));
                NEED(cuStreamWaitEvent(last, there, 0));
            }
            NEED(cuMemcpyHtoDAsync_v2(target, pinned, bytes, last));
            NEED(cuStreamSynchronize(last));
            NEED(cuMemcpyDtoH_v2(got.data(), target, bytes));
            EXPECT(std::memcmp(got.data(), wanted.data(), bytes) == 0);
        }
    NEED(cuMemFreeHost(pinned));
    for (const CUdeviceptr one : {busy, source, target})
        NEED(cuMemFree_v2(one));
    NEED(cuEventDestroy_v2(there));
    NEED(cuStreamDestroy_v2(first));
    NEED(cuStreamDestroy_v2(second));
}

void rows() {
    CUdeviceptr memory = 0;
    std::size_t pitch = 0;
    NEED(cuMemAllocPitch_v2(&memory, &pitch, 1001, 20, 4));
    EXPECT(pitch >= 1001 && pitch % 32 == 0);
    NEED(cuMemsetD8_v2(memory, 9, pitch * 19 + 1001));
    NEED(cuMemFree_v2(memory));
    EXPECT_RESULT(cuMemAllocPitch_v2(&memory, &pitch, 1001, 20, 3), CUDA_ERROR_INVALID_VALUE);
}

} // namespace

void more_memory() {
    rows();
    in_stream_order();
    addresses_apart();
    of_the_program();
    through_pinned_memory();
}

} // namespace check
