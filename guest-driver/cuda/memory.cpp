// SPDX-License-Identifier: GPL-2.0-or-later
//
// GPU memory. This side chooses every address: it asks for arenas at addresses of its choice and hands out
// pieces of them, so most allocations are no call, and a pointer means the same on every host that runs this
// guest.
#include "driver.hpp"

#include "guest-driver/opencl/transfer.hpp"

#include <algorithm>

namespace kagemusha::cuda {
namespace {

constexpr std::uint64_t arena_bytes = std::uint64_t{32} << 20;

std::uint64_t rounded(std::uint64_t bytes) {
    return (bytes + VGPU_ARENA_ALIGNMENT - 1) / VGPU_ARENA_ALIGNMENT * VGPU_ARENA_ALIGNMENT;
}

/// Room for at least so many bytes. context::mutex is held.
CUresult add_arena(context& where, std::uint64_t wanted) {
    device& gpu = *where.gpu;
    if (wanted > gpu.known.memory_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const std::uint64_t bytes = std::max(arena_bytes, rounded(wanted));
    std::optional<std::uint64_t> address;
    {
        const std::lock_guard held(gpu.mutex);
        if (gpu.used_bytes + bytes <= gpu.known.memory_bytes)
            // With a gap behind it: an allocation must not lie in two arenas.
            address = gpu.arenas.allocate(bytes + VGPU_ARENA_ALIGNMENT);
        if (!address)
            return CUDA_ERROR_OUT_OF_MEMORY;
        gpu.used_bytes += bytes;
    }
    auto arena =
        opencl::make_object<opencl::memory>(where.native, CL_MEM_OBJECT_BUFFER, cl_mem_flags{0}, bytes);
    CUresult error = CUDA_ERROR_OUT_OF_MEMORY;
    if (arena) {
        auto command = opencl::make_command<vgpu_cmd_create_arena>(VGPU_CMD_CREATE_ARENA);
        command.id = arena->id();
        command.context = where.native->id();
        command.address = *address;
        command.bytes = bytes;
        error = cuda_result(where.native->link().call(opencl::make_outgoing(command)));
    }
    if (error) {
        const std::lock_guard held(gpu.mutex);
        gpu.arenas.release(*address);
        gpu.used_bytes -= bytes;
        return error;
    }
    arena->set_created();
    where.pieces.add(*address, bytes);
    where.arenas.emplace(*address, std::move(arena));
    return CUDA_SUCCESS;
}

/// Large arenas go back to the host when nothing is in them. context::mutex is held.
void drop_arena_of(context& where, std::uint64_t address) {
    auto found = where.arenas.upper_bound(address);
    if (found == where.arenas.begin())
        return;
    found = std::prev(found);
    const std::uint64_t bytes = found->second->bytes();
    if (bytes <= arena_bytes || !where.pieces.remove(found->first, bytes))
        return;
    device& gpu = *where.gpu;
    const std::uint64_t base = found->first;
    where.arenas.erase(found);
    const std::lock_guard held(gpu.mutex);
    gpu.arenas.release(base);
    gpu.used_bytes -= bytes;
}

bool is_wait_free(std::size_t bytes) {
    return bytes <= opencl::max_inline_bytes;
}

/// Between the program's memory and the GPU's. CUDA's promise for memory that is not pinned, and none is
/// here: the bytes are taken, or there, when the function returns.
CUresult transfer(stream& where, opencl::direction way, std::uint64_t address, void* host, std::size_t bytes,
                  bool waits) {
    if (bytes == 0)
        return CUDA_SUCCESS;
    std::uint64_t offset = 0;
    opencl::memory* const arena = where.owner->arena_of(address, bytes, offset);
    if (!arena || !host)
        return CUDA_ERROR_INVALID_VALUE;
    const sending counted(where);
    const bool write = way == opencl::direction::to_device;
    const bool blocking = waits || !write || !is_wait_free(bytes);
    opencl::enqueueing call(opencl::to_handle<cl_command_queue>(where.native.get()),
                            write ? CL_COMMAND_WRITE_BUFFER : CL_COMMAND_READ_BUFFER, 0, nullptr, nullptr,
                            blocking);
    if (call.error() != CL_SUCCESS)
        return cuda_result(call.error());
    return cuda_result(opencl::transfer_buffer(call, *arena, way, offset, bytes, host));
}

CUresult copy(stream& where, CUdeviceptr to, CUdeviceptr from, std::size_t bytes, bool waits) {
    if (bytes == 0)
        return CUDA_SUCCESS;
    context& owner = *where.owner;
    auto command = opencl::make_command<vgpu_cmd_copy_buffer>(VGPU_CMD_COPY_BUFFER);
    std::uint64_t source_offset = 0, destination_offset = 0;
    opencl::memory* const source = owner.arena_of(from, bytes, source_offset);
    opencl::memory* const destination = owner.arena_of(to, bytes, destination_offset);
    if (!source || !destination)
        return CUDA_ERROR_INVALID_VALUE;
    command.source = source->id();
    command.destination = destination->id();
    command.source_offset = source_offset;
    command.destination_offset = destination_offset;
    command.bytes = bytes;
    const sending counted(where);
    opencl::enqueueing call(opencl::to_handle<cl_command_queue>(where.native.get()), CL_COMMAND_COPY_BUFFER,
                            0, nullptr, nullptr, waits);
    return cuda_result(call.error() != CL_SUCCESS ? call.error() : call.send(command));
}

template <class Value>
CUresult set(CUstream handle, CUdeviceptr to, Value value, std::size_t count, bool waits) {
    return in_stream(handle, [&](stream& where) {
        if (count == 0)
            return CUDA_SUCCESS;
        std::uint64_t offset = 0;
        opencl::memory* const arena = count <= ~std::uint64_t{0} / sizeof value
                                          ? where.owner->arena_of(to, count * sizeof value, offset)
                                          : nullptr;
        if (!arena || to % sizeof value != 0)
            return CUDA_ERROR_INVALID_VALUE;
        auto command = opencl::make_command<vgpu_cmd_fill_buffer>(VGPU_CMD_FILL_BUFFER);
        command.buffer = arena->id();
        command.offset = offset;
        command.bytes = count * sizeof value;
        command.pattern_bytes = sizeof value;
        std::memcpy(command.pattern, &value, sizeof value);
        const sending counted(where);
        opencl::enqueueing call(opencl::to_handle<cl_command_queue>(where.native.get()),
                                CL_COMMAND_FILL_BUFFER, 0, nullptr, nullptr, waits);
        return cuda_result(call.error() != CL_SUCCESS ? call.error() : call.send(command));
    });
}

/// cuMemcpy: each of the two may be the program's memory or the GPU's, and the addresses tell.
CUresult copy_any(CUstream handle, CUdeviceptr to, CUdeviceptr from, std::size_t bytes, bool waits) {
    return in_stream(handle, [&](stream& where) {
        std::uint64_t offset = 0;
        const bool to_gpu = where.owner->arena_of(to, bytes, offset);
        const bool from_gpu = where.owner->arena_of(from, bytes, offset);
        if (to_gpu && from_gpu)
            return copy(where, to, from, bytes, waits);
        if (to_gpu)
            return transfer(where, opencl::direction::to_device, to, reinterpret_cast<void*>(from), bytes,
                            waits);
        if (from_gpu)
            return transfer(where, opencl::direction::to_host, from, reinterpret_cast<void*>(to), bytes,
                            waits);
        return CUDA_ERROR_INVALID_VALUE;
    });
}

} // namespace

opencl::memory* context::arena_of(std::uint64_t address, std::uint64_t bytes, std::uint64_t& offset) {
    const std::lock_guard held(mutex);
    auto found = arenas.upper_bound(address);
    if (found == arenas.begin())
        return nullptr;
    found = std::prev(found);
    offset = address - found->first;
    const std::uint64_t size = found->second->bytes();
    return offset < size && bytes <= size - offset ? found->second.get() : nullptr;
}

KAGEMUSHA_EXPORT CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
    return in_context([&](context& where) {
        if (!free_bytes || !total_bytes)
            return CUDA_ERROR_INVALID_VALUE;
        const std::lock_guard held(where.gpu->mutex);
        *total_bytes = where.gpu->known.memory_bytes;
        *free_bytes = *total_bytes - where.gpu->used_bytes;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
    return in_context([&](context& where) {
        if (!address || bytes == 0)
            return CUDA_ERROR_INVALID_VALUE;
        const std::lock_guard held(where.mutex);
        auto piece = where.pieces.allocate(bytes);
        if (!piece) {
            if (const CUresult error = add_arena(where, bytes))
                return error;
            piece = where.pieces.allocate(bytes);
        }
        *address = *piece;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
    return in_context([&](context& where) {
        if (address == 0)
            return CUDA_SUCCESS;
        {
            const std::lock_guard held(where.mutex);
            const auto piece = where.pieces.find(address);
            if (!piece || piece->address != address)
                return CUDA_ERROR_INVALID_VALUE;
        }
        // What is in flight may still use it, and the next allocation may be this piece.
        if (const CUresult error = where.synchronise())
            return error;
        const std::lock_guard held(where.mutex);
        if (!where.pieces.release(address))
            return CUDA_ERROR_INVALID_VALUE; // freed by another thread meanwhile
        drop_arena_of(where, address);
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
    return in_context([&](context& where) {
        const std::lock_guard held(where.mutex);
        auto piece = where.pieces.find(address);
        if (!piece && address - VGPU_ARENA_BASE >= VGPU_ARENA_RANGE_BYTES) {
            auto found = where.arenas.upper_bound(address); // a variable?
            if (found != where.arenas.begin() &&
                address - std::prev(found)->first < std::prev(found)->second->bytes())
                piece = {std::prev(found)->first, std::prev(found)->second->bytes()};
        }
        if (!piece)
            return CUDA_ERROR_NOT_FOUND;
        if (base)
            *base = piece->address;
        if (bytes)
            *bytes = piece->bytes;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy_any(nullptr, to, from, bytes, true);
}
KAGEMUSHA_EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream where) {
    return copy_any(where, to, from, bytes, false);
}
KAGEMUSHA_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
    return in_stream(nullptr, [&](stream& where) {
        return transfer(where, opencl::direction::to_device, to, const_cast<void*>(from), bytes, true);
    });
}
KAGEMUSHA_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes,
                                               CUstream handle) {
    return in_stream(handle, [&](stream& where) {
        return transfer(where, opencl::direction::to_device, to, const_cast<void*>(from), bytes, false);
    });
}
KAGEMUSHA_EXPORT CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
    return in_stream(nullptr, [&](stream& where) {
        return transfer(where, opencl::direction::to_host, from, to, bytes, true);
    });
}
KAGEMUSHA_EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream handle) {
    return in_stream(handle, [&](stream& where) {
        return transfer(where, opencl::direction::to_host, from, to, bytes, true);
    });
}
KAGEMUSHA_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return in_stream(nullptr, [&](stream& where) { return copy(where, to, from, bytes, false); });
}
KAGEMUSHA_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                               CUstream handle) {
    return in_stream(handle, [&](stream& where) { return copy(where, to, from, bytes, false); });
}

KAGEMUSHA_EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    return set(nullptr, to, value, count, false);
}
KAGEMUSHA_EXPORT CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
    return set(nullptr, to, value, count, false);
}
KAGEMUSHA_EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count) {
    return set(nullptr, to, value, count, false);
}
KAGEMUSHA_EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream where) {
    return set(where, to, value, count, false);
}
KAGEMUSHA_EXPORT CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count,
                                           CUstream where) {
    return set(where, to, value, count, false);
}
KAGEMUSHA_EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream where) {
    return set(where, to, value, count, false);
}

} // namespace kagemusha::cuda
