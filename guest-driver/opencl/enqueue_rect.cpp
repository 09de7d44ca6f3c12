// SPDX-License-Identifier: GPL-2.0-or-later
//
// Read, write and copy of rectangles in buffers.
#include "api.hpp"
#include "transfer.hpp"

#include <algorithm>

namespace kagemusha::opencl {
namespace {

// One side of a rectangular transfer: where it starts and what lies between its rows and slices.
struct side {
    triple origin{};
    std::size_t row_pitch = 0, slice_pitch = 0;

    std::size_t start() const { return origin[2] * slice_pitch + origin[1] * row_pitch + origin[0]; }
};

bool read_triple(const size_t* from, triple& to) {
    if (!from)
        return false;
    std::copy_n(from, 3, to.begin());
    return true;
}

// Pitches of 0 take their values from the region; others must be large enough.
bool complete_pitches(const triple& region, side& where) {
    if (where.row_pitch == 0)
        where.row_pitch = region[0];
    if (where.row_pitch < region[0])
        return false;
    std::size_t smallest;
    if (__builtin_mul_overflow(region[1], where.row_pitch, &smallest))
        return false;
    if (where.slice_pitch == 0)
        where.slice_pitch = smallest;
    return where.slice_pitch >= smallest && where.slice_pitch % where.row_pitch == 0;
}

// Bytes from the first to behind the last of the region; false on overflow.
bool extent(const triple& region, const side& where, std::size_t& bytes) {
    std::size_t slices, rows;
    return !__builtin_mul_overflow(region[2] - 1, where.slice_pitch, &slices) &&
           !__builtin_mul_overflow(region[1] - 1, where.row_pitch, &rows) &&
           !__builtin_add_overflow(slices, rows, &bytes) && !__builtin_add_overflow(bytes, region[0], &bytes);
}

bool start_fits(const side& where) {
    std::size_t slices, rows, start;
    return !__builtin_mul_overflow(where.origin[2], where.slice_pitch, &slices) &&
           !__builtin_mul_overflow(where.origin[1], where.row_pitch, &rows) &&
           !__builtin_add_overflow(slices, rows, &start) &&
           !__builtin_add_overflow(start, where.origin[0], &start);
}

bool in_buffer(const memory& buffer, const triple& region, const side& where) {
    std::size_t bytes;
    return start_fits(where) && extent(region, where, bytes) && where.start() <= buffer.bytes() &&
           bytes <= buffer.bytes() - where.start();
}

bool valid_region(const triple& region) {
    return region[0] > 0 && region[1] > 0 && region[2] > 0;
}

cl_int find_buffer(const enqueueing& call, cl_mem handle, memory*& found) {
    found = from_handle<memory>(handle);
    if (!found || !found->is_buffer())
        return CL_INVALID_MEM_OBJECT;
    return &found->owner() == &call.owner() ? CL_SUCCESS : CL_INVALID_CONTEXT;
}

cl_int send_rect(enqueueing& call, memory& buffer, direction way, const triple& region, const side& device,
                 const side& host, std::byte* place, bool in_place, bool step) {
    std::size_t bytes = 0;
    extent(region, host, bytes);
    return with_command<commands::write_buffer_rect, commands::read_buffer_rect>(way, [&](auto& command) {
        command.buffer = buffer.id();
        std::copy(device.origin.begin(), device.origin.end(), command.buffer_origin);
        std::copy(region.begin(), region.end(), command.region);
        command.buffer_row_pitch = device.row_pitch;
        command.buffer_slice_pitch = device.slice_pitch;
        command.host_row_pitch = host.row_pitch;
        command.host_slice_pitch = host.slice_pitch;
        if (way == direction::to_device && bytes <= max_inline_bytes && !in_place)
            return send_piece(call, command, inlined(place, bytes), step);
        return send_piece(call, command, payload{place, bytes, way == direction::to_host}, step);
    });
}

cl_int transfer(cl_command_queue where, cl_mem handle, cl_bool blocking, direction way,
                const size_t* buffer_origin, const size_t* host_origin, const size_t* region_in, side device,
                side host, void* pointer, cl_uint count, const cl_event* list, cl_event* out) {
    const bool writes = way == direction::to_device;
    enqueueing call(where, writes ? CL_COMMAND_WRITE_BUFFER_RECT : CL_COMMAND_READ_BUFFER_RECT, count, list,
                    out, blocking != CL_FALSE);
    if (call.error() != CL_SUCCESS)
        return call.error();
    memory* buffer;
    const cl_int error = find_buffer(call, handle, buffer);
    if (error != CL_SUCCESS)
        return error;
    triple region;
    std::size_t host_bytes;
    if (!pointer || !read_triple(buffer_origin, device.origin) || !read_triple(host_origin, host.origin) ||
        !read_triple(region_in, region) || !valid_region(region) || !complete_pitches(region, device) ||
        !complete_pitches(region, host) || !in_buffer(*buffer, region, device) || !start_fits(host) ||
        !extent(region, host, host_bytes))
        return CL_INVALID_VALUE;
    if (writes ? !buffer->host_may_write() : !buffer->host_may_read())
        return CL_INVALID_OPERATION;
    if (writes)
        call.wait_for_bytes_only();
    auto* const first = static_cast<std::byte*>(pointer) + host.start();
    const bool in_place = !call.order_with_reads(way == direction::to_device, first, host_bytes);
    const std::size_t piece = call.owner().link().limits().max_payload_bytes / 2;
    if (host_bytes <= piece)
        return send_rect(call, *buffer, way, region, device, host, first, in_place, false);
    // Too large for one request: by slices, and by rows where one slice is too large.
    const std::size_t slice_bytes = (region[1] - 1) * host.row_pitch + region[0];
    const std::size_t rows =
        slice_bytes <= piece ? region[1] : std::max<std::size_t>(1, piece / host.row_pitch);
    for (std::size_t z = 0; z < region[2]; ++z)
        for (std::size_t y = 0; y < region[1]; y += rows) {
            side from = device;
            from.origin[1] += y;
            from.origin[2] += z;
            const cl_int failed =
                send_rect(call, *buffer, way, {region[0], std::min(rows, region[1] - y), 1}, from, host,
                          first + z * host.slice_pitch + y * host.row_pitch, in_place, true);
            if (failed != CL_SUCCESS)
                return failed;
        }
    return call.join();
}

// Whether two regions of one buffer share a byte. Exact when both have the same pitches, which the standard
// requires then.
bool overlap(const triple& region, const side& a, std::size_t a_base, const side& b, std::size_t b_base) {
    const std::size_t a_start = a_base + a.start(), b_start = b_base + b.start();
    std::size_t bytes = 0;
    extent(region, a, bytes);
    if (a_start + bytes <= b_start || b_start + bytes <= a_start)
        return false;
    // Their spans cross; they still miss each other where they lie side by side in a row, or between each
    // other's rows.
    const std::size_t row = a.row_pitch;
    const std::size_t distance = a_start < b_start ? b_start - a_start : a_start - b_start;
    const std::size_t slice = a.slice_pitch;
    const std::size_t in_slice = distance % slice, in_row = distance % row;
    const bool rows_miss = in_row >= region[0] && row - in_row >= region[0];
    const bool slices_miss = in_slice >= region[1] * row && slice - in_slice >= region[1] * row;
    return !rows_miss && !slices_miss;
}

} // namespace

namespace api {

cl_int enqueue_read_buffer_rect(cl_command_queue where, cl_mem buffer, cl_bool blocking,
                                const size_t* buffer_origin, const size_t* host_origin, const size_t* region,
                                size_t buffer_row_pitch, size_t buffer_slice_pitch, size_t host_row_pitch,
                                size_t host_slice_pitch, void* pointer, cl_uint count, const cl_event* list,
                                cl_event* out) {
    return transfer(where, buffer, blocking, direction::to_host, buffer_origin, host_origin, region,
                    {{}, buffer_row_pitch, buffer_slice_pitch}, {{}, host_row_pitch, host_slice_pitch},
                    pointer, count, list, out);
}

cl_int enqueue_write_buffer_rect(cl_command_queue where, cl_mem buffer, cl_bool blocking,
                                 const size_t* buffer_origin, const size_t* host_origin, const size_t* region,
                                 size_t buffer_row_pitch, size_t buffer_slice_pitch, size_t host_row_pitch,
                                 size_t host_slice_pitch, const void* pointer, cl_uint count,
                                 const cl_event* list, cl_event* out) {
    return transfer(where, buffer, blocking, direction::to_device, buffer_origin, host_origin, region,
                    {{}, buffer_row_pitch, buffer_slice_pitch}, {{}, host_row_pitch, host_slice_pitch},
                    const_cast<void*>(pointer), count, list, out);
}

cl_int enqueue_copy_buffer_rect(cl_command_queue where, cl_mem source_handle, cl_mem destination_handle,
                                const size_t* source_origin, const size_t* destination_origin,
                                const size_t* region_in, size_t source_row_pitch, size_t source_slice_pitch,
                                size_t destination_row_pitch, size_t destination_slice_pitch, cl_uint count,
                                const cl_event* list, cl_event* out) {
    enqueueing call(where, CL_COMMAND_COPY_BUFFER_RECT, count, list, out);
    if (call.error() != CL_SUCCESS)
        return call.error();
    memory *source, *destination;
    cl_int error = find_buffer(call, source_handle, source);
    if (error == CL_SUCCESS)
        error = find_buffer(call, destination_handle, destination);
    if (error != CL_SUCCESS)
        return error;
    side from{{}, source_row_pitch, source_slice_pitch},
        to{{}, destination_row_pitch, destination_slice_pitch};
    triple region;
    if (!read_triple(source_origin, from.origin) || !read_triple(destination_origin, to.origin) ||
        !read_triple(region_in, region) || !valid_region(region) || !complete_pitches(region, from) ||
        !complete_pitches(region, to) || !in_buffer(*source, region, from) ||
        !in_buffer(*destination, region, to))
        return CL_INVALID_VALUE;
    if (source == destination && (from.row_pitch != to.row_pitch || from.slice_pitch != to.slice_pitch))
        return CL_INVALID_VALUE;
    const memory* const source_root = source->is_sub_buffer() ? source->parent() : source;
    const memory* const destination_root = destination->is_sub_buffer() ? destination->parent() : destination;
    if (source_root == destination_root && from.row_pitch == to.row_pitch &&
        from.slice_pitch == to.slice_pitch &&
        overlap(region, from, source->is_sub_buffer() ? source->origin() : 0, to,
                destination->is_sub_buffer() ? destination->origin() : 0))
        return CL_MEM_COPY_OVERLAP;
    auto command = make_command<commands::copy_buffer_rect>();
    command.source = source->id();
    command.destination = destination->id();
    std::copy(from.origin.begin(), from.origin.end(), command.source_origin);
    std::copy(to.origin.begin(), to.origin.end(), command.destination_origin);
    std::copy(region.begin(), region.end(), command.region);
    command.source_row_pitch = from.row_pitch;
    command.source_slice_pitch = from.slice_pitch;
    command.destination_row_pitch = to.row_pitch;
    command.destination_slice_pitch = to.slice_pitch;
    return call.send(command);
}

} // namespace api
} // namespace kagemusha::opencl
