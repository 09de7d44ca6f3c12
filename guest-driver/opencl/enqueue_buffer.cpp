// SPDX-License-Identifier: GPL-2.0-or-later
//
// Read, write, copy and fill of buffers; enqueue_rect.cpp has the forms for rectangles.
#include "api.hpp"
#include "transfer.hpp"

#include <bit>

namespace kagemusha::opencl {
namespace {

bool in_range(const memory& buffer, std::size_t offset, std::size_t bytes) {
    return offset <= buffer.bytes() && bytes <= buffer.bytes() - offset;
}

// A buffer that may be used in the queue's context.
cl_int find_buffer(const enqueueing& call, cl_mem handle, memory*& found) {
    found = from_handle<memory>(handle);
    if (!found || !found->is_buffer())
        return CL_INVALID_MEM_OBJECT;
    return &found->owner() == &call.owner() ? CL_SUCCESS : CL_INVALID_CONTEXT;
}

cl_int transfer(cl_command_queue where, cl_mem handle, cl_bool blocking, direction way, std::size_t offset,
                std::size_t bytes, void* host, cl_uint count, const cl_event* list, cl_event* out) {
    const bool writes = way == direction::to_device;
    enqueueing call(where, writes ? CL_COMMAND_WRITE_BUFFER : CL_COMMAND_READ_BUFFER, count, list, out,
                    blocking != CL_FALSE);
    if (call.error() != CL_SUCCESS)
        return call.error();
    memory* buffer;
    const cl_int error = find_buffer(call, handle, buffer);
    if (error != CL_SUCCESS)
        return error;
    if (!host || bytes == 0 || !in_range(*buffer, offset, bytes))
        return CL_INVALID_VALUE;
    if (writes ? !buffer->host_may_write() : !buffer->host_may_read())
        return CL_INVALID_OPERATION;
    if (writes)
        call.wait_for_bytes_only();
    return transfer_buffer(call, *buffer, way, offset, bytes, host);
}

// Where a buffer's bytes are: sub-buffers lie in their parent.
struct location {
    const memory* root;
    std::size_t start;
};

location locate(const memory& buffer, std::size_t offset) {
    return buffer.is_sub_buffer() ? location{buffer.parent(), buffer.origin() + offset}
                                  : location{&buffer, offset};
}

} // namespace

namespace api {

cl_int enqueue_read_buffer(cl_command_queue where, cl_mem buffer, cl_bool blocking, size_t offset,
                           size_t bytes, void* host, cl_uint count, const cl_event* list, cl_event* out) {
    return transfer(where, buffer, blocking, direction::to_host, offset, bytes, host, count, list, out);
}

cl_int enqueue_write_buffer(cl_command_queue where, cl_mem buffer, cl_bool blocking, size_t offset,
                            size_t bytes, const void* host, cl_uint count, const cl_event* list,
                            cl_event* out) {
    return transfer(where, buffer, blocking, direction::to_device, offset, bytes, const_cast<void*>(host),
                    count, list, out);
}

cl_int enqueue_copy_buffer(cl_command_queue where, cl_mem source_handle, cl_mem destination_handle,
                           size_t source_offset, size_t destination_offset, size_t bytes, cl_uint count,
                           const cl_event* list, cl_event* out) {
    enqueueing call(where, CL_COMMAND_COPY_BUFFER, count, list, out);
    if (call.error() != CL_SUCCESS)
        return call.error();
    memory *source, *destination;
    cl_int error = find_buffer(call, source_handle, source);
    if (error == CL_SUCCESS)
        error = find_buffer(call, destination_handle, destination);
    if (error != CL_SUCCESS)
        return error;
    if (bytes == 0 || !in_range(*source, source_offset, bytes) ||
        !in_range(*destination, destination_offset, bytes))
        return CL_INVALID_VALUE;
    const location from = locate(*source, source_offset), to = locate(*destination, destination_offset);
    if (from.root == to.root && from.start < to.start + bytes && to.start < from.start + bytes)
        return CL_MEM_COPY_OVERLAP;
    auto command = make_command<commands::copy_buffer>();
    command.source = source->id();
    command.destination = destination->id();
    command.source_offset = source_offset;
    command.destination_offset = destination_offset;
    command.bytes = bytes;
    return call.send(command);
}

cl_int enqueue_fill_buffer(cl_command_queue where, cl_mem handle, const void* pattern, size_t pattern_bytes,
                           size_t offset, size_t bytes, cl_uint count, const cl_event* list, cl_event* out) {
    enqueueing call(where, CL_COMMAND_FILL_BUFFER, count, list, out);
    if (call.error() != CL_SUCCESS)
        return call.error();
    memory* buffer;
    const cl_int error = find_buffer(call, handle, buffer);
    if (error != CL_SUCCESS)
        return error;
    auto command = make_command<commands::fill_buffer>();
    if (!pattern || !std::has_single_bit(pattern_bytes) || pattern_bytes > sizeof command.pattern)
        return CL_INVALID_VALUE;
    if (!in_range(*buffer, offset, bytes) || offset % pattern_bytes != 0 || bytes % pattern_bytes != 0)
        return CL_INVALID_VALUE;
    if (bytes == 0)
        return call.join();
    command.buffer = buffer->id();
    command.offset = offset;
    command.bytes = bytes;
    command.pattern_bytes = static_cast<__u32>(pattern_bytes);
    std::memcpy(command.pattern, pattern, pattern_bytes);
    return call.send(command);
}

} // namespace api
} // namespace kagemusha::opencl
