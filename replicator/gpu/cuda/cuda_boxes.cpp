// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_boxes: see cuda_boxes.hpp.
#include "gpu/cuda/cuda_boxes.hpp"

#include <algorithm>
#include <cstring>

#include "codec/rect.hpp"

namespace kagemusha::gpu {

namespace {

// Both ends of a copy, before either is filled in.
CUDA_MEMCPY3D box_of(std::uint64_t row_bytes, std::uint64_t rows, std::uint64_t slices) {
    CUDA_MEMCPY3D copy{};
    copy.WidthInBytes = row_bytes;
    copy.Height = rows;
    copy.Depth = slices;
    return copy;
}

struct linear_end {
    CUdeviceptr address;
    std::uint64_t row_pitch, slice_pitch;
};

linear_end end_of(const cuda_memory& memory, const codec::wire_triple& origin, std::uint64_t row_pitch,
                  std::uint64_t slice_pitch) {
    return {memory.address + origin[2] * slice_pitch + origin[1] * row_pitch + origin[0], row_pitch,
            slice_pitch};
}

void from_memory(CUDA_MEMCPY3D& copy, const linear_end& from) {
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from.address;
    copy.srcPitch = from.row_pitch;
    copy.srcHeight = from.slice_pitch / from.row_pitch;
}
void to_memory(CUDA_MEMCPY3D& copy, const linear_end& to) {
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = to.address;
    copy.dstPitch = to.row_pitch;
    copy.dstHeight = to.slice_pitch / to.row_pitch;
}
// Bytes of this process, without gaps.
void from_bytes(CUDA_MEMCPY3D& copy, const std::byte* from) {
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = from;
    copy.srcPitch = copy.WidthInBytes;
    copy.srcHeight = copy.Height;
}
void to_bytes(CUDA_MEMCPY3D& copy, std::byte* to) {
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = to;
    copy.dstPitch = copy.WidthInBytes;
    copy.dstHeight = copy.Height;
}
void from_array(CUDA_MEMCPY3D& copy, const cuda_array& from, const codec::wire_triple& origin) {
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = from.native;
    copy.srcXInBytes = origin[0] * from.element_bytes;
    (from.layers_are_rows ? copy.srcZ : copy.srcY) = origin[1];
    if (!from.layers_are_rows)
        copy.srcZ = origin[2];
}
void to_array(CUDA_MEMCPY3D& copy, const cuda_array& to, const codec::wire_triple& origin) {
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = to.native;
    copy.dstXInBytes = origin[0] * to.element_bytes;
    (to.layers_are_rows ? copy.dstZ : copy.dstY) = origin[1];
    if (!to.layers_are_rows)
        copy.dstZ = origin[2];
}
CUDA_MEMCPY3D box_of(const cuda_array& image, const codec::wire_triple& region) {
    return image.layers_are_rows ? box_of(region[0] * image.element_bytes, 1, region[1])
                                 : box_of(region[0] * image.element_bytes, region[1], region[2]);
}

// CUDA counts the rows of a slice, the wire the bytes: what is no whole number of rows goes slice by slice.
bool has_whole_slices(const linear_end& end, std::uint64_t slices) {
    return slices == 1 || end.slice_pitch % end.row_pitch == 0;
}

// Room for the bytes of a box on their way, and for a write the bytes.
CUresult prepare(cuda_primary& primary, cuda_rest& rest, const payload_ptr& data, bool write,
                 const box_shape& shape, const box_pitch& pitch) {
    rest = std::make_unique<cuda_copy_back>();
    rest->shape = shape;
    rest->pitch = pitch;
    rest->bytes = primary.staging.take(shape.row_bytes * shape.rows * shape.slices);
    if (!write)
        rest->to = data;
    return !write || rest->take(*data) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

} // namespace

CUresult move_rect(const cuda_api& api, CUstream stream, const codec::op_transfer_rect& op,
                   const cuda_memory& memory, const payload_ptr& data, cuda_rest& rest) {
    const vgpu_cmd_transfer_rect& c = *op.c;
    const linear_end gpu = end_of(memory, c.buffer_origin, c.buffer_row_pitch, c.buffer_slice_pitch);
    if (const CUresult error =
            prepare(*memory.primary, rest, data, op.write(), {c.region[0], c.region[1], c.region[2]},
                    {c.host_row_pitch, c.host_slice_pitch}))
        return error;
    const bool whole = has_whole_slices(gpu, c.region[2]);
    const std::uint64_t at_once = whole ? c.region[2] : 1;
    for (std::uint64_t slice = 0; slice < c.region[2]; slice += at_once) {
        CUDA_MEMCPY3D copy = box_of(c.region[0], c.region[1], at_once);
        const linear_end place{gpu.address + slice * gpu.slice_pitch, gpu.row_pitch,
                               whole ? gpu.slice_pitch : gpu.row_pitch * c.region[1]};
        std::byte* const bytes = rest->bytes.data() + slice * c.region[0] * c.region[1];
        if (op.write()) {
            from_bytes(copy, bytes);
            to_memory(copy, place);
        } else {
            from_memory(copy, place);
            to_bytes(copy, bytes);
        }
        if (const CUresult error = api.cuMemcpy3DAsync_v2(&copy, stream))
            return error;
    }
    return CUDA_SUCCESS;
}

CUresult copy_rect(const cuda_api& api, CUstream stream, const vgpu_cmd_copy_rect& c,
                   const cuda_memory& source, const cuda_memory& destination) {
    const linear_end from = end_of(source, c.source_origin, c.source_row_pitch, c.source_slice_pitch);
    const linear_end to =
        end_of(destination, c.destination_origin, c.destination_row_pitch, c.destination_slice_pitch);
    const bool whole = has_whole_slices(from, c.region[2]) && has_whole_slices(to, c.region[2]);
    const std::uint64_t at_once = whole ? c.region[2] : 1;
    for (std::uint64_t slice = 0; slice < c.region[2]; slice += at_once) {
        CUDA_MEMCPY3D copy = box_of(c.region[0], c.region[1], at_once);
        from_memory(copy, {from.address + slice * from.slice_pitch, from.row_pitch,
                           whole ? from.slice_pitch : from.row_pitch * c.region[1]});
        to_memory(copy, {to.address + slice * to.slice_pitch, to.row_pitch,
                         whole ? to.slice_pitch : to.row_pitch * c.region[1]});
        if (const CUresult error = api.cuMemcpy3DAsync_v2(&copy, stream))
            return error;
    }
    return CUDA_SUCCESS;
}

CUresult move_image(const cuda_api& api, CUstream stream, const codec::op_transfer_image& op,
                    const cuda_array& image, const payload_ptr& data, cuda_rest& rest) {
    const vgpu_cmd_transfer_image& c = *op.c;
    CUDA_MEMCPY3D copy = box_of(image, c.region);
    if (const CUresult error = prepare(*image.primary, rest, data, op.write(),
                                       {c.region[0] * image.element_bytes, c.region[1], c.region[2]},
                                       {c.row_pitch, c.slice_pitch}))
        return error;
    if (op.write()) {
        from_bytes(copy, rest->bytes.data());
        to_array(copy, image, c.origin);
    } else {
        from_array(copy, image, c.origin);
        to_bytes(copy, rest->bytes.data());
    }
    return api.cuMemcpy3DAsync_v2(&copy, stream);
}

CUresult copy_image(const cuda_api& api, CUstream stream, const vgpu_cmd_copy_image& c,
                    const cuda_array& source, const cuda_array& destination) {
    if (source.element_bytes != destination.element_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D copy = box_of(source, c.region);
    from_array(copy, source, c.source_origin);
    to_array(copy, destination, c.destination_origin);
    return api.cuMemcpy3DAsync_v2(&copy, stream);
}

CUresult copy_image_buffer(const cuda_api& api, CUstream stream,
                           const resolved<codec::op_copy_image_buffer>& r) {
    const auto& [host_image, host_buffer] = r.parts;
    const auto& image = static_cast<const cuda_array&>(host_image);
    const auto& buffer = static_cast<const cuda_memory&>(host_buffer);
    const vgpu_cmd_copy_image_buffer& c = *r.op.c;
    CUDA_MEMCPY3D copy = box_of(image, c.region);
    const linear_end packed{buffer.address + c.offset, copy.WidthInBytes, copy.WidthInBytes * copy.Height};
    if (r.op.to_buffer()) {
        from_array(copy, image, c.origin);
        to_memory(copy, packed);
    } else {
        from_memory(copy, packed);
        to_array(copy, image, c.origin);
    }
    return api.cuMemcpy3DAsync_v2(&copy, stream);
}

} // namespace kagemusha::gpu
