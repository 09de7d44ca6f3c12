// SPDX-License-Identifier: GPL-2.0-or-later
// Memory: allocations, copies, sets, and pinned memory of the program, which the device sees at the same
// address.
#include "device.hpp"

#include <cstdlib>
#include <cstring>

using namespace kagemusha::ptx_driver;

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS || free_bytes == nullptr || total == nullptr)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_VALUE;
    *free_bytes = memory_bytes - c.d.used;
    *total = memory_bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS || address == nullptr || bytes == 0)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_VALUE;
    const CUdeviceptr made = c.d.take(bytes);
    if (made == 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    c.c->allocations.insert(made);
    *address = made;
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS || address == 0)
        return c.result;
    for (const auto& [owner, own] : c.d.contexts) {
        if (owner->allocations.erase(address) != 0) {
            c.d.give_back(address);
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    const auto* range = c.d.memory.find(address);
    if (range == nullptr)
        return CUDA_ERROR_NOT_FOUND;
    if (base != nullptr)
        *base = range->begin;
    if (bytes != nullptr)
        *bytes = range->end - range->begin;
    return CUDA_SUCCESS;
}

namespace {

void* memory_at(CUdeviceptr address) {
    return reinterpret_cast<void*>(address);
}

// A copy with `device` of its ends on the device; which of them, says each caller.
struct place {
    void* at;
    bool on_device;
    bool written;
};

CUresult copy(place to, place from, std::size_t bytes, CUstream stream) {
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS || bytes == 0)
        return c.result;
    if (!is_stream(c, stream))
        return CUDA_ERROR_INVALID_HANDLE;
    for (const place& p : {to, from}) {
        const bool good = p.on_device
                              ? c.d.memory.holds(reinterpret_cast<std::uint64_t>(p.at), bytes, p.written)
                              : p.at != nullptr;
        if (!good)
            return CUDA_ERROR_INVALID_VALUE;
    }
    std::memmove(to.at, from.at, bytes);
    return CUDA_SUCCESS;
}

place device_to(CUdeviceptr a) {
    return {memory_at(a), true, true};
}
place device_from(CUdeviceptr a) {
    return {memory_at(a), true, false};
}
place host_to(void* p) {
    return {p, false, true};
}
place host_from(const void* p) {
    return {const_cast<void*>(p), false, false};
}

template <class T>
CUresult set(CUdeviceptr to, T value, std::size_t count, CUstream stream) {
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS || count == 0)
        return c.result;
    if (!is_stream(c, stream))
        return CUDA_ERROR_INVALID_HANDLE;
    if (count > memory_bytes || to % sizeof(T) != 0 || !c.d.memory.holds(to, count * sizeof(T), true))
        return CUDA_ERROR_INVALID_VALUE;
    T* const p = static_cast<T*>(memory_at(to));
    for (std::size_t k = 0; k < count; k++)
        p[k] = value;
    return CUDA_SUCCESS;
}

// An end of cuMemcpy, which takes both kinds of pointers: ours, or else the program's own.
place either(CUdeviceptr a, std::size_t bytes, bool written) {
    const std::lock_guard locked(device::one().lock);
    const bool ours = device::one().memory.find(a) != nullptr;
    (void)bytes;
    return {memory_at(a), ours, written};
}

} // namespace

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s) {
    return copy(either(to, bytes, true), either(from, bytes, false), bytes, s);
}
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return cuMemcpyAsync(to, from, bytes, nullptr);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
    return copy(device_to(to), host_from(from), bytes, nullptr);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
    return copy(host_to(to), device_from(from), bytes, nullptr);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy(device_to(to), device_from(from), bytes, nullptr);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream s) {
    return copy(device_to(to), host_from(from), bytes, s);
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream s) {
    return copy(host_to(to), device_from(from), bytes, s);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s) {
    return copy(device_to(to), device_from(from), bytes, s);
}
CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    return set(to, value, count, nullptr);
}
CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
    return set(to, value, count, nullptr);
}
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count) {
    return set(to, value, count, nullptr);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream s) {
    return set(to, value, count, s);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream s) {
    return set(to, value, count, s);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream s) {
    return set(to, value, count, s);
}

CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned int flags) {
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS || memory == nullptr || bytes == 0 || bytes > memory_bytes)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_VALUE;
    const std::size_t whole = (bytes + 4095) / 4096 * 4096;
    void* const p = std::aligned_alloc(4096, whole);
    if (p == nullptr)
        return CUDA_ERROR_OUT_OF_MEMORY;
    std::memset(p, 0, whole);
    const auto address = reinterpret_cast<CUdeviceptr>(p);
    c.d.host[address] = bytes;
    c.d.host_flags[address] = flags;
    c.d.memory.add({address, address + bytes, true});
    *memory = p;
    return CUDA_SUCCESS;
}
CUresult cuMemAllocHost_v2(void** memory, size_t bytes) {
    return cuMemHostAlloc(memory, bytes, 0);
}

CUresult cuMemFreeHost(void* memory) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    const auto address = reinterpret_cast<CUdeviceptr>(memory);
    if (c.d.host.erase(address) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    c.d.host_flags.erase(address);
    c.d.memory.remove(address);
    std::free(memory);
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* memory, unsigned int flags) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS || address == nullptr || flags != 0)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_VALUE;
    const auto at = reinterpret_cast<CUdeviceptr>(memory);
    if (c.d.memory.find(at) == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    *address = at;
    return CUDA_SUCCESS;
}
