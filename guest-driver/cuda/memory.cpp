// SPDX-License-Identifier: GPL-2.0-or-later
//
// GPU memory. This side chooses every address: it asks for arenas at addresses of its choice and hands out
// pieces of them, so most allocations are no call, and a pointer means the same on every host that runs this
// guest.
#include "driver.hpp"
#include "node_work.hpp"
#include "pinned.hpp"

#include "guest-driver/opencl/transfer.hpp"

#include <algorithm>

namespace kagemusha::cuda {
namespace {

constexpr std::uint64_t arena_bytes = std::uint64_t{32} << 20;

std::uint64_t rounded(std::uint64_t bytes) {
    return (bytes + VGPU_ARENA_ALIGNMENT - 1) / VGPU_ARENA_ALIGNMENT * VGPU_ARENA_ALIGNMENT;
}

// Room for at least so many bytes. context::mutex is held.
CUresult add_arena(context& where, std::uint64_t wanted) {
    if (wanted > where.gpu->known.memory_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const std::uint64_t bytes = std::max(arena_bytes, rounded(wanted));
    // With a gap behind it: an allocation must not lie in two arenas.
    const auto address = where.gpu->reserve(bytes + VGPU_ARENA_ALIGNMENT);
    if (!address)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (const CUresult error = make_arena(where, *address, bytes)) {
        where.gpu->unreserve(*address);
        return error;
    }
    where.pieces.add(*address, bytes);
    return CUDA_SUCCESS;
}

// Large arenas go back to the host when nothing is in them. context::mutex is held.
void drop_arena_of(context& where, std::uint64_t address) {
    auto found = where.arenas.upper_bound(address);
    if (found == where.arenas.begin())
        return;
    found = std::prev(found);
    const std::uint64_t bytes = found->second->bytes();
    if (bytes <= arena_bytes || !where.pieces.remove(found->first, bytes))
        return;
    const std::uint64_t base = found->first;
    end_arena(where, base);
    where.gpu->unreserve(base);
}

bool is_freed(const context& where, std::uint64_t address) {
    return std::any_of(where.freed.begin(), where.freed.end(),
                       [&](const freed_piece& one) { return one.address == address; });
}

// Calls for each piece of a range that lies in one memory object: memory that a program mapped piece by piece
// is several. An error if a part of it is nobody's.
template <class Body>
CUresult for_each_piece(context& where, std::uint64_t address, std::uint64_t bytes, Body&& body) {
    for (std::uint64_t done = 0; done < bytes;) {
        std::uint64_t offset = 0;
        const opencl::ref<opencl::memory> in = where.arena_of(address + done, offset);
        if (!in)
            return CUDA_ERROR_INVALID_VALUE;
        const std::uint64_t here = std::min(bytes - done, in->bytes() - offset);
        if (const CUresult error = body(*in, offset, done, here))
            return error;
        done += here;
    }
    return CUDA_SUCCESS;
}

// Between the program's memory and the GPU's. CUDA's promise for memory that is not pinned: the bytes are
// taken, or there, when the function returns.
CUresult transfer(stream& where, opencl::direction way, std::uint64_t address, std::byte* host,
                  std::uint64_t bytes, bool waits) {
    const bool write = way == opencl::direction::to_device;
    const bool taken = write && bytes <= opencl::max_inline_bytes;
    const bool blocking = waits || !(taken || is_pinned(host, bytes));
    const queue_place before = where.place();
    const CUresult error = for_each_piece(
        *where.owner, address, bytes, [&](opencl::memory& in, auto offset, auto done, auto here) {
            const sending counted(where);
            opencl::enqueueing call(opencl::to_handle<cl_command_queue>(where.native.get()),
                                    write ? CL_COMMAND_WRITE_BUFFER : CL_COMMAND_READ_BUFFER, 0, nullptr,
                                    nullptr, blocking);
            if (call.error() != CL_SUCCESS)
                return cuda_result(call.error());
            return cuda_result(opencl::transfer_buffer(call, in, way, offset, here, host + done));
        });
    // What the program waited for: everything before it in the stream.
    return error || !blocking ? error : pinned_arrived(before);
}

CUresult copy(stream& where, std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
    context& owner = *where.owner;
    return for_each_piece(owner, to, bytes, [&](opencl::memory& into, auto at, auto done, auto room) {
        return for_each_piece(
            owner, from + done, room, [&](opencl::memory& out_of, auto offset, auto before, auto here) {
                auto command = opencl::make_command<vgpu_cmd_copy_buffer>(VGPU_CMD_COPY_BUFFER);
                command.source = out_of.id();
                command.destination = into.id();
                command.source_offset = offset;
                command.destination_offset = at + before;
                command.bytes = here;
                const sending counted(where);
                opencl::enqueueing call(opencl::to_handle<cl_command_queue>(where.native.get()),
                                        CL_COMMAND_COPY_BUFFER, 0, nullptr, nullptr);
                return cuda_result(call.error() != CL_SUCCESS ? call.error() : call.send(command));
            });
    });
}

CUresult fill(stream& where, std::uint64_t to, const void* value, unsigned element, std::uint64_t bytes) {
    return for_each_piece(*where.owner, to, bytes, [&](opencl::memory& in, auto offset, auto, auto here) {
        auto command = opencl::make_command<vgpu_cmd_fill_buffer>(VGPU_CMD_FILL_BUFFER);
        command.buffer = in.id();
        command.offset = offset;
        command.bytes = here;
        command.pattern_bytes = element;
        std::memcpy(command.pattern, value, element);
        const sending counted(where);
        opencl::enqueueing call(opencl::to_handle<cl_command_queue>(where.native.get()),
                                CL_COMMAND_FILL_BUFFER, 0, nullptr, nullptr);
        return cuda_result(call.error() != CL_SUCCESS ? call.error() : call.send(command));
    });
}

// What a copy goes between: each of the two may be the program's memory or the GPU's, and the addresses tell.
enum class way { to_device, to_host, on_device, none };

way way_of(context& owner, std::uint64_t to, std::uint64_t from) {
    std::uint64_t offset = 0;
    const bool to_gpu = static_cast<bool>(owner.arena_of(to, offset));
    const bool from_gpu = static_cast<bool>(owner.arena_of(from, offset));
    return to_gpu && from_gpu ? way::on_device
           : to_gpu           ? way::to_device
           : from_gpu         ? way::to_host
                              : way::none;
}

CUresult copy_resolved(stream& where, std::uint64_t to, std::uint64_t from, std::uint64_t bytes, bool waits) {
    switch (way_of(*where.owner, to, from)) {
    case way::to_device:
        return transfer(where, opencl::direction::to_device, to, reinterpret_cast<std::byte*>(from), bytes,
                        waits);
    case way::to_host:
        return transfer(where, opencl::direction::to_host, from, reinterpret_cast<std::byte*>(to), bytes,
                        waits);
    case way::on_device:
        return copy(where, to, from, bytes);
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

// Pinned memory that is shown to kernels is memory of the GPU's here, in the order of the stream.
CUresult copy_now(stream& where, std::uint64_t to, std::uint64_t from, std::uint64_t bytes, bool waits) {
    context& owner = *where.owner;
    to = resolve_pinned(owner, to, bytes);
    from = resolve_pinned(owner, from, bytes);
    pinned_use use(where);
    CUresult error = use.range(from, bytes);
    if (!error)
        error = use.range(to, bytes);
    if (!error)
        error = copy_resolved(where, to, from, bytes, waits);
    if (error)
        return error;
    use.sent();
    if (!waits || !(is_shown(owner, to) || is_shown(owner, from)))
        return CUDA_SUCCESS;
    const queue_place over = where.place();
    error = cuda_result(opencl::finish_queue(*where.native));
    return error ? error : pinned_arrived(over);
}

// cuMemcpy and its relatives. `wanted`: what the function's name says; none: anything.
CUresult copy_any(CUstream handle, CUdeviceptr to, CUdeviceptr from, std::size_t bytes, bool waits,
                  way wanted = way::none) {
    return in_stream(handle, [&](stream& where) {
        if (bytes == 0)
            return CUDA_SUCCESS;
        context& owner = *where.owner;
        if (wanted == way::on_device) // pinned memory may be meant
            for (const CUdeviceptr one : {to, from})
                if (const CUresult error = show_pinned_at(owner, one))
                    return error;
        const way is = way_of(owner, resolve_pinned(owner, to, bytes), resolve_pinned(owner, from, bytes));
        // What the function calls the program's memory may be shown to kernels.
        const bool shown = is == way::on_device && ((wanted != way::to_device && is_shown(owner, to)) ||
                                                    (wanted != way::to_host && is_shown(owner, from)));
        if (is == way::none || (wanted != way::none && wanted != is && !shown) || !to || !from)
            return CUDA_ERROR_INVALID_VALUE;
        if (waits && (is != way::on_device || shown)) {
            const CUresult earlier = settle(where);
            return earlier ? earlier : copy_now(where, to, from, bytes, true);
        }
        if (where.owner->detours.load(std::memory_order_acquire) != 0 && is != way::on_device &&
            !where.captures && !is_pinned(reinterpret_cast<void*>(is == way::to_host ? to : from), bytes)) {
            // The bytes are taken, or there, when this returns.
            const CUresult earlier = settle(where);
            return earlier ? earlier : copy_now(where, to, from, bytes, false);
        }
        return submit(where, copy_work(to, from, bytes));
    });
}

CUdeviceptr address_of(const void* host) {
    return reinterpret_cast<CUdeviceptr>(host);
}

template <class Value>
CUresult set(CUstream handle, CUdeviceptr to, Value value, std::size_t count) {
    return in_stream(handle, [&](stream& where) {
        if (count == 0)
            return CUDA_SUCCESS;
        if (to % sizeof value != 0 || count > ~std::uint64_t{0} / sizeof value)
            return CUDA_ERROR_INVALID_VALUE;
        if (const CUresult error = show_pinned_at(*where.owner, to))
            return error;
        if (!where.owner->has(resolve_pinned(*where.owner, to, count * sizeof value), count * sizeof value))
            return CUDA_ERROR_INVALID_VALUE;
        return submit(where, set_work({to, 0, value, sizeof value, count, 1}));
    });
}

} // namespace

CUresult copy_work::run(stream& where) {
    return copy_now(where, to, from, bytes, false);
}

CUresult set_work::run(stream& where) {
    const std::uint64_t row_bytes = params.width * params.elementSize;
    const std::uint64_t bytes = (params.height - 1) * params.pitch + row_bytes;
    const std::uint64_t to = resolve_pinned(*where.owner, params.dst, bytes);
    pinned_use use(where);
    if (const CUresult error = use.range(to, bytes))
        return error;
    for (std::size_t row = 0; row < params.height; ++row)
        if (const CUresult error =
                fill(where, to + row * params.pitch, &params.value, params.elementSize, row_bytes))
            return error;
    use.sent();
    return CUDA_SUCCESS;
}

std::unique_ptr<work> set_node(const CUDA_MEMSET_NODE_PARAMS* params, CUresult& error) {
    constexpr std::size_t most = std::size_t{1} << 40;
    const bool good =
        params && params->dst && params->width > 0 && params->height > 0 && params->width <= most &&
        params->height <= most &&
        (params->elementSize == 1 || params->elementSize == 2 || params->elementSize == 4) &&
        params->dst % params->elementSize == 0 &&
        (params->height == 1 || (params->pitch >= params->width * params->elementSize &&
                                 params->pitch <= most && params->pitch % params->elementSize == 0));
    error = good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return good ? std::make_unique<set_work>(*params) : nullptr;
}

CUresult copy_on_device(context& where, std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
    const CUresult error = copy(*where.legacy, to, from, bytes);
    return error ? error : where.synchronise();
}

std::optional<std::uint64_t> device::reserve(std::uint64_t bytes) {
    const std::lock_guard held(mutex);
    return arenas.allocate(bytes);
}

std::optional<std::uint64_t> device::reserve_last(std::uint64_t bytes) {
    const std::lock_guard held(mutex);
    return arenas.allocate_last(bytes);
}

void device::unreserve(std::uint64_t address) {
    const std::lock_guard held(mutex);
    arenas.release(address);
}

CUresult make_arena(context& where, std::uint64_t address, std::uint64_t bytes) {
    device& gpu = *where.gpu;
    {
        const std::lock_guard held(gpu.mutex);
        if (bytes > gpu.known.memory_bytes - std::min<std::uint64_t>(gpu.known.memory_bytes, gpu.used_bytes))
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
        command.address = address;
        command.bytes = bytes;
        error = cuda_result(where.native->link().call(opencl::make_outgoing(command)));
    }
    if (error) {
        const std::lock_guard held(gpu.mutex);
        gpu.used_bytes -= bytes;
        return error;
    }
    arena->set_created();
    where.arenas.emplace(address, std::move(arena));
    return CUDA_SUCCESS;
}

void end_arena(context& where, std::uint64_t address) {
    const auto found = where.arenas.find(address);
    const std::uint64_t bytes = found->second->bytes();
    where.arenas.erase(found);
    const std::lock_guard held(where.gpu->mutex);
    where.gpu->used_bytes -= bytes;
}

CUresult release_piece(context& where, std::uint64_t address) {
    const auto piece = where.pieces.find(address);
    if (!piece || !where.pieces.release(address))
        return CUDA_ERROR_INVALID_VALUE; // freed by another thread meanwhile
    leave_pool(where, *piece);
    drop_arena_of(where, address);
    return CUDA_SUCCESS;
}

opencl::ref<opencl::memory> context::arena_of(std::uint64_t address, std::uint64_t& offset) {
    const std::lock_guard held(mutex);
    auto found = arenas.upper_bound(address);
    if (found == arenas.begin())
        return {};
    found = std::prev(found);
    offset = address - found->first;
    return offset < found->second->bytes() ? found->second : opencl::ref<opencl::memory>();
}

opencl::memory* context::arena_of(std::uint64_t address, std::uint64_t bytes, std::uint64_t& offset) {
    const opencl::ref<opencl::memory> in = arena_of(address, offset);
    return in && bytes <= in->bytes() - offset ? in.get() : nullptr;
}

std::optional<address_space::piece> context::find_variable(std::uint64_t address) const {
    auto found = arenas.upper_bound(address);
    if (address - VGPU_ARENA_BASE < VGPU_ARENA_RANGE_BYTES || found == arenas.begin())
        return std::nullopt;
    found = std::prev(found);
    if (address - found->first >= found->second->bytes())
        return std::nullopt;
    return address_space::piece{found->first, found->second->bytes()};
}

bool context::has(std::uint64_t address, std::uint64_t bytes) {
    return for_each_piece(*this, address, bytes, [](const auto&...) { return CUDA_SUCCESS; }) == CUDA_SUCCESS;
}

KAGEMUSHA_ANSWERED CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
    return in_context([&](context& where) {
        if (!free_bytes || !total_bytes)
            return CUDA_ERROR_INVALID_VALUE;
        const std::lock_guard held(where.gpu->mutex);
        *total_bytes = where.gpu->known.memory_bytes;
        *free_bytes = *total_bytes - where.gpu->used_bytes;
        return CUDA_SUCCESS;
    });
}

CUresult allocate(context& where, std::size_t bytes, CUdeviceptr& address) {
    for (const bool again : {false, true}) {
        std::unique_lock held(where.mutex);
        release_freed(where);
        auto piece = where.pieces.allocate(bytes);
        const CUresult error = piece ? CUDA_SUCCESS : add_arena(where, bytes);
        if (!piece && !error)
            piece = where.pieces.allocate(bytes);
        if (piece) {
            address = *piece;
            return CUDA_SUCCESS;
        }
        if (again || where.freed.empty())
            return error ? error : CUDA_ERROR_OUT_OF_MEMORY;
        held.unlock();
        where.synchronise(); // then what was freed in their order is free
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

KAGEMUSHA_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
    return in_context([&](context& where) {
        if (!address || bytes == 0)
            return CUDA_ERROR_INVALID_VALUE;
        return allocate(where, bytes, *address);
    });
}

// A row begins where a copy of rows is fastest, which is also where textures may begin.
KAGEMUSHA_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                                             unsigned int element_bytes) {
    return in_context([&](context& where) {
        constexpr std::size_t unit = 512, most = std::size_t{1} << 40;
        if (!address || !pitch || width == 0 || height == 0 || width > most || height > most ||
            (element_bytes != 4 && element_bytes != 8 && element_bytes != 16))
            return CUDA_ERROR_INVALID_VALUE;
        const std::size_t row = (width + unit - 1) / unit * unit;
        if (height > ~std::uint64_t{0} / row)
            return CUDA_ERROR_OUT_OF_MEMORY;
        const CUresult error = allocate(where, row * height, *address);
        if (!error)
            *pitch = row;
        return error;
    });
}

KAGEMUSHA_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
    return in_context([&](context& where) {
        if (address == 0)
            return CUDA_SUCCESS;
        {
            const std::lock_guard held(where.mutex);
            const auto piece = where.pieces.find(address);
            if (!piece || piece->address != address || is_freed(where, address))
                return CUDA_ERROR_INVALID_VALUE;
        }
        // What is in flight may still use it, and the next allocation may be this piece.
        if (const CUresult error = where.synchronise())
            return error;
        const std::lock_guard held(where.mutex);
        return release_piece(where, address);
    });
}

KAGEMUSHA_ANSWERED CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
    return in_context([&](context& where) {
        const std::lock_guard held(where.mutex);
        auto piece = where.pieces.find(address);
        if (!piece)
            piece = where.find_mapping(address);
        if (!piece)
            piece = where.find_variable(address);
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
    return copy_any(nullptr, to, address_of(from), bytes, true, way::to_device);
}
KAGEMUSHA_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes,
                                               CUstream where) {
    return copy_any(where, to, address_of(from), bytes, false, way::to_device);
}
KAGEMUSHA_EXPORT CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
    return copy_any(nullptr, address_of(to), from, bytes, true, way::to_host);
}
KAGEMUSHA_EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream where) {
    return copy_any(where, address_of(to), from, bytes, false, way::to_host);
}
KAGEMUSHA_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy_any(nullptr, to, from, bytes, false, way::on_device);
}
KAGEMUSHA_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                               CUstream where) {
    return copy_any(where, to, from, bytes, false, way::on_device);
}

KAGEMUSHA_EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    return set(nullptr, to, value, count);
}
KAGEMUSHA_EXPORT CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
    return set(nullptr, to, value, count);
}
KAGEMUSHA_EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count) {
    return set(nullptr, to, value, count);
}
KAGEMUSHA_EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream where) {
    return set(where, to, value, count);
}
KAGEMUSHA_EXPORT CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count,
                                           CUstream where) {
    return set(where, to, value, count);
}
KAGEMUSHA_EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream where) {
    return set(where, to, value, count);
}

} // namespace kagemusha::cuda
