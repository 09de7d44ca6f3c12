// SPDX-License-Identifier: GPL-2.0-or-later
//
// Mapping: reads the region into the object's host view (unless its content is not wanted), unmapping writes
// it back (if it was mapped for writing). A host view that is traced is never written back: what the program
// stored goes ahead of the next request, also while it is mapped; unless the device wrote there on behalf of
// the program.
#include "api.hpp"
#include "transfer.hpp"

#include <algorithm>

namespace kagemusha::opencl {
namespace {

constexpr cl_map_flags known_flags = CL_MAP_READ | CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION;
constexpr cl_map_flags write_flags = CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION;

cl_int check(const enqueueing& call, const memory& mapped, cl_map_flags flags) {
    if (&mapped.owner() != &call.owner())
        return CL_INVALID_CONTEXT;
    if ((flags & ~known_flags) ||
        ((flags & CL_MAP_WRITE_INVALIDATE_REGION) && (flags & (CL_MAP_READ | CL_MAP_WRITE))))
        return CL_INVALID_VALUE;
    if (((flags & CL_MAP_READ) && !mapped.host_may_read()) ||
        ((flags & write_flags) && !mapped.host_may_write()))
        return CL_INVALID_OPERATION;
    return CL_SUCCESS;
}

std::size_t offset_in_view(const memory& image, const triple& origin) {
    const image_shape& shape = image.shape();
    const std::size_t row = image.type() == CL_MEM_OBJECT_IMAGE1D_ARRAY ? shape.slice_pitch : shape.row_pitch;
    return origin[2] * shape.slice_pitch + origin[1] * row + origin[0] * shape.element_bytes;
}

// Nothing of the context runs beside what is enqueued here, or before it (memory::keep_view()).
bool has_one_order(const enqueueing& call) {
    return call.where().in_order() && call.owner().has_one_queue();
}

cl_int write_back(enqueueing& call, memory& mapped, const mapping& done) {
    if (!(done.flags & write_flags))
        return call.join();
    call.keep(ref<object>(&mapped));
    if (mapped.is_buffer() && mapped.view_is_traced() &&
        !mapped.owner().link().wrote_window(static_cast<const std::byte*>(done.address)))
        return call.join();
    // Never as a copy of this moment: commands before this one may still read into the view.
    if (mapped.is_buffer())
        return transfer_buffer(call, mapped, direction::to_device, done.offset, done.bytes, done.address,
                               true);
    return transfer_image(call, mapped, direction::to_device, done.origin, done.region,
                          mapped.shape().row_pitch, mapped.shape().slice_pitch, done.address, true);
}

} // namespace

namespace api {

void* enqueue_map_buffer(cl_command_queue where, cl_mem handle, cl_bool blocking, cl_map_flags flags,
                         size_t offset, size_t bytes, cl_uint count, const cl_event* list, cl_event* out,
                         cl_int* errcode) {
    enqueueing call(where, CL_COMMAND_MAP_BUFFER, count, list, out, blocking != CL_FALSE);
    if (call.error() != CL_SUCCESS)
        return fail<void*>(errcode, call.error());
    memory* const buffer = from_handle<memory>(handle);
    if (!buffer || !buffer->is_buffer())
        return fail<void*>(errcode, CL_INVALID_MEM_OBJECT);
    cl_int error = check(call, *buffer, flags);
    if (error != CL_SUCCESS)
        return fail<void*>(errcode, error);
    if (bytes == 0 || offset > buffer->bytes() || bytes > buffer->bytes() - offset)
        return fail<void*>(errcode, CL_INVALID_VALUE);
    std::byte* const view = buffer->host_view();
    if (!view)
        return fail<void*>(errcode, CL_MAP_FAILURE);
    mapping added{};
    added.address = view + offset;
    added.flags = flags;
    added.offset = offset;
    added.bytes = bytes;
    // Mapped for writing without "invalidate", the bytes that the program leaves alone must be the GPU's too.
    const std::uint64_t changes = call.owner().changes();
    const bool ordered = has_one_order(call);
    call.keep(ref<object>(buffer));
    buffer->add_mapping(added);
    if ((flags & CL_MAP_WRITE_INVALIDATE_REGION) && buffer->view_is_traced())
        buffer->owner().link().discard_window(view + offset, bytes);
    error = (flags & CL_MAP_WRITE_INVALIDATE_REGION) || (ordered && buffer->view_is_kept(changes))
                ? call.join()
                : transfer_buffer(call, *buffer, direction::to_host, offset, bytes, added.address, true);
    if (error != CL_SUCCESS) {
        mapping ignored;
        buffer->remove_mapping(added.address, ignored);
        return fail<void*>(errcode, error);
    }
    if (ordered && blocking && bytes == buffer->bytes() && !(flags & CL_MAP_WRITE_INVALIDATE_REGION))
        buffer->keep_view(changes);
    succeed(errcode);
    return added.address;
}

void* enqueue_map_image(cl_command_queue where, cl_mem handle, cl_bool blocking, cl_map_flags flags,
                        const size_t* origin, const size_t* region, size_t* row_pitch, size_t* slice_pitch,
                        cl_uint count, const cl_event* list, cl_event* out, cl_int* errcode) {
    enqueueing call(where, CL_COMMAND_MAP_IMAGE, count, list, out, blocking != CL_FALSE);
    if (call.error() != CL_SUCCESS)
        return fail<void*>(errcode, call.error());
    memory* const image = from_handle<memory>(handle);
    if (!image || image->is_buffer())
        return fail<void*>(errcode, CL_INVALID_MEM_OBJECT);
    cl_int error = check(call, *image, flags);
    mapping added{};
    added.flags = flags;
    if (error == CL_SUCCESS)
        error = check_image_region(*image, origin, region, added.origin, added.region);
    const bool has_slices = image->type() == CL_MEM_OBJECT_IMAGE3D ||
                            image->type() == CL_MEM_OBJECT_IMAGE1D_ARRAY ||
                            image->type() == CL_MEM_OBJECT_IMAGE2D_ARRAY;
    if (error == CL_SUCCESS && (!row_pitch || (has_slices && !slice_pitch)))
        error = CL_INVALID_VALUE;
    if (error != CL_SUCCESS)
        return fail<void*>(errcode, error);
    std::byte* const view = image->host_view();
    if (!view)
        return fail<void*>(errcode, CL_MAP_FAILURE);
    const image_shape& shape = image->shape();
    added.address = view + offset_in_view(*image, added.origin);
    call.keep(ref<object>(image));
    image->add_mapping(added);
    error = flags & CL_MAP_WRITE_INVALIDATE_REGION
                ? call.join()
                : transfer_image(call, *image, direction::to_host, added.origin, added.region,
                                 shape.row_pitch, shape.slice_pitch, added.address);
    if (error != CL_SUCCESS) {
        mapping ignored;
        image->remove_mapping(added.address, ignored);
        return fail<void*>(errcode, error);
    }
    *row_pitch = shape.row_pitch;
    if (slice_pitch)
        *slice_pitch = has_slices ? shape.slice_pitch : 0;
    succeed(errcode);
    return added.address;
}

cl_int enqueue_unmap_mem_object(cl_command_queue where, cl_mem handle, void* address, cl_uint count,
                                const cl_event* list, cl_event* out) {
    enqueueing call(where, CL_COMMAND_UNMAP_MEM_OBJECT, count, list, out);
    if (call.error() != CL_SUCCESS)
        return call.error();
    memory* const mapped = from_handle<memory>(handle);
    if (!mapped)
        return CL_INVALID_MEM_OBJECT;
    if (&mapped->owner() != &call.owner())
        return CL_INVALID_CONTEXT;
    mapping done;
    if (!address || !mapped->remove_mapping(address, done))
        return CL_INVALID_VALUE;
    const std::uint64_t changes = call.owner().changes();
    const cl_int error = write_back(call, *mapped, done);
    if (error == CL_SUCCESS && (done.flags & write_flags) && done.bytes == mapped->bytes() &&
        has_one_order(call))
        mapped->keep_view(changes);
    if (error != CL_SUCCESS)
        mapped->add_mapping(done); // nothing happened
    return error;
}

} // namespace api
} // namespace kagemusha::opencl
