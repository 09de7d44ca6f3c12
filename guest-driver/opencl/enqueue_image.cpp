// SPDX-License-Identifier: GPL-2.0-or-later
//
// Read, write, copy and fill of images.
#include "api.hpp"
#include "transfer.hpp"

#include <algorithm>

namespace kagemusha::opencl {
namespace {

bool has_slices(const memory& image) {
    return image.type() == CL_MEM_OBJECT_IMAGE3D || image.type() == CL_MEM_OBJECT_IMAGE1D_ARRAY ||
           image.type() == CL_MEM_OBJECT_IMAGE2D_ARRAY;
}

cl_int find(const enqueueing& call, cl_mem handle, bool image, memory*& found) {
    found = from_handle<memory>(handle);
    if (!found || found->is_buffer() == image)
        return CL_INVALID_MEM_OBJECT;
    return &found->owner() == &call.owner() ? CL_SUCCESS : CL_INVALID_CONTEXT;
}

// Pitches of 0 take their values from the region; others must be large enough.
bool complete_pitches(const memory& image, const triple& region, std::size_t& row, std::size_t& slice) {
    const bool rows_are_layers = image.type() == CL_MEM_OBJECT_IMAGE1D_ARRAY;
    const std::size_t smallest_row = region[0] * image.shape().element_bytes;
    if (row == 0)
        row = smallest_row;
    if (row < smallest_row || row % image.shape().element_bytes != 0)
        return false;
    std::size_t smallest_slice;
    if (__builtin_mul_overflow(row, rows_are_layers ? 1 : region[1], &smallest_slice))
        return false;
    if (!has_slices(image)) {
        if (slice != 0)
            return false;
        return true;
    }
    if (slice == 0)
        slice = smallest_slice;
    std::size_t total;
    return slice >= smallest_slice &&
           !__builtin_mul_overflow(slice, rows_are_layers ? region[1] : region[2], &total);
}

cl_int transfer(cl_command_queue where, cl_mem handle, cl_bool blocking, direction way,
                const size_t* origin_in, const size_t* region_in, std::size_t row, std::size_t slice,
                void* host, cl_uint count, const cl_event* list, cl_event* out) {
    const bool writes = way == direction::to_device;
    enqueueing call(where, writes ? CL_COMMAND_WRITE_IMAGE : CL_COMMAND_READ_IMAGE, count, list, out,
                    blocking != CL_FALSE);
    if (call.error() != CL_SUCCESS)
        return call.error();
    memory* image;
    cl_int error = find(call, handle, true, image);
    triple origin, region;
    if (error == CL_SUCCESS)
        error = check_image_region(*image, origin_in, region_in, origin, region);
    if (error != CL_SUCCESS)
        return error;
    if (!host || !complete_pitches(*image, region, row, slice))
        return CL_INVALID_VALUE;
    if (writes ? !image->host_may_write() : !image->host_may_read())
        return CL_INVALID_OPERATION;
    if (writes)
        call.wait_for_bytes_only();
    return transfer_image(call, *image, way, origin, region, row, slice, host);
}

// Between an image and a buffer, either way.
template <class Row>
cl_int copy(cl_command_queue where, cl_command_type type, cl_mem image_handle, cl_mem buffer_handle,
            const size_t* origin_in, const size_t* region_in, std::size_t offset, cl_uint count,
            const cl_event* list, cl_event* out) {
    enqueueing call(where, type, count, list, out);
    if (call.error() != CL_SUCCESS)
        return call.error();
    memory *image, *buffer;
    triple origin, region;
    cl_int error = find(call, image_handle, true, image);
    if (error == CL_SUCCESS)
        error = find(call, buffer_handle, false, buffer);
    if (error == CL_SUCCESS)
        error = check_image_region(*image, origin_in, region_in, origin, region);
    if (error != CL_SUCCESS)
        return error;
    // The region lies inside the image, whose size is known not to overflow.
    const std::size_t bytes = region[0] * region[1] * region[2] * image->shape().element_bytes;
    if (offset > buffer->bytes() || bytes > buffer->bytes() - offset)
        return CL_INVALID_VALUE;
    auto command = make_command<Row>();
    command.image = image->id();
    command.buffer = buffer->id();
    std::copy(origin.begin(), origin.end(), command.origin);
    std::copy(region.begin(), region.end(), command.region);
    command.offset = offset;
    return call.send(command);
}

bool overlap(const triple& a, const triple& b, const triple& region) {
    for (std::size_t i = 0; i < 3; ++i)
        if (a[i] + region[i] <= b[i] || b[i] + region[i] <= a[i])
            return false;
    return true;
}

} // namespace

namespace api {

cl_int enqueue_read_image(cl_command_queue where, cl_mem image, cl_bool blocking, const size_t* origin,
                          const size_t* region, size_t row_pitch, size_t slice_pitch, void* host,
                          cl_uint count, const cl_event* list, cl_event* out) {
    return transfer(where, image, blocking, direction::to_host, origin, region, row_pitch, slice_pitch, host,
                    count, list, out);
}

cl_int enqueue_write_image(cl_command_queue where, cl_mem image, cl_bool blocking, const size_t* origin,
                           const size_t* region, size_t row_pitch, size_t slice_pitch, const void* host,
                           cl_uint count, const cl_event* list, cl_event* out) {
    return transfer(where, image, blocking, direction::to_device, origin, region, row_pitch, slice_pitch,
                    const_cast<void*>(host), count, list, out);
}

cl_int enqueue_copy_image(cl_command_queue where, cl_mem source_handle, cl_mem destination_handle,
                          const size_t* source_origin, const size_t* destination_origin,
                          const size_t* region_in, cl_uint count, const cl_event* list, cl_event* out) {
    enqueueing call(where, CL_COMMAND_COPY_IMAGE, count, list, out);
    if (call.error() != CL_SUCCESS)
        return call.error();
    memory *source, *destination;
    cl_int error = find(call, source_handle, true, source);
    if (error == CL_SUCCESS)
        error = find(call, destination_handle, true, destination);
    if (error != CL_SUCCESS)
        return error;
    const cl_image_format &from_format = source->shape().format, &to_format = destination->shape().format;
    if (from_format.image_channel_order != to_format.image_channel_order ||
        from_format.image_channel_data_type != to_format.image_channel_data_type)
        return CL_IMAGE_FORMAT_MISMATCH;
    triple from, to, region;
    error = check_image_region(*source, source_origin, region_in, from, region);
    if (error == CL_SUCCESS)
        error = check_image_region(*destination, destination_origin, region_in, to, region);
    if (error != CL_SUCCESS)
        return error;
    if (source == destination && overlap(from, to, region))
        return CL_MEM_COPY_OVERLAP;
    auto command = make_command<commands::copy_image>();
    command.source = source->id();
    command.destination = destination->id();
    std::copy(from.begin(), from.end(), command.source_origin);
    std::copy(to.begin(), to.end(), command.destination_origin);
    std::copy(region.begin(), region.end(), command.region);
    return call.send(command);
}

cl_int enqueue_copy_image_to_buffer(cl_command_queue where, cl_mem image, cl_mem buffer, const size_t* origin,
                                    const size_t* region, size_t offset, cl_uint count, const cl_event* list,
                                    cl_event* out) {
    return copy<commands::copy_image_to_buffer>(where, CL_COMMAND_COPY_IMAGE_TO_BUFFER, image, buffer, origin,
                                                region, offset, count, list, out);
}

cl_int enqueue_copy_buffer_to_image(cl_command_queue where, cl_mem buffer, cl_mem image, size_t offset,
                                    const size_t* origin, const size_t* region, cl_uint count,
                                    const cl_event* list, cl_event* out) {
    return copy<commands::copy_buffer_to_image>(where, CL_COMMAND_COPY_BUFFER_TO_IMAGE, image, buffer, origin,
                                                region, offset, count, list, out);
}

cl_int enqueue_fill_image(cl_command_queue where, cl_mem handle, const void* color, const size_t* origin_in,
                          const size_t* region_in, cl_uint count, const cl_event* list, cl_event* out) {
    enqueueing call(where, CL_COMMAND_FILL_IMAGE, count, list, out);
    if (call.error() != CL_SUCCESS)
        return call.error();
    memory* image;
    triple origin, region;
    cl_int error = find(call, handle, true, image);
    if (error == CL_SUCCESS)
        error = check_image_region(*image, origin_in, region_in, origin, region);
    if (error != CL_SUCCESS)
        return error;
    if (!color)
        return CL_INVALID_VALUE;
    auto command = make_command<commands::fill_image>();
    command.image = image->id();
    std::copy(origin.begin(), origin.end(), command.origin);
    std::copy(region.begin(), region.end(), command.region);
    // A depth image's colour is one float; every other one has four components.
    std::memcpy(command.color, color,
                image->shape().format.image_channel_order == CL_DEPTH ? 4 : sizeof command.color);
    return call.send(command);
}

} // namespace api
} // namespace kagemusha::opencl
