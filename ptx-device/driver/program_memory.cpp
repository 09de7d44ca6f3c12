// SPDX-License-Identifier: GPL-2.0-or-later
// Memory in other ways than cuMemAlloc: with a pitch, in the order of a stream and from pools, the program's own
// (registered), and what is known about a pointer. A stream's work has completed when a call returns, so what is
// freed in its order is freed at once.
#include "device.hpp"

#include <algorithm>
#include <cstring>

struct CUmemPoolHandle_st {
    std::size_t limit = 0; // 0: none
    cuuint64_t threshold = 0;
    int reuse[3] = {1, 1, 1};
    std::size_t used = 0, high = 0;
};

using namespace kagemusha;
using namespace kagemusha::ptx_driver;

namespace {

constexpr std::size_t pitch_unit = 512;

// Under the device's lock.
CUmemPoolHandle_st default_pool;
CUmemoryPool current_pool = &default_pool;
// Never destroyed: programs call from exit handlers, too.
auto& pools = *new std::map<CUmemoryPool, std::unique_ptr<CUmemPoolHandle_st>>;
auto& pool_of = *new std::map<CUdeviceptr, CUmemoryPool>; // allocations from pools
auto& registered = *new std::set<CUdeviceptr>;            // the program's own memory

bool known(CUmemoryPool p) {
    return p == &default_pool || pools.contains(p);
}

CUresult allocate(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool, CUstream stream) {
    CUmemoryPool from = pool;
    {
        const call c(call::needs::working_context);
        if (c.result != CUDA_SUCCESS)
            return c.result;
        if (!is_stream(c, stream))
            return CUDA_ERROR_INVALID_HANDLE;
        from = pool != nullptr ? pool : current_pool;
        if (!known(from))
            return CUDA_ERROR_INVALID_VALUE;
        if (from->limit != 0 && bytes > from->limit - std::min(from->limit, from->used))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const CUresult r = cuMemAlloc_v2(address, bytes);
    if (r == CUDA_SUCCESS) {
        const call c(call::needs::driver);
        pool_of[*address] = from;
        from->used += bytes;
        from->high = std::max(from->high, from->used);
    }
    return r;
}

} // namespace

namespace kagemusha::ptx_driver {

void freed(CUdeviceptr address, std::size_t bytes) {
    const auto it = pool_of.find(address);
    if (it != pool_of.end()) {
        it->second->used -= bytes;
        pool_of.erase(it);
    }
}

} // namespace kagemusha::ptx_driver

CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                            unsigned int element_bytes) {
    if (pitch == nullptr || width == 0 || height == 0 || width > memory_bytes || height > memory_bytes ||
        (element_bytes != 4 && element_bytes != 8 && element_bytes != 16)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::size_t row = (width + pitch_unit - 1) / pitch_unit * pitch_unit;
    const CUresult r = cuMemAlloc_v2(address, row * height);
    if (r == CUDA_SUCCESS)
        *pitch = row;
    return r;
}

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
    return allocate(address, bytes, nullptr, stream);
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return pool != nullptr ? allocate(address, bytes, pool, stream) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    {
        const call c(call::needs::working_context);
        if (c.result != CUDA_SUCCESS || !is_stream(c, stream))
            return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_HANDLE;
    }
    return address != 0 ? cuMemFree_v2(address) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* p) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    if (out == nullptr || p == nullptr || p->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        p->location.type != CU_MEM_LOCATION_TYPE_DEVICE || p->location.id != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (p->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_NOT_SUPPORTED;
    auto made = std::make_unique<CUmemPoolHandle_st>();
    made->limit = p->maxSize;
    *out = made.get();
    pools[*out] = std::move(made);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS || !pools.contains(pool))
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_VALUE;
    std::erase_if(pool_of, [&](const auto& one) { return one.second == pool; }); // they stay allocated
    current_pool = current_pool == pool ? &default_pool : current_pool;
    pools.erase(pool);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t) {
    const call c(call::needs::driver);
    return c.result != CUDA_SUCCESS ? c.result : known(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    if (!known(pool) || value == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse[attribute - 1] = *static_cast<const int*>(value) != 0;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold = *static_cast<const cuuint64_t*>(value);
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*static_cast<const cuuint64_t*>(value) != 0)
            return CUDA_ERROR_INVALID_VALUE;
        pool->high = pool->used;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    if (!known(pool) || value == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *static_cast<int*>(value) = pool->reuse[attribute - 1];
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *static_cast<cuuint64_t*>(value) = pool->threshold;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: // nothing is kept
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *static_cast<cuuint64_t*>(value) = pool->used;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *static_cast<cuuint64_t*>(value) = pool->high;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

namespace {

CUresult about_pool(CUmemoryPool* out, CUdevice number) {
    const call c(call::needs::driver);
    return c.result != CUDA_SUCCESS ? c.result
           : number != 0            ? CUDA_ERROR_INVALID_DEVICE
           : out == nullptr         ? CUDA_ERROR_INVALID_VALUE
                                    : CUDA_SUCCESS;
}

} // namespace

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice number) {
    const CUresult r = about_pool(out, number);
    if (r == CUDA_SUCCESS)
        *out = &default_pool;
    return r;
}
CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice number) {
    const CUresult r = about_pool(out, number);
    if (r == CUDA_SUCCESS) {
        const call c(call::needs::driver);
        *out = current_pool;
    }
    return r;
}
CUresult cuDeviceSetMemPool(CUdevice number, CUmemoryPool pool) {
    const CUresult r = about_pool(&pool, number);
    if (r == CUDA_SUCCESS) {
        const call c(call::needs::driver);
        if (!known(pool))
            return CUDA_ERROR_INVALID_VALUE;
        current_pool = pool;
    }
    return r;
}

// ---- the program's own memory

CUresult cuMemHostRegister_v2(void* memory, size_t bytes, unsigned int flags) {
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS || memory == nullptr || bytes == 0 || flags > 15)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_VALUE;
    const auto address = reinterpret_cast<CUdeviceptr>(memory);
    const auto next = c.d.host.lower_bound(address);
    const bool overlaps =
        (next != c.d.host.end() && next->first < address + bytes) ||
        (next != c.d.host.begin() && std::prev(next)->first + std::prev(next)->second > address);
    if (overlaps)
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    c.d.host[address] = bytes;
    c.d.memory.add({address, address + bytes, (flags & CU_MEMHOSTREGISTER_READ_ONLY) == 0});
    c.d.host_flags[address] = flags;
    registered.insert(address);
    return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* memory) {
    const call c(call::needs::context);
    const auto address = reinterpret_cast<CUdeviceptr>(memory);
    if (c.result != CUDA_SUCCESS || registered.erase(address) == 0)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    c.d.memory.remove(address);
    c.d.host.erase(address);
    c.d.host_flags.erase(address);
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int* flags, void* memory) {
    const call c(call::needs::context);
    const auto address = reinterpret_cast<CUdeviceptr>(memory);
    if (c.result != CUDA_SUCCESS || flags == nullptr || !c.d.host.contains(address))
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_VALUE;
    *flags = c.d.host_flags[address];
    return CUDA_SUCCESS;
}

// ---- pointers

namespace {

// In one of both; the range that it lies in.
const machine::memory_range* range_of(const call& c, CUdeviceptr address, bool& on_host) {
    const auto* range = c.d.memory.find(address);
    on_host = range != nullptr && c.d.host.contains(range->begin);
    return range;
}

} // namespace

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
    const call c(call::needs::context);
    bool on_host = false;
    const auto* range = c.result == CUDA_SUCCESS ? range_of(c, address, on_host) : nullptr;
    if (c.result != CUDA_SUCCESS || value == nullptr || range == nullptr)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *static_cast<CUcontext*>(value) = reinterpret_cast<CUcontext>(c.c);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *static_cast<unsigned*>(value) = on_host ? 1 : 2; // CU_MEMORYTYPE_HOST, _DEVICE
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *static_cast<CUdeviceptr*>(value) = address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!on_host)
            return CUDA_ERROR_INVALID_VALUE;
        *static_cast<void**>(value) = reinterpret_cast<void*>(address);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *static_cast<unsigned char*>(value) = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *static_cast<int*>(value) = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *static_cast<CUdeviceptr*>(value) = range->begin;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *static_cast<std::size_t*>(value) = range->end - range->begin;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *static_cast<unsigned char*>(value) = 1;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: {
        const auto it = pool_of.find(range->begin);
        *static_cast<CUmemoryPool*>(value) = it != pool_of.end() ? it->second : nullptr;
        return CUDA_SUCCESS;
    }
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

// What is not known of a pointer is 0.
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** values,
                                CUdeviceptr address) {
    if (count == 0 || attributes == nullptr || values == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int k = 0; k < count; k++) {
        const CUresult r = cuPointerGetAttribute(values[k], attributes[k], address);
        if (r == CUDA_ERROR_INVALID_VALUE && values[k] != nullptr) {
            const bool small = attributes[k] == CU_POINTER_ATTRIBUTE_IS_MANAGED ||
                               attributes[k] == CU_POINTER_ATTRIBUTE_MAPPED;
            const bool word = attributes[k] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ||
                              attributes[k] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
            std::memset(values[k], attributes[k] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? 0xff : 0,
                        small  ? 1
                        : word ? 4
                               : 8);
        } else if (r != CUDA_SUCCESS) {
            return r;
        }
    }
    return CUDA_SUCCESS;
}

// ---- other devices: there are none

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS || can == nullptr || device != 0 || peer != 0) {
        return c.result != CUDA_SUCCESS ? c.result
               : can == nullptr         ? CUDA_ERROR_INVALID_VALUE
                                        : CUDA_ERROR_INVALID_DEVICE;
    }
    *can = 0; // itself is no peer
    return CUDA_SUCCESS;
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes,
                           CUstream stream) {
    return cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                      size_t bytes) {
    return cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, nullptr);
}
