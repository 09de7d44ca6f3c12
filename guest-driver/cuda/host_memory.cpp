// SPDX-License-Identifier: GPL-2.0-or-later
//
// Memory of the program that it calls pinned, what is known about a pointer, and copies between devices. Pinned
// memory is ordinary memory of the process here: a copy takes or writes it while the program goes on, as it
// promised to leave it alone. Kernels cannot reach it, and CAN_MAP_HOST_MEMORY says so.
#include "driver.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace kagemusha::cuda {
namespace {

constexpr std::size_t page_bytes = 4096;

struct pinned {
    std::size_t bytes = 0;
    unsigned flags = 0;
    bool registered = false; // the program's own, not made here
    context* owner = nullptr;
};

std::mutex pinned_mutex;
std::map<std::uintptr_t, pinned> all_pinned;

// The piece that an address lies in. pinned_mutex is held.
const pinned* find(std::uintptr_t address, std::uintptr_t& first) {
    auto found = all_pinned.upper_bound(address);
    if (found == all_pinned.begin())
        return nullptr;
    found = std::prev(found);
    first = found->first;
    return address - first < found->second.bytes ? &found->second : nullptr;
}

CUresult forget(void* memory, bool registered, CUresult unknown) {
    return in_context([&](context& where) {
        const auto address = reinterpret_cast<std::uintptr_t>(memory);
        {
            const std::lock_guard held(pinned_mutex);
            const auto found = all_pinned.find(address);
            if (found == all_pinned.end() || found->second.registered != registered)
                return unknown;
        }
        where.synchronise(); // copies may be on their way
        const std::lock_guard held(pinned_mutex);
        if (all_pinned.erase(address) != 0 && !registered)
            std::free(memory);
        return CUDA_SUCCESS;
    });
}

} // namespace

bool is_pinned(const void* memory, std::size_t bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    std::uintptr_t first = 0;
    const std::lock_guard held(pinned_mutex);
    const pinned* const one = find(address, first);
    return one && bytes <= one->bytes - (address - first);
}

KAGEMUSHA_ANSWERED CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned int flags) {
    return in_context([&](context& where) {
        constexpr unsigned known =
            CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
        if (!memory || bytes == 0 || (flags & ~known))
            return CUDA_ERROR_INVALID_VALUE;
        if (bytes > ~std::size_t{0} - page_bytes)
            return CUDA_ERROR_OUT_OF_MEMORY;
        const std::size_t room = (bytes + page_bytes - 1) / page_bytes * page_bytes;
        void* const made = std::aligned_alloc(page_bytes, room);
        if (!made)
            return CUDA_ERROR_OUT_OF_MEMORY;
        const std::lock_guard held(pinned_mutex);
        all_pinned[reinterpret_cast<std::uintptr_t>(made)] = {bytes, flags, false, &where};
        *memory = made;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuMemAllocHost_v2(void** memory, size_t bytes) {
    return cuMemHostAlloc(memory, bytes, 0);
}

KAGEMUSHA_EXPORT CUresult cuMemFreeHost(void* memory) {
    return forget(memory, false, CUDA_ERROR_INVALID_VALUE);
}

KAGEMUSHA_ANSWERED CUresult cuMemHostRegister_v2(void* memory, size_t bytes, unsigned int flags) {
    return in_context([&](context& where) {
        constexpr unsigned known =
            CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
        const auto address = reinterpret_cast<std::uintptr_t>(memory);
        if (flags & CU_MEMHOSTREGISTER_IOMEMORY)
            return CUDA_ERROR_NOT_SUPPORTED;
        if (!memory || bytes == 0 || (flags & ~known) || bytes > ~std::uintptr_t{0} - address)
            return CUDA_ERROR_INVALID_VALUE;
        const std::lock_guard held(pinned_mutex);
        const auto next = all_pinned.lower_bound(address);
        std::uintptr_t first = 0;
        if (find(address, first) || (next != all_pinned.end() && next->first < address + bytes))
            return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
        all_pinned[address] = {bytes, flags, true, &where};
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuMemHostUnregister(void* memory) {
    return forget(memory, true, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

KAGEMUSHA_ANSWERED CUresult cuMemHostGetFlags(unsigned int* flags, void* memory) {
    return in_context([&](context&) {
        std::uintptr_t first = 0;
        const std::lock_guard held(pinned_mutex);
        const pinned* const one = find(reinterpret_cast<std::uintptr_t>(memory), first);
        if (!flags || !one)
            return CUDA_ERROR_INVALID_VALUE;
        *flags = one->flags;
        return CUDA_SUCCESS;
    });
}

// A kernel of the host's GPU has no way to the guest's memory.
KAGEMUSHA_REFUSED CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr*, void*, unsigned int) {
    return in_context([](context&) { return CUDA_ERROR_NOT_SUPPORTED; });
}

// ---- pointers

namespace {

struct known_pointer {
    context* owner = nullptr;
    bool on_gpu = false;
    std::uint64_t first = 0, bytes = 0;
    memory_pool* pool = nullptr;
};

bool look_up(context& where, std::uint64_t address, known_pointer& out) {
    out.owner = &where;
    {
        const std::lock_guard held(where.mutex);
        auto piece = where.pieces.find(address);
        if (!piece)
            piece = where.find_mapping(address);
        if (!piece)
            piece = where.find_variable(address);
        if (piece) {
            out.on_gpu = true;
            out.first = piece->address;
            out.bytes = piece->bytes;
            const auto pool = where.pool_of.find(piece->address);
            out.pool = pool != where.pool_of.end() ? pool->second : nullptr;
            return true;
        }
    }
    std::uintptr_t first = 0;
    const std::lock_guard held(pinned_mutex);
    const pinned* const one = find(address, first);
    if (!one)
        return false;
    out.owner = one->owner;
    out.first = first;
    out.bytes = one->bytes;
    return true;
}

template <class Value>
CUresult put(void* out, Value value) {
    std::memcpy(out, &value, sizeof value);
    return CUDA_SUCCESS;
}

// `one` null: of a pointer that is nobody's, as cuPointerGetAttributes tells it.
CUresult tell(const known_pointer* one, CUpointer_attribute attribute, std::uint64_t address, void* out) {
    const bool known = one != nullptr, on_gpu = known && one->on_gpu;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        return put(out, known ? reinterpret_cast<CUcontext>(one->owner) : nullptr);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        return put(out, !known ? 0u : on_gpu ? 2u : 1u); // CU_MEMORYTYPE_DEVICE, _HOST
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        return put(out, on_gpu ? address : 0), on_gpu || !known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        return put(out, known && !on_gpu ? address : 0), on_gpu ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        return put(out, static_cast<unsigned char>(0));
    case CU_POINTER_ATTRIBUTE_MAPPED:
        return put(out, static_cast<unsigned char>(on_gpu));
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        return put(out, known ? static_cast<unsigned long long>(one->first) : 0ull);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return put(out, known ? one->owner->gpu->number : -2);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        return put(out, known ? one->first : 0);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        return put(out, known ? static_cast<std::size_t>(one->bytes) : std::size_t{0});
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        return put(out, 0ull);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return put(out, static_cast<int>(on_gpu ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        return put(out, known ? reinterpret_cast<CUmemoryPool>(one->pool) : nullptr);
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

} // namespace

KAGEMUSHA_ANSWERED CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute,
                                                  CUdeviceptr address) {
    return in_context([&](context& where) {
        known_pointer known;
        if (!value || !look_up(where, address, known))
            return CUDA_ERROR_INVALID_VALUE;
        return tell(&known, attribute, address, value);
    });
}

KAGEMUSHA_ANSWERED CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes,
                                                   void** values, CUdeviceptr address) {
    return in_context([&](context& where) {
        known_pointer known;
        if (count == 0 || !attributes || !values)
            return CUDA_ERROR_INVALID_VALUE;
        const bool found = look_up(where, address, known);
        for (unsigned i = 0; i < count; ++i)
            if (values[i])
                tell(found ? &known : nullptr, attributes[i], address, values[i]);
        return CUDA_SUCCESS;
    });
}

// Copies of the GPU's memory are in order anyway.
KAGEMUSHA_ANSWERED CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                                  CUdeviceptr address) {
    return in_context([&](context& where) {
        known_pointer known;
        return value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && look_up(where, address, known)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_INVALID_VALUE;
    });
}

// ---- other devices: each is alone

KAGEMUSHA_ANSWERED CUresult cuDeviceCanAccessPeer(int* can, CUdevice number, CUdevice peer) {
    if (!the_driver().ready)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!device_of(number) || !device_of(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!can)
        return CUDA_ERROR_INVALID_VALUE;
    *can = 0;
    return CUDA_SUCCESS;
}

KAGEMUSHA_ANSWERED CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute,
                                                    CUdevice source, CUdevice destination) {
    if (attribute < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ||
        attribute > CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED || source == destination)
        return CUDA_ERROR_INVALID_VALUE;
    return cuDeviceCanAccessPeer(value, source, destination);
}

KAGEMUSHA_REFUSED CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    return in_context([&](const context& where) {
        const auto* const other = object_of<context>(the_driver().contexts, peer);
        if (!other || other == &where)
            return CUDA_ERROR_INVALID_CONTEXT;
        return flags != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    });
}

KAGEMUSHA_REFUSED CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    return in_context([&](context&) {
        return object_of<context>(the_driver().contexts, peer) ? CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
                                                               : CUDA_ERROR_INVALID_CONTEXT;
    });
}

KAGEMUSHA_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                            CUcontext from_context, size_t bytes, CUstream where) {
    return guarded([&] {
        auto* const into = object_of<context>(the_driver().contexts, to_context);
        auto* const out_of = object_of<context>(the_driver().contexts, from_context);
        if (!into || !out_of)
            return CUDA_ERROR_INVALID_CONTEXT;
        if (into == out_of)
            return cuMemcpyDtoDAsync_v2(to, from, bytes, where);
        // Between two of them the bytes come through here.
        std::vector<std::byte> between(bytes);
        CUcontext popped = nullptr;
        CUresult error = cuStreamSynchronize(where);
        for (const bool reads : {true, false}) {
            if (error || (error = cuCtxPushCurrent_v2(reads ? from_context : to_context)))
                return error;
            error = reads ? cuMemcpyDtoH_v2(between.data(), from, bytes)
                          : cuMemcpyHtoD_v2(to, between.data(), bytes);
            cuCtxPopCurrent_v2(&popped);
        }
        return error;
    });
}

KAGEMUSHA_EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                       CUcontext from_context, size_t bytes) {
    return cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, nullptr);
}

} // namespace kagemusha::cuda
