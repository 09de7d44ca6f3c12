// SPDX-License-Identifier: GPL-2.0-or-later
//
// Moving bytes between the program's memory and a memory object, once everything has been checked: inline
// when it is small, in place when it is large, in several commands when it is more than one request can
// carry. Used by the read and write functions and by map and unmap.
#pragma once

#include "enqueue.hpp"
#include "memory.hpp"

#include <type_traits>

namespace kagemusha::opencl {

enum class direction { to_device, to_host };

// send(command) with the command of the row for this direction. Both rows have the same structure.
template <class ToDevice, class ToHost, class Send>
cl_int with_command(direction way, const Send& send) {
    if (way == direction::to_device) {
        auto command = make_command<ToDevice>();
        return send(command);
    }
    auto command = make_command<ToHost>();
    return send(command);
}

// `step`: one of several commands that are one transfer. `data`: a view of its bytes; what is inlined is taken.
template <class Command, class Data>
cl_int send_piece(enqueueing& call, Command& command, const Data& data, bool step) {
    if constexpr (std::is_same_v<Data, codec::payload_source>)
        if (!step)
            call.take_bytes();
    return step ? call.send_step(command, data) : call.send(command, data);
}

// `host`: the first byte. `is_view`: it is the buffer's own host view, which commands before this one may
// still be writing into; so it is read when the command runs and not before.
cl_int transfer_buffer(enqueueing& call, memory& buffer, direction way, std::size_t offset, std::size_t bytes,
                       void* host, bool is_view = false);

// `host`: the first byte of the region, with the given pitches between its rows and slices. `is_view`: as
// above.
cl_int transfer_image(enqueueing& call, memory& image, direction way, const triple& origin,
                      const triple& region, std::size_t row_pitch, std::size_t slice_pitch, void* host,
                      bool is_view = false);

// Whether one request can carry so much of the program's memory, wherever it begins.
bool fits_one_request(const connection& link, std::uint64_t bytes);

// Initial content that does not: written in pieces, through a queue of its own, before this returns. The
// content lies as in the object's host view. The host must not have been told that the program may not
// write.
cl_int write_initial_content(memory& object, const void* content);

} // namespace kagemusha::opencl
