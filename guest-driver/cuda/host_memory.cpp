// SPDX-License-Identifier: GPL-2.0-or-later
//
// Memory of the program that it calls pinned, what is known about a pointer, and copies between devices. Pinned
// memory is ordinary memory of the process here: a copy takes or writes it while the program goes on, as it
// promised to leave it alone. How kernels reach it: pinned.hpp.
#include "pinned.hpp"

#include "lasting.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace kagemusha::cuda {

std::mutex pinned_mutex;
std::atomic<std::uint64_t> pinned_low{0}, pinned_high{0};

namespace {

constexpr std::size_t page_bytes = 4096;

auto& all_pinned = lasting<std::map<std::uint64_t, pinned>>();        // by the program's address
auto& program_of = lasting<std::map<std::uint64_t, std::uint64_t>>(); // by a kernel's

template <class Map>
typename Map::iterator last_before(Map& in, std::uint64_t address) {
    const auto found = in.upper_bound(address);
    return found == in.begin() ? in.end() : std::prev(found);
}

// Addresses that kernels are given: as far into a page as the program's memory is. None left: kernels cannot reach
// this piece, and copies still can.
void reserve_addresses(pinned& one, std::uint64_t into_page) {
    const std::uint64_t bytes =
        (into_page + one.bytes + VGPU_ARENA_ALIGNMENT - 1) / VGPU_ARENA_ALIGNMENT * VGPU_ARENA_ALIGNMENT;
    // With a gap behind it, as all arenas.
    const auto address = one.gpu->reserve_last(bytes + VGPU_ARENA_ALIGNMENT);
    if (!address)
        return;
    one.reserved = *address;
    one.reserved_bytes = bytes;
    one.on_gpu = *address + into_page;
}

// pinned_mutex is held.
void add(pinned one) {
    if (one.on_gpu) {
        program_of[one.on_gpu] = one.program;
        const std::uint64_t low = pinned_low.load(std::memory_order_relaxed);
        pinned_low.store(low ? std::min(low, one.on_gpu) : one.on_gpu, std::memory_order_relaxed);
        raise(pinned_high, one.on_gpu + one.bytes);
    }
    all_pinned.emplace(one.program, std::move(one));
}

// Memory at the address that kernels are given. Where the process has something else there: elsewhere.
void* make_memory(pinned& one, std::size_t room) {
    if (one.on_gpu) {
        void* const wanted = reinterpret_cast<void*>(one.on_gpu);
        void* const made = mmap(wanted, room, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (made == wanted) {
            one.is_mapping = true;
            return made;
        }
        if (made != MAP_FAILED)
            munmap(made, room);
    }
    return std::aligned_alloc(page_bytes, room);
}

std::size_t room_of(std::size_t bytes) {
    return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

// pinned_mutex is held, and nothing is in flight.
void end(std::map<std::uint64_t, pinned>::iterator found) {
    pinned& one = found->second;
    hide_pinned(one);
    if (one.on_gpu) {
        program_of.erase(one.on_gpu);
        one.gpu->unreserve(one.reserved);
    }
    void* const memory = reinterpret_cast<void*>(one.program);
    if (one.is_mapping)
        munmap(memory, room_of(one.bytes));
    else if (!one.registered)
        std::free(memory);
    all_pinned.erase(found);
}

CUresult forget(void* memory, bool registered, CUresult unknown) {
    return in_context([&](context& where) {
        const auto address = reinterpret_cast<std::uint64_t>(memory);
        const auto find = [&] {
            const auto found = all_pinned.find(address);
            return found != all_pinned.end() && found->second.registered == registered ? found
                                                                                       : all_pinned.end();
        };
        context* home = nullptr;
        {
            const std::lock_guard held(pinned_mutex);
            const auto found = find();
            if (found == all_pinned.end())
                return unknown;
            home = found->second.home;
        }
        // Copies may be on their way, and kernels may run; what they wrote is the program's when this returns.
        where.synchronise();
        if (home && home != &where)
            home->synchronise();
        const std::lock_guard held(pinned_mutex);
        if (const auto found = find(); found != all_pinned.end())
            end(found);
        return CUDA_SUCCESS;
    });
}

} // namespace

pinned* find_pinned(std::uint64_t address) {
    if (const auto found = last_before(all_pinned, address);
        found != all_pinned.end() && address - found->first < found->second.bytes)
        return &found->second;
    const auto found = last_before(program_of, address);
    if (found == program_of.end())
        return nullptr;
    pinned& one = all_pinned.at(found->second);
    return address - one.on_gpu < one.bytes ? &one : nullptr;
}

void for_each_pinned(const std::function<void(pinned&)>& body) {
    for (auto& [address, one] : all_pinned)
        body(one);
}

std::uint64_t program_address(const pinned& in, std::uint64_t address) {
    return address - in.program < in.bytes ? address : address - in.on_gpu + in.program;
}

std::uint64_t gpu_address(const pinned& in, std::uint64_t address) {
    return program_address(in, address) - in.program + in.on_gpu;
}

bool is_pinned(const void* memory, std::size_t bytes) {
    const auto address = reinterpret_cast<std::uint64_t>(memory);
    const std::lock_guard held(pinned_mutex);
    const auto found = last_before(all_pinned, address);
    return found != all_pinned.end() && address - found->first < found->second.bytes &&
           bytes <= found->second.bytes - (address - found->first);
}

KAGEMUSHA_ANSWERED CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned int flags) {
    return in_context([&](context& where) {
        constexpr unsigned known =
            CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
        if (!memory || bytes == 0 || (flags & ~known))
            return CUDA_ERROR_INVALID_VALUE;
        if (bytes > ~std::size_t{0} / 2)
            return CUDA_ERROR_OUT_OF_MEMORY;
        pinned one;
        one.bytes = bytes;
        one.flags = flags;
        one.owner = &where;
        one.gpu = where.gpu;
        reserve_addresses(one, 0);
        void* const made = make_memory(one, room_of(bytes));
        if (!made) {
            if (one.on_gpu)
                one.gpu->unreserve(one.reserved);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        one.program = reinterpret_cast<std::uint64_t>(made);
        const std::lock_guard held(pinned_mutex);
        add(std::move(one));
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

// It stays where it is, and kernels are given another address (CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM is 0).
KAGEMUSHA_ANSWERED CUresult cuMemHostRegister_v2(void* memory, size_t bytes, unsigned int flags) {
    return in_context([&](context& where) {
        constexpr unsigned known =
            CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
        const auto address = reinterpret_cast<std::uint64_t>(memory);
        if (flags & CU_MEMHOSTREGISTER_IOMEMORY)
            return CUDA_ERROR_NOT_SUPPORTED;
        if (!memory || bytes == 0 || (flags & ~known) || bytes > ~std::uint64_t{0} / 2 - address)
            return CUDA_ERROR_INVALID_VALUE;
        const std::lock_guard held(pinned_mutex);
        const auto next = all_pinned.lower_bound(address);
        if (find_pinned(address) || (next != all_pinned.end() && next->first < address + bytes))
            return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
        pinned one;
        one.program = address;
        one.bytes = bytes;
        one.flags = flags;
        one.registered = true;
        one.owner = &where;
        one.gpu = where.gpu;
        reserve_addresses(one, address % page_bytes);
        add(std::move(one));
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuMemHostUnregister(void* memory) {
    return forget(memory, true, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

KAGEMUSHA_ANSWERED CUresult cuMemHostGetFlags(unsigned int* flags, void* memory) {
    return in_context([&](context&) {
        const std::lock_guard held(pinned_mutex);
        const pinned* const one = find_pinned(reinterpret_cast<std::uint64_t>(memory));
        if (!flags || !one)
            return CUDA_ERROR_INVALID_VALUE;
        *flags = one->flags;
        return CUDA_SUCCESS;
    });
}

// The program may put the address into memory, where a kernel finds it: shown from here on, and if there is no room
// for it on the GPU, that is said now.
KAGEMUSHA_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* memory, unsigned int flags) {
    return in_context([&](context& where) {
        const auto address = reinterpret_cast<std::uint64_t>(memory);
        const std::lock_guard held(pinned_mutex);
        pinned* const one = find_pinned(address);
        if (!out || flags != 0 || !one)
            return CUDA_ERROR_INVALID_VALUE;
        if (one->gpu != where.gpu)
            return CUDA_ERROR_NOT_SUPPORTED; // each GPU is alone
        const CUresult error = show_pinned(*one, where);
        if (!error)
            *out = gpu_address(*one, address);
        return error;
    });
}

// ---- pointers

namespace {

struct known_pointer {
    context* owner = nullptr; // null: it ended
    device* gpu = nullptr;
    bool on_gpu = false;
    std::uint64_t first = 0, bytes = 0;
    std::uint64_t for_program = 0, for_kernels = 0; // the address as each has it; 0: it has none
    memory_pool* pool = nullptr;
};

bool look_up(context& where, std::uint64_t address, known_pointer& out) {
    out.owner = &where;
    out.gpu = where.gpu;
    {
        const std::lock_guard held(where.mutex);
        auto piece = where.pieces.find(address);
        if (!piece)
            piece = where.find_mapping(address);
        if (!piece)
            piece = where.find_variable(address);
        if (piece) {
            out.on_gpu = true;
            out.for_kernels = address;
            out.first = piece->address;
            out.bytes = piece->bytes;
            const auto pool = where.pool_of.find(piece->address);
            out.pool = pool != where.pool_of.end() ? pool->second : nullptr;
            return true;
        }
    }
    const std::lock_guard held(pinned_mutex);
    const pinned* const one = find_pinned(address);
    if (!one)
        return false;
    out.owner = one->owner;
    out.gpu = one->gpu;
    out.for_program = program_address(*one, address);
    out.for_kernels = one->on_gpu ? gpu_address(*one, address) : 0;
    out.first = address - out.for_program + one->program;
    out.bytes = one->bytes;
    return true;
}

template <class Value>
CUresult put(void* out, Value value) {
    std::memcpy(out, &value, sizeof value);
    return CUDA_SUCCESS;
}

// `one` null: of a pointer that is nobody's, as cuPointerGetAttributes tells it.
CUresult tell(const known_pointer* one, CUpointer_attribute attribute, void* out) {
    const bool known = one != nullptr, on_gpu = known && one->on_gpu;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        return put(out, known ? reinterpret_cast<CUcontext>(one->owner) : nullptr);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        return put(out, !known ? 0u : on_gpu ? 2u : 1u); // CU_MEMORYTYPE_DEVICE, _HOST
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        put(out, known ? one->for_kernels : 0);
        return known && one->for_kernels == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        put(out, known ? one->for_program : 0);
        return on_gpu ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        return put(out, static_cast<unsigned char>(0));
    case CU_POINTER_ATTRIBUTE_MAPPED:
        return put(out, static_cast<unsigned char>(known && one->for_kernels != 0));
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        return put(out, known ? static_cast<unsigned long long>(one->first) : 0ull);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return put(out, known ? one->gpu->number : -2);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        return put(out, known ? one->first : 0);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        return put(out, known ? static_cast<std::size_t>(one->bytes) : std::size_t{0});
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        return put(out, 0ull);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return put(out,
                   static_cast<int>(known && one->for_kernels != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0));
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
        return tell(&known, attribute, value);
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
                tell(found ? &known : nullptr, attributes[i], values[i]);
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
