// SPDX-License-Identifier: GPL-2.0-or-later
//
// Transfers of buffers and images; transfer.hpp has the idea.
#include "transfer.hpp"

#include "api.hpp"

#include <algorithm>

namespace kagemusha::opencl {
namespace {

// Payloads of one request are pinned pages; leaving room for unaligned ends keeps every piece below the
// limit.
std::size_t largest_piece(const connection& link) {
    const std::uint64_t limit = link.limits().max_payload_bytes;
    return limit > 8192 ? (limit - 4096) & ~std::uint64_t{4095} : limit;
}

template <class Data>
cl_int send_buffer(enqueueing& call, const memory& buffer, direction way, std::size_t offset,
                   const Data& data, bool step) {
    return with_command<commands::write_buffer, commands::read_buffer>(way, [&](auto& command) {
        command.buffer = buffer.id();
        command.offset = offset;
        return send_piece(call, command, data, step);
    });
}

} // namespace

cl_int transfer_buffer(enqueueing& call, memory& buffer, direction way, std::size_t offset, std::size_t bytes,
                       void* host, bool is_view) {
    const bool in_place = !call.order_with_reads(way == direction::to_device, host, bytes) || is_view;
    if (way == direction::to_device && bytes <= max_inline_bytes && !in_place)
        return send_buffer(call, buffer, way, offset, inlined(host, bytes), false);
    const std::size_t piece = largest_piece(call.owner().link());
    const bool to_host = way == direction::to_host;
    if (bytes <= piece)
        return send_buffer(call, buffer, way, offset, payload{host, bytes, to_host, is_view}, false);
    for (std::size_t at = 0; at < bytes; at += piece) {
        const payload data{static_cast<std::byte*>(host) + at, std::min(piece, bytes - at), to_host, is_view};
        const cl_int error = send_buffer(call, buffer, way, offset + at, data, true);
        if (error != CL_SUCCESS)
            return error;
    }
    return call.join();
}

cl_int transfer_image(enqueueing& call, memory& image, direction way, const triple& origin,
                      const triple& region, std::size_t row_pitch, std::size_t slice_pitch, void* host,
                      bool is_view) {
    const image_shape& shape = image.shape();
    const bool rows_are_layers = image.type() == CL_MEM_OBJECT_IMAGE1D_ARRAY;
    // The layers of a 1D array are the rows of the region, so its slice pitch is what lies between them.
    const std::size_t row = rows_are_layers ? slice_pitch : row_pitch;
    const std::size_t slice = slice_pitch;
    const std::size_t rows_bytes = (region[1] - 1) * row + region[0] * shape.element_bytes;
    const bool in_place =
        !call.order_with_reads(way == direction::to_device, host, (region[2] - 1) * slice + rows_bytes) ||
        is_view;
    const auto send = [&](const triple& from, const triple& size, std::byte* place, bool step) {
        const std::uint64_t bytes =
            (size[2] - 1) * slice + (size[1] - 1) * row + size[0] * shape.element_bytes;
        return with_command<commands::write_image, commands::read_image>(way, [&](auto& command) {
            command.image = image.id();
            std::copy(from.begin(), from.end(), command.origin);
            std::copy(size.begin(), size.end(), command.region);
            command.row_pitch = row;
            command.slice_pitch = slice;
            if (way == direction::to_device && bytes <= max_inline_bytes && !in_place)
                return send_piece(call, command, inlined(place, bytes), step);
            return send_piece(call, command, payload{place, bytes, way == direction::to_host}, step);
        });
    };
    auto* const first = static_cast<std::byte*>(host);
    const std::size_t piece = largest_piece(call.owner().link());
    if ((region[2] - 1) * slice + rows_bytes <= piece)
        return send(origin, region, first, false);

    // Too large for one request: by slices, by rows where one slice is too large, and by parts of a row where
    // that is (an image of a buffer may have a single, very long one).
    const std::size_t row_bytes = region[0] * shape.element_bytes;
    const std::size_t columns =
        row_bytes <= piece ? region[0] : std::max<std::size_t>(1, piece / shape.element_bytes);
    const std::size_t rows = row_bytes > piece    ? 1
                             : rows_bytes > piece ? 1 + (piece - row_bytes) / row
                                                  : region[1];
    for (std::size_t z = 0; z < region[2]; ++z)
        for (std::size_t y = 0; y < region[1]; y += rows)
            for (std::size_t x = 0; x < region[0]; x += columns) {
                const cl_int error =
                    send({origin[0] + x, origin[1] + y, origin[2] + z},
                         {std::min(columns, region[0] - x), std::min(rows, region[1] - y), 1},
                         first + z * slice + y * row + x * shape.element_bytes, true);
                if (error != CL_SUCCESS)
                    return error;
            }
    return call.join();
}

bool fits_one_request(const connection& link, std::uint64_t bytes) {
    return bytes <= largest_piece(link);
}

cl_int write_initial_content(memory& object, const void* content) {
    cl_int error = CL_SUCCESS;
    cl_command_queue queue_handle = api::create_command_queue_with_properties(
        to_handle<cl_context>(&object.owner()), to_handle<cl_device_id>(&object.owner().gpu()), nullptr,
        &error);
    if (error != CL_SUCCESS)
        return error;
    {
        // Not through clEnqueueWrite…: the program may have denied itself to write.
        enqueueing call(queue_handle, object.is_buffer() ? CL_COMMAND_WRITE_BUFFER : CL_COMMAND_WRITE_IMAGE,
                        0, nullptr, nullptr, true);
        void* const from = const_cast<void*>(content);
        if (call.error() != CL_SUCCESS)
            error = call.error();
        else if (object.is_buffer())
            error = transfer_buffer(call, object, direction::to_device, 0, object.bytes(), from);
        else
            error = transfer_image(call, object, direction::to_device, {0, 0, 0}, image_size(object),
                                   object.shape().row_pitch, object.shape().slice_pitch, from);
    }
    api::release_command_queue(queue_handle);
    return error;
}

} // namespace kagemusha::opencl
