// SPDX-License-Identifier: GPL-2.0-or-later
//
// Copies of rectangles and boxes between the program's memory, GPU memory and arrays, and sets of rectangles.
// They are the wire's copies with pitches; GPU memory and an array meet row by row, because there the wire has
// no pitch.
#include "arrays.hpp"
#include "node_work.hpp"
#include "pinned.hpp"

#include "guest-driver/opencl/api.hpp"
#include "guest-driver/opencl/transfer.hpp"

#include <algorithm>

namespace kagemusha::cuda {
namespace {

using opencl::triple;

// What is copied: bytes of a row, rows, slices.
struct box {
    std::size_t bytes = 0, height = 1, depth = 1;
};

// One end of a copy as the program describes it.
struct described_end {
    CUmemorytype kind{};
    const void* host = nullptr;
    CUdeviceptr device = 0;
    CUarray array = nullptr;
    std::size_t x = 0, y = 0, z = 0, level = 0; // x in bytes
    std::size_t pitch = 0, rows = 0;            // rows of a slice
};

// The same, found and checked.
struct end {
    CUmemorytype kind{};       // HOST, DEVICE or ARRAY
    std::byte* host = nullptr; // the first byte
    opencl::memory* arena = nullptr;
    std::uint64_t offset = 0;              // in the arena
    std::uint64_t address = 0, extent = 0; // of all that lies between the first byte and the last
    array* in = nullptr;
    triple origin{};                  // in elements
    std::size_t pitch = 0, slice = 0; // of memory
};

bool multiply_add(std::size_t a, std::size_t b, std::size_t& sum) {
    std::size_t product = 0;
    return !__builtin_mul_overflow(a, b, &product) && !__builtin_add_overflow(sum, product, &sum);
}

bool resolve_memory(context& where, const described_end& from, const box& size, end& to) {
    std::size_t row = 0, last_row = 0;
    if (__builtin_add_overflow(from.x, size.bytes, &row) ||
        __builtin_add_overflow(from.y, size.height, &last_row))
        return false;
    to.pitch = from.pitch != 0 ? from.pitch : row;
    const std::size_t rows = from.rows != 0 ? from.rows : last_row;
    const bool one_row = size.height == 1 && size.depth == 1;
    if ((!one_row && to.pitch < row) || (size.depth > 1 && rows < last_row) ||
        __builtin_mul_overflow(to.pitch, rows, &to.slice))
        return false;
    std::size_t start = from.x, extent = size.bytes;
    if (!multiply_add(from.y, to.pitch, start) || !multiply_add(from.z, to.slice, start) ||
        !multiply_add(size.height - 1, to.pitch, extent) || !multiply_add(size.depth - 1, to.slice, extent))
        return false;
    to.pitch = std::max(to.pitch, size.bytes); // of one row it says nothing
    to.slice = std::max(to.slice, to.pitch * size.height);
    if (to.kind == CU_MEMORYTYPE_HOST) {
        to.host = static_cast<std::byte*>(const_cast<void*>(from.host)) + start;
        return from.host != nullptr;
    }
    to.address = from.device + start;
    to.extent = extent;
    to.arena = where.arena_of(to.address, extent, to.offset);
    return to.arena != nullptr;
}

bool resolve_array(context& where, const described_end& from, const box& size, end& to) {
    to.in = object_of<array>(the_driver().arrays, from.array);
    if (!to.in || to.in->owner != &where || from.x % to.in->element_bytes != 0 ||
        size.bytes % to.in->element_bytes != 0)
        return false;
    to.origin = {from.x / to.in->element_bytes, from.y, from.z};
    const triple region{size.bytes / to.in->element_bytes, size.height, size.depth};
    const triple whole = to.in->size();
    for (int d = 0; d < 3; ++d)
        if (to.origin[d] > whole[d] || region[d] > whole[d] - to.origin[d])
            return false;
    return true;
}

bool resolve(context& where, described_end from, const box& size, end& to) {
    if (from.level != 0)
        return false;
    if (from.kind == CU_MEMORYTYPE_HOST) {
        from.device = reinterpret_cast<std::uint64_t>(from.host);
        if (is_shown(where, from.device))
            from.kind = CU_MEMORYTYPE_UNIFIED;
    } else if (from.kind == CU_MEMORYTYPE_DEVICE && is_known_pinned(from.device)) {
        from.kind = CU_MEMORYTYPE_UNIFIED;
    }
    to.kind = from.kind;
    if (from.kind == CU_MEMORYTYPE_UNIFIED) {
        std::uint64_t offset = 0;
        from.device = resolve_pinned(where, from.device, 1);
        to.kind = where.arena_of(from.device, 1, offset) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        from.host = reinterpret_cast<const void*>(from.device);
    }
    switch (to.kind) {
    case CU_MEMORYTYPE_HOST:
    case CU_MEMORYTYPE_DEVICE:
        return resolve_memory(where, from, size, to);
    case CU_MEMORYTYPE_ARRAY:
        return resolve_array(where, from, size, to);
    default:
        return false;
    }
}

cl_command_queue handle_of(stream& where) {
    return opencl::to_handle<cl_command_queue>(where.native.get());
}

CUresult between_memory_and_host(stream& where, const end& device, const end& host, bool writes,
                                 const box& size) {
    const triple origin{device.offset, 0, 0}, none{}, region{size.bytes, size.height, size.depth};
    const auto memory = opencl::to_handle<cl_mem>(device.arena);
    const auto move = [&](auto* function) {
        return cuda_result(function(handle_of(where), memory, CL_TRUE, origin.data(), none.data(),
                                    region.data(), device.pitch, device.slice, host.pitch, host.slice,
                                    host.host, 0, nullptr, nullptr));
    };
    return writes ? move(&opencl::api::enqueue_write_buffer_rect)
                  : move(&opencl::api::enqueue_read_buffer_rect);
}

CUresult in_memory(stream& where, const end& to, const end& from, const box& size) {
    auto command = opencl::make_command<vgpu_cmd_copy_rect>(VGPU_CMD_COPY_BUFFER_RECT);
    command.source = from.arena->id();
    command.destination = to.arena->id();
    command.source_origin[0] = from.offset;
    command.destination_origin[0] = to.offset;
    command.region[0] = size.bytes;
    command.region[1] = size.height;
    command.region[2] = size.depth;
    command.source_row_pitch = from.pitch;
    command.source_slice_pitch = from.slice;
    command.destination_row_pitch = to.pitch;
    command.destination_slice_pitch = to.slice;
    opencl::enqueueing call(handle_of(where), CL_COMMAND_COPY_BUFFER_RECT, 0, nullptr, nullptr);
    return cuda_result(call.error() != CL_SUCCESS ? call.error() : call.send(command));
}

// A place or a size in an array as the wire has it: the layers of a 1D array are rows.
triple on_wire(const array& in, const triple& place, std::size_t missing) {
    return in.native->type() == CL_MEM_OBJECT_IMAGE1D_ARRAY ? triple{place[0], place[2], missing} : place;
}

CUresult between_array_and_host(stream& where, const end& device, const end& host, bool writes,
                                const box& size) {
    const array& in = *device.in;
    const triple region{size.bytes / in.element_bytes, size.height, size.depth};
    opencl::enqueueing call(handle_of(where), writes ? CL_COMMAND_WRITE_IMAGE : CL_COMMAND_READ_IMAGE, 0,
                            nullptr, nullptr, true);
    if (call.error() != CL_SUCCESS)
        return cuda_result(call.error());
    return cuda_result(opencl::transfer_image(
        call, *in.native, writes ? opencl::direction::to_device : opencl::direction::to_host,
        on_wire(in, device.origin, 0), on_wire(in, region, 1), host.pitch, host.slice, host.host));
}

CUresult in_arrays(stream& where, const end& to, const end& from, const box& size) {
    if (to.in->element_bytes != from.in->element_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    auto command = opencl::make_command<vgpu_cmd_copy_image>(VGPU_CMD_COPY_IMAGE);
    command.source = from.in->native->id();
    command.destination = to.in->native->id();
    const triple region =
        on_wire(*from.in, {size.bytes / from.in->element_bytes, size.height, size.depth}, 1);
    const triple source = on_wire(*from.in, from.origin, 0), destination = on_wire(*to.in, to.origin, 0);
    std::copy(region.begin(), region.end(), command.region);
    std::copy(source.begin(), source.end(), command.source_origin);
    std::copy(destination.begin(), destination.end(), command.destination_origin);
    opencl::enqueueing call(handle_of(where), CL_COMMAND_COPY_IMAGE, 0, nullptr, nullptr);
    return cuda_result(call.error() != CL_SUCCESS ? call.error() : call.send(command));
}

CUresult between_array_and_memory(stream& where, const end& device, const end& memory, bool to_array,
                                  const box& size) {
    const array& in = *device.in;
    for (std::size_t z = 0; z < size.depth; ++z)
        for (std::size_t y = 0; y < size.height; ++y) {
            auto command = opencl::make_command<vgpu_cmd_copy_image_buffer>(
                to_array ? VGPU_CMD_COPY_BUFFER_TO_IMAGE : VGPU_CMD_COPY_IMAGE_TO_BUFFER);
            command.image = in.native->id();
            command.buffer = memory.arena->id();
            command.offset = memory.offset + z * memory.slice + y * memory.pitch;
            const triple origin =
                on_wire(in, {device.origin[0], device.origin[1] + y, device.origin[2] + z}, 0);
            std::copy(origin.begin(), origin.end(), command.origin);
            command.region[0] = size.bytes / in.element_bytes;
            command.region[1] = command.region[2] = 1;
            opencl::enqueueing call(handle_of(where),
                                    to_array ? CL_COMMAND_COPY_BUFFER_TO_IMAGE
                                             : CL_COMMAND_COPY_IMAGE_TO_BUFFER,
                                    0, nullptr, nullptr);
            const cl_int error = call.error() != CL_SUCCESS ? call.error() : call.send(command);
            if (error != CL_SUCCESS)
                return cuda_result(error);
        }
    return CUDA_SUCCESS;
}

// When everything before it in the stream is done.
CUresult in_host(stream& where, const end& to, const end& from, const box& size) {
    if (const CUresult error = finish(where))
        return error;
    for (std::size_t z = 0; z < size.depth; ++z)
        for (std::size_t y = 0; y < size.height; ++y)
            std::memmove(to.host + z * to.slice + y * to.pitch, from.host + z * from.slice + y * from.pitch,
                         size.bytes);
    return CUDA_SUCCESS;
}

CUresult copy_ends(stream& where, const end& target, const end& source, const box& size) {
    const bool to_host = target.kind == CU_MEMORYTYPE_HOST, from_host = source.kind == CU_MEMORYTYPE_HOST;
    if (to_host && from_host)
        return in_host(where, target, source, size);
    const sending counted(where);
    if (to_host)
        return source.in ? between_array_and_host(where, source, target, false, size)
                         : between_memory_and_host(where, source, target, false, size);
    if (from_host)
        return target.in ? between_array_and_host(where, target, source, true, size)
                         : between_memory_and_host(where, target, source, true, size);
    return target.in && source.in ? in_arrays(where, target, source, size)
           : target.in            ? between_array_and_memory(where, target, source, true, size)
           : source.in            ? between_array_and_memory(where, source, target, false, size)
                                  : in_memory(where, target, source, size);
}

CUresult copy_box(stream& where, const described_end& to, const described_end& from, const box& size,
                  bool waits) {
    if (size.bytes == 0 || size.height == 0 || size.depth == 0)
        return CUDA_SUCCESS;
    end target, source;
    if (!resolve(*where.owner, to, size, target) || !resolve(*where.owner, from, size, source))
        return CUDA_ERROR_INVALID_VALUE;
    pinned_use use(where);
    for (const end* one : {&target, &source})
        if (const CUresult error = use.range(one->address, one->extent))
            return error;
    const queue_place before = where.place();
    const bool with_host = target.host || source.host;
    if (const CUresult error = copy_ends(where, target, source, size))
        return error;
    use.sent();
    if (with_host)
        return pinned_arrived(before);
    return waits ? finish(where) : CUDA_SUCCESS;
}
// A copy whose turn is later.
struct box_work final : work {
    box_work(const described_end& t, const described_end& f, const box& s) : to(t), from(f), size(s) {}

    CUgraphNodeType kind() const override { return CU_GRAPH_NODE_TYPE_MEMCPY; }
    CUresult run(stream& where) override { return copy_box(where, to, from, size, false); }
    std::unique_ptr<work> copy() const override { return std::make_unique<box_work>(*this); }

    described_end to, from;
    box size;
};

CUresult copy_in_order(stream& where, const described_end& to, const described_end& from, const box& size,
                       bool waits) {
    if (where.owner->detours.load(std::memory_order_acquire) == 0)
        return copy_box(where, to, from, size, waits);
    const bool with_host = to.kind == CU_MEMORYTYPE_HOST || from.kind == CU_MEMORYTYPE_HOST ||
                           to.kind == CU_MEMORYTYPE_UNIFIED || from.kind == CU_MEMORYTYPE_UNIFIED;
    // The program's bytes are taken, or there, when this returns.
    if (waits || (with_host && !where.captures)) {
        const CUresult earlier = settle(where);
        return earlier ? earlier : copy_box(where, to, from, size, waits);
    }
    return submit(where, box_work(to, from, size));
}

CUresult copy_2d(const CUDA_MEMCPY2D* c, CUstream handle, bool waits) {
    return in_stream(handle, [&](stream& where) {
        if (!c)
            return CUDA_ERROR_INVALID_VALUE;
        const described_end from{
            c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray, c->srcXInBytes, c->srcY, 0, 0,
            c->srcPitch,      0};
        const described_end to{
            c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray, c->dstXInBytes, c->dstY, 0, 0,
            c->dstPitch,      0};
        return copy_in_order(where, to, from, {c->WidthInBytes, c->Height, 1}, waits);
    });
}

described_end source_of(const CUDA_MEMCPY3D& c) {
    return {c.srcMemoryType, c.srcHost, c.srcDevice, c.srcArray, c.srcXInBytes,
            c.srcY,          c.srcZ,    c.srcLOD,    c.srcPitch, c.srcHeight};
}
described_end target_of(const CUDA_MEMCPY3D& c) {
    return {c.dstMemoryType, c.dstHost, c.dstDevice, c.dstArray, c.dstXInBytes,
            c.dstY,          c.dstZ,    c.dstLOD,    c.dstPitch, c.dstHeight};
}

CUresult copy_3d(const CUDA_MEMCPY3D* c, CUstream handle, bool waits) {
    return in_stream(handle, [&](stream& where) {
        if (!c)
            return CUDA_ERROR_INVALID_VALUE;
        return copy_in_order(where, target_of(*c), source_of(*c), {c->WidthInBytes, c->Height, c->Depth},
                             waits);
    });
}

// Between a one-dimensional array, `offset` bytes into it, and something else.
CUresult copy_row(const described_end& to, const described_end& from, std::size_t bytes) {
    return in_stream(nullptr,
                     [&](stream& where) { return copy_in_order(where, to, from, {bytes, 1, 1}, true); });
}
described_end array_at(CUarray in, std::size_t offset) {
    return {CU_MEMORYTYPE_ARRAY, nullptr, 0, in, offset};
}
described_end host_at(const void* place) {
    return {CU_MEMORYTYPE_HOST, place};
}
described_end device_at(CUdeviceptr place) {
    return {CU_MEMORYTYPE_DEVICE, nullptr, place};
}

template <class Value>
CUresult set(CUstream handle, CUdeviceptr to, std::size_t pitch, Value value, std::size_t width,
             std::size_t height) {
    return in_stream(handle, [&](stream& where) {
        if (width == 0 || height == 0)
            return CUDA_SUCCESS;
        std::size_t bytes = 0;
        end all{CU_MEMORYTYPE_DEVICE};
        if (const CUresult error = show_pinned_at(*where.owner, to))
            return error;
        to = resolve_pinned(*where.owner, to, 1);
        if (__builtin_mul_overflow(width, sizeof value, &bytes) || to % sizeof value != 0 ||
            (height > 1 && pitch % sizeof value != 0) ||
            !resolve_memory(*where.owner, {CU_MEMORYTYPE_DEVICE, nullptr, to, nullptr, 0, 0, 0, 0, pitch},
                            {bytes, height, 1}, all))
            return CUDA_ERROR_INVALID_VALUE;
        return submit(where, set_work({to, all.pitch, value, sizeof value, width, height}));
    });
}

} // namespace

std::unique_ptr<work> copy_node(const CUDA_MEMCPY3D* params, CUresult& error) {
    const bool good =
        params && params->WidthInBytes > 0 && params->Height > 0 && params->Depth > 0 &&
        params->srcMemoryType >= CU_MEMORYTYPE_HOST && params->srcMemoryType <= CU_MEMORYTYPE_UNIFIED &&
        params->dstMemoryType >= CU_MEMORYTYPE_HOST && params->dstMemoryType <= CU_MEMORYTYPE_UNIFIED;
    error = good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return good ? std::make_unique<box_work>(target_of(*params), source_of(*params),
                                             box{params->WidthInBytes, params->Height, params->Depth})
                : nullptr;
}

bool report_copy_node(const work* what, CUDA_MEMCPY3D& params) {
    const auto* const line = dynamic_cast<const copy_work*>(what);
    const auto* const one = dynamic_cast<const box_work*>(what);
    if (!one && !line)
        return false;
    params = {};
    if (line) {
        params.srcMemoryType = params.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
        params.srcDevice = line->from;
        params.dstDevice = line->to;
        params.WidthInBytes = line->bytes;
        params.Height = params.Depth = 1;
        return true;
    }
    const auto put = [](const described_end& end, auto& kind, auto& host, auto& device, auto& array,
                        auto&... places) {
        kind = end.kind;
        host = const_cast<void*>(end.host);
        device = end.device;
        array = end.array;
        std::size_t values[] = {end.x, end.y, end.z, end.level, end.pitch, end.rows}, at = 0;
        ((places = values[at++]), ...);
    };
    put(one->from, params.srcMemoryType, params.srcHost, params.srcDevice, params.srcArray,
        params.srcXInBytes, params.srcY, params.srcZ, params.srcLOD, params.srcPitch, params.srcHeight);
    put(one->to, params.dstMemoryType, params.dstHost, params.dstDevice, params.dstArray, params.dstXInBytes,
        params.dstY, params.dstZ, params.dstLOD, params.dstPitch, params.dstHeight);
    params.WidthInBytes = one->size.bytes;
    params.Height = one->size.height;
    params.Depth = one->size.depth;
    return true;
}

KAGEMUSHA_EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) {
    return copy_2d(copy, nullptr, true);
}
KAGEMUSHA_EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) {
    return copy_2d(copy, nullptr, true);
}
KAGEMUSHA_EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
    return copy_2d(copy, stream, false);
}
KAGEMUSHA_EXPORT CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) {
    return copy_3d(copy, nullptr, true);
}
KAGEMUSHA_EXPORT CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
    return copy_3d(copy, stream, false);
}

KAGEMUSHA_EXPORT CUresult cuMemcpyHtoA_v2(CUarray to, size_t offset, const void* from, size_t bytes) {
    return copy_row(array_at(to, offset), host_at(from), bytes);
}
KAGEMUSHA_EXPORT CUresult cuMemcpyAtoH_v2(void* to, CUarray from, size_t offset, size_t bytes) {
    return copy_row(host_at(to), array_at(from, offset), bytes);
}
KAGEMUSHA_EXPORT CUresult cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {
    return copy_row(array_at(to, offset), device_at(from), bytes);
}
KAGEMUSHA_EXPORT CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {
    return copy_row(device_at(to), array_at(from, offset), bytes);
}
KAGEMUSHA_EXPORT CUresult cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                                          size_t bytes) {
    return copy_row(array_at(to, to_offset), array_at(from, from_offset), bytes);
}

KAGEMUSHA_EXPORT CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                                          size_t height) {
    return set(nullptr, to, pitch, value, width, height);
}
KAGEMUSHA_EXPORT CUresult cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                                           size_t height) {
    return set(nullptr, to, pitch, value, width, height);
}
KAGEMUSHA_EXPORT CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                                           size_t height) {
    return set(nullptr, to, pitch, value, width, height);
}
KAGEMUSHA_EXPORT CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                                            size_t height, CUstream stream) {
    return set(stream, to, pitch, value, width, height);
}
KAGEMUSHA_EXPORT CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                                             size_t height, CUstream stream) {
    return set(stream, to, pitch, value, width, height);
}
KAGEMUSHA_EXPORT CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                                             size_t height, CUstream stream) {
    return set(stream, to, pitch, value, width, height);
}

} // namespace kagemusha::cuda
