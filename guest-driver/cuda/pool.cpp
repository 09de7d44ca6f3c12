// SPDX-License-Identifier: GPL-2.0-or-later
//
// Allocations in the order of a stream, and pools. An allocation is there at once, because this side chooses the
// address; one that is freed is used again when its stream has come so far. A pool is a name for allocations and
// their sum: all of them are pieces of the same arenas.
#include "capture.hpp"
#include "driver.hpp"

#include <algorithm>

namespace kagemusha::cuda {

struct memory_pool {
    device* gpu = nullptr;
    std::uint64_t most_bytes = 0; // 0: as much as the GPU has

    std::mutex mutex;
    std::uint64_t threshold = 0, used = 0, high = 0;
    int reuse[3] = {1, 1, 1};
};

namespace {

// Tells when a stream has come to where something was freed.
struct fence_work final : work {
    CUgraphNodeType kind() const override { return CU_GRAPH_NODE_TYPE_EMPTY; }
    CUresult run(stream& where) override {
        opencl::ref<opencl::event> marker;
        const sending counted(where);
        const CUresult error = mark(where, marker);
        reached->set(error, std::move(marker), {});
        return error;
    }
    std::unique_ptr<work> copy() const override { return std::make_unique<fence_work>(*this); }

    std::shared_ptr<recording> reached = std::make_shared<recording>();
};

std::mutex default_pools_mutex;

memory_pool& default_pool(device& gpu) {
    static auto* const all = new std::map<const device*, std::unique_ptr<memory_pool>>;
    const std::lock_guard held(default_pools_mutex);
    auto& made = (*all)[&gpu];
    if (!made) {
        made = std::make_unique<memory_pool>();
        made->gpu = &gpu;
        the_driver().pools.add(made.get());
    }
    return *made;
}

memory_pool& current_pool(device& gpu) {
    {
        const std::lock_guard held(gpu.mutex);
        if (gpu.current_pool)
            return *gpu.current_pool;
    }
    return default_pool(gpu);
}

// Allocations and frees in a stream's order cannot be nodes of a graph here.
CUresult refuse_captured(stream& where) {
    if (where.owner->detours.load(std::memory_order_acquire) == 0)
        return CUDA_SUCCESS;
    const std::lock_guard held(where.owner->detour_mutex);
    return where.captures ? refuse_capture(where) : CUDA_SUCCESS;
}

CUresult allocate_from(memory_pool* named, CUdeviceptr* address, std::size_t bytes, CUstream handle) {
    return in_stream(handle, [&](stream& where) {
        context& owner = *where.owner;
        if (!address || bytes == 0)
            return CUDA_ERROR_INVALID_VALUE;
        if (const CUresult error = refuse_captured(where))
            return error;
        memory_pool& from = named ? *named : current_pool(*owner.gpu);
        if (from.gpu != owner.gpu)
            return CUDA_ERROR_INVALID_VALUE;
        {
            const std::lock_guard held(from.mutex);
            if (from.most_bytes != 0 && bytes > from.most_bytes - std::min(from.most_bytes, from.used))
                return CUDA_ERROR_OUT_OF_MEMORY;
            from.used += bytes;
            from.high = std::max(from.high, from.used);
        }
        if (const CUresult error = allocate(owner, bytes, *address)) {
            const std::lock_guard held(from.mutex);
            from.used -= bytes;
            return error;
        }
        const std::lock_guard held(owner.mutex);
        owner.pool_of[*address] = &from;
        return CUDA_SUCCESS;
    });
}

template <class Body>
CUresult of_pool(CUmemoryPool handle, Body&& body) noexcept {
    return guarded([&] {
        if (!the_driver().ready)
            return CUDA_ERROR_NOT_INITIALIZED;
        auto* const one = object_of<memory_pool>(the_driver().pools, handle);
        if (!one)
            return CUDA_ERROR_INVALID_VALUE;
        const std::lock_guard held(one->mutex);
        return body(*one);
    });
}

CUmemoryPool handle_of(memory_pool& pool) {
    return reinterpret_cast<CUmemoryPool>(&pool);
}

} // namespace

void release_freed(context& where) {
    while (!where.freed.empty()) {
        const freed_piece& oldest = where.freed.front();
        CUresult error = CUDA_SUCCESS;
        if (!oldest.behind->is_sent())
            return;
        const auto marker = oldest.behind->marker(error);
        if (marker && !marker->is_over())
            return;
        release_piece(where, oldest.address);
        where.freed.pop_front();
    }
}

void leave_pool(context& where, const address_space::piece& allocation) {
    const auto found = where.pool_of.find(allocation.address);
    if (found == where.pool_of.end())
        return;
    if (the_driver().pools.has(found->second)) { // it may be gone before what was allocated from it
        const std::lock_guard held(found->second->mutex);
        found->second->used -= allocation.bytes;
    }
    where.pool_of.erase(found);
}

KAGEMUSHA_EXPORT CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream where) {
    return allocate_from(nullptr, address, bytes, where);
}

KAGEMUSHA_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool handle,
                                                  CUstream where) {
    auto* const from = object_of<memory_pool>(the_driver().pools, handle);
    return from ? allocate_from(from, address, bytes, where) : CUDA_ERROR_INVALID_VALUE;
}

KAGEMUSHA_EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
    return in_stream(handle, [&](stream& where) {
        context& owner = *where.owner;
        if (const CUresult error = refuse_captured(where))
            return error;
        fence_work fence;
        {
            const std::lock_guard held(owner.mutex);
            const auto piece = owner.pieces.find(address);
            const bool twice = std::any_of(owner.freed.begin(), owner.freed.end(),
                                           [&](const freed_piece& one) { return one.address == address; });
            if (!piece || piece->address != address || twice)
                return CUDA_ERROR_INVALID_VALUE;
            owner.freed.push_back({address, fence.reached});
        }
        return submit(where, std::move(fence));
    });
}

KAGEMUSHA_ANSWERED CUresult cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* properties) {
    if (!handle || !properties || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED; // no other process, and no memory of the host
    return of_device(properties->location.id, [&](device& gpu) {
        auto made = std::make_unique<memory_pool>();
        made->gpu = &gpu;
        made->most_bytes = properties->maxSize;
        the_driver().pools.add(made.get());
        *handle = handle_of(*made.release());
        return CUDA_SUCCESS;
    });
}

// What was allocated from it stays until it is freed.
KAGEMUSHA_ANSWERED CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    return guarded([&] {
        auto* const dead = object_of<memory_pool>(the_driver().pools, handle);
        if (!dead || dead == &default_pool(*dead->gpu))
            return CUDA_ERROR_INVALID_VALUE;
        the_driver().pools.remove(dead);
        {
            const std::lock_guard held(dead->gpu->mutex);
            if (dead->gpu->current_pool == dead)
                dead->gpu->current_pool = nullptr;
        }
        delete dead;
        return CUDA_SUCCESS;
    });
}

// A pool keeps nothing: arenas are shared by all.
KAGEMUSHA_ANSWERED CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t) {
    return of_pool(handle, [](memory_pool&) { return CUDA_SUCCESS; });
}

KAGEMUSHA_ANSWERED CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                                  void* value) {
    return of_pool(handle, [&](memory_pool& one) {
        if (!value)
            return CUDA_ERROR_INVALID_VALUE;
        switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            one.reuse[attribute - 1] = *static_cast<const int*>(value) != 0;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
            one.threshold = *static_cast<const cuuint64_t*>(value);
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            if (*static_cast<const cuuint64_t*>(value) != 0)
                return CUDA_ERROR_INVALID_VALUE;
            one.high = one.used;
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
        }
    });
}

KAGEMUSHA_ANSWERED CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                                  void* value) {
    return of_pool(handle, [&](const memory_pool& one) {
        if (!value)
            return CUDA_ERROR_INVALID_VALUE;
        switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            *static_cast<int*>(value) = one.reuse[attribute - 1];
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
            *static_cast<cuuint64_t*>(value) = one.threshold;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
            *static_cast<cuuint64_t*>(value) = one.used;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            *static_cast<cuuint64_t*>(value) = one.high;
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
        }
    });
}

// Only its own device has access, and always.
KAGEMUSHA_ANSWERED CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* descriptions,
                                               size_t count) {
    return of_pool(handle, [&](const memory_pool& one) {
        if (count > 0 && !descriptions)
            return CUDA_ERROR_INVALID_VALUE;
        for (std::size_t i = 0; i < count; ++i) {
            const bool own = descriptions[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                             descriptions[i].location.id == one.gpu->number;
            if (!own || descriptions[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
                return own ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
        }
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle,
                                               CUmemLocation* location) {
    return of_pool(handle, [&](const memory_pool& one) {
        if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
            return CUDA_ERROR_INVALID_VALUE;
        *flags = location->id == one.gpu->number ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                 : CU_MEM_ACCESS_FLAGS_PROT_NONE;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* handle, CUdevice number) {
    return of_device(number, [&](device& gpu) {
        if (!handle)
            return CUDA_ERROR_INVALID_VALUE;
        *handle = handle_of(default_pool(gpu));
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuDeviceGetMemPool(CUmemoryPool* handle, CUdevice number) {
    return of_device(number, [&](device& gpu) {
        if (!handle)
            return CUDA_ERROR_INVALID_VALUE;
        *handle = handle_of(current_pool(gpu));
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuDeviceSetMemPool(CUdevice number, CUmemoryPool handle) {
    return of_device(number, [&](device& gpu) {
        auto* const one = object_of<memory_pool>(the_driver().pools, handle);
        if (!one || one->gpu != &gpu)
            return CUDA_ERROR_INVALID_VALUE;
        const std::lock_guard held(gpu.mutex);
        gpu.current_pool = one;
        return CUDA_SUCCESS;
    });
}

} // namespace kagemusha::cuda
