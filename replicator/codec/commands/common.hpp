// SPDX-License-Identifier: GPL-2.0-or-later
// The rows of commands that every GPU API has: contexts, programs, kernels, transfers of linear memory,
// launches, barriers. None of them contains a number of OpenCL, so another API can use them as they are. In
// the order of proto/abi/vgpu_protocol.h.
#pragma once

#include <algorithm>
#include <iterator>
#include <tuple>

#include "base/checked.hpp"
#include "codec/commands/row.hpp"
#include "codec/launch_size.hpp"
#include "codec/rect.hpp"

namespace kagemusha::codec::commands {

// For the samples of rows.
constexpr void sample_triple(__u64 (&to)[3], __u64 x, __u64 y, __u64 z) {
    to[0] = x;
    to[1] = y;
    to[2] = z;
}

// clang-format off: one part per line
struct create_context : call<VGPU_CMD_CREATE_CONTEXT, op_create_context> {
    static constexpr const char* name = "CREATE_CONTEXT";
    static constexpr auto parts = std::tuple(
        creates(object::context, &wire::id),
        flags(&wire::flags, 0));
};

struct create_program : call<VGPU_CMD_CREATE_PROGRAM, op_create_program> {
    static constexpr const char* name = "CREATE_PROGRAM";
    static constexpr auto parts = std::tuple(
        creates(object::program, &wire::id),
        uses(object::context, &wire::context),
        between(&wire::kind, VGPU_PROGRAM_SOURCE, VGPU_PROGRAM_BUILT_IN, "an unknown kind of program"),
        pad(&wire::pad),
        rule("a program is larger than VGPU_MAX_PROGRAM_BYTES",
             [](const wire& c) { return c.content.bytes <= VGPU_MAX_PROGRAM_BYTES; }),
        rule("a program without content that is not source",
             [](const wire& c) { return c.content.bytes != 0 || c.kind == VGPU_PROGRAM_SOURCE; }),
        payload_in(&op::content, &wire::content));
};

struct create_kernel : call<VGPU_CMD_CREATE_KERNEL, op_create_kernel> {
    static constexpr const char* name = "CREATE_KERNEL";
    static constexpr auto parts = std::tuple(
        creates(object::kernel, &wire::id),
        uses(object::program, &wire::program),
        pad(&wire::pad),
        not_zero(&wire::name_bytes, "a kernel without a name"),
        text(&op::name, &wire::name_bytes, VGPU_MAX_NAME_BYTES));
};

struct destroy : silent<VGPU_CMD_DESTROY, op_destroy> {
    static constexpr const char* name = "DESTROY";
    static constexpr auto parts = std::tuple(
        destroys(&wire::id),
        pad(&wire::pad),
        between(&wire::kind, VGPU_OBJECT_CONTEXT, VGPU_OBJECT_EVENT, "an unknown kind of object"));
};

struct flush : silent<VGPU_CMD_FLUSH, op_flush> {
    static constexpr const char* name = "FLUSH";
    static constexpr auto parts = std::tuple(
        uses(object::queue, &wire::queue));
};

struct await : log_only<VGPU_CMD_AWAIT, op_await> {
    static constexpr const char* name = "AWAIT";
    static constexpr auto parts = std::tuple(
        pad(&wire::pad),
        between(&wire::event_count, 1, VGPU_MAX_WAIT_COUNT, "an AWAIT without events or with too many"),
        ids(object::event, &op::events, &wire::event_count));
};

// TAKE_BUILT, STORE_BUILT
template <class Data>
constexpr auto built_parts(std::uint32_t known, Data data) {
    using wire = vgpu_cmd_built;
    return std::tuple(
        flags(&wire::flags, known),
        pad(&wire::pad),
        rule("TAKE_BUILT or STORE_BUILT without a payload",
             [](const wire& c) { return c.data.bytes != 0; }),
        data);
}
struct take_built : log_only<VGPU_CMD_TAKE_BUILT, op_built> {
    static constexpr const char* name = "TAKE_BUILT";
    static constexpr auto parts = built_parts(VGPU_BUILT_ALL, payload_out(&op::data, &wire::data));
};
struct store_built : log_only<VGPU_CMD_STORE_BUILT, op_built> {
    static constexpr const char* name = "STORE_BUILT";
    static constexpr auto parts = built_parts(0, payload_in(&op::data, &wire::data));
};

// ---- enqueued

inline constexpr auto data_bytes = [](const auto& c) -> std::uint64_t { return c.data.bytes; };
inline constexpr const char* empty_transfer = "a transfer of 0 bytes";

// WRITE_BUFFER, READ_BUFFER
template <class Buffer, class Data>
constexpr auto transfer_buffer_parts(Buffer buffer, Data data) {
    using wire = vgpu_cmd_transfer_buffer;
    return std::tuple(
        buffer,
        data,
        not_zero(data_bytes, empty_transfer),
        range(&wire::buffer, &wire::offset, data_bytes, "offset + length of a transfer overflow"));
}
struct write_buffer : enqueued<VGPU_CMD_WRITE_BUFFER, op_transfer_buffer> {
    static constexpr const char* name = "WRITE_BUFFER";
    static constexpr auto parts = transfer_buffer_parts(
        writes(object::buffer, &wire::buffer),
        payload_in(&op::data, &wire::data));
};
struct read_buffer : enqueued<VGPU_CMD_READ_BUFFER, op_transfer_buffer> {
    static constexpr const char* name = "READ_BUFFER";
    static constexpr auto parts = transfer_buffer_parts(
        reads(object::buffer, &wire::buffer),
        payload_out(&op::data, &wire::data));
};

// WRITE_BUFFER_RECT, READ_BUFFER_RECT
template <class Buffer, class Data>
constexpr auto transfer_rect_parts(Buffer buffer, Data data) {
    using wire = vgpu_cmd_transfer_rect;
    return std::tuple(
        buffer,
        region(&wire::region),
        pitches(&wire::region, &wire::buffer_row_pitch, &wire::buffer_slice_pitch),
        pitches(&wire::region, &wire::host_row_pitch, &wire::host_slice_pitch),
        rect(&wire::buffer, &wire::buffer_origin, &wire::region, &wire::buffer_row_pitch,
             &wire::buffer_slice_pitch),
        data,
        not_zero(data_bytes, empty_transfer),
        rule("the payload is not as long as the rectangle in host memory",
             [](const wire& c) { return rect_bytes(c.region, c.host_row_pitch, c.host_slice_pitch).value() ==
                                        c.data.bytes; }));
}
constexpr void sample_rect(vgpu_cmd_transfer_rect& c) {
    sample_triple(c.buffer_origin, 8, 1, 1);
    sample_triple(c.region, 16, 4, 2);
    c.buffer_row_pitch = 64;
    c.buffer_slice_pitch = 1024;
    c.host_row_pitch = 16;
    c.host_slice_pitch = 16 * 4;
    c.data.bytes = 16 * 4 * 2;
}
struct write_buffer_rect : enqueued<VGPU_CMD_WRITE_BUFFER_RECT, op_transfer_rect> {
    static constexpr const char* name = "WRITE_BUFFER_RECT";
    static constexpr auto parts = transfer_rect_parts(
        writes(object::buffer, &wire::buffer),
        payload_in(&op::data, &wire::data));
    static void sample(wire& c) { sample_rect(c); }
};
struct read_buffer_rect : enqueued<VGPU_CMD_READ_BUFFER_RECT, op_transfer_rect> {
    static constexpr const char* name = "READ_BUFFER_RECT";
    static constexpr auto parts = transfer_rect_parts(
        reads(object::buffer, &wire::buffer),
        payload_out(&op::data, &wire::data));
    static void sample(wire& c) { sample_rect(c); }
};

struct copy_buffer : enqueued<VGPU_CMD_COPY_BUFFER, op_copy_buffer> {
    static constexpr const char* name = "COPY_BUFFER";
    static constexpr const char* overflow = "offset + length of a copy overflow";
    static constexpr auto parts = std::tuple(
        reads(object::buffer, &wire::source),
        writes(object::buffer, &wire::destination),
        not_zero(&wire::bytes, "a copy of 0 bytes"),
        range(&wire::source, &wire::source_offset, &wire::bytes, overflow),
        range(&wire::destination, &wire::destination_offset, &wire::bytes, overflow));
    static void sample(wire& c) {
        c.destination_offset = 4096; // both are one buffer
        c.bytes = 100;
    }
};

struct copy_buffer_rect : enqueued<VGPU_CMD_COPY_BUFFER_RECT, op_copy_rect> {
    static constexpr const char* name = "COPY_BUFFER_RECT";
    static constexpr auto parts = std::tuple(
        reads(object::buffer, &wire::source),
        writes(object::buffer, &wire::destination),
        region(&wire::region),
        pitches(&wire::region, &wire::source_row_pitch, &wire::source_slice_pitch),
        pitches(&wire::region, &wire::destination_row_pitch, &wire::destination_slice_pitch),
        rect(&wire::source, &wire::source_origin, &wire::region, &wire::source_row_pitch,
             &wire::source_slice_pitch),
        rect(&wire::destination, &wire::destination_origin, &wire::region, &wire::destination_row_pitch,
             &wire::destination_slice_pitch));
    static void sample(wire& c) {
        sample_triple(c.destination_origin, 4, 1, 8); // both are one buffer
        sample_triple(c.region, 16, 2, 2);
        c.source_row_pitch = c.destination_row_pitch = 32;
        c.source_slice_pitch = c.destination_slice_pitch = 256;
    }
};

struct fill_buffer : enqueued<VGPU_CMD_FILL_BUFFER, op_fill_buffer> {
    static constexpr const char* name = "FILL_BUFFER";
    static constexpr auto parts = std::tuple(
        writes(object::buffer, &wire::buffer),
        pad(&wire::pad),
        rule("the length of a fill pattern is not a power of two up to 128",
             [](const wire& c) { return c.pattern_bytes != 0 && c.pattern_bytes <= sizeof(c.pattern) &&
                                        (c.pattern_bytes & (c.pattern_bytes - 1)) == 0; }),
        rule("padding is not 0",
             [](const wire& c) { return std::all_of(c.pattern + c.pattern_bytes, std::end(c.pattern),
                                                    [](__u8 octet) { return octet == 0; }); }),
        not_zero(&wire::bytes, "a fill of 0 bytes"),
        rule("offset or length of a fill is not a multiple of its pattern",
             [](const wire& c) { return c.bytes % c.pattern_bytes == 0 && c.offset % c.pattern_bytes == 0; }),
        range(&wire::buffer, &wire::offset, &wire::bytes, "offset + length of a fill overflow"));
};

// What a launch writes is among its arguments, and what they mean is the API's.
struct launch : enqueued<VGPU_CMD_LAUNCH, op_launch> {
    static constexpr const char* name = "LAUNCH";
    static constexpr auto parts = std::tuple(
        uses(object::kernel, &wire::kernel),
        flags(&wire::flags, VGPU_LAUNCH_LOCAL_SIZE | VGPU_LAUNCH_COOPERATIVE | VGPU_LAUNCH_CLUSTERS),
        rules(launch_size_errors, [](const wire& c) { return launch_size_error(c); }),
        arguments(&op::arguments, &wire::argument_count, &wire::argument_bytes));
};

struct marker : enqueued<VGPU_CMD_MARKER, op_sync> {
    static constexpr const char* name = "MARKER";
    static constexpr std::tuple<> parts{};
};
struct barrier : enqueued<VGPU_CMD_BARRIER, op_sync> {
    static constexpr const char* name = "BARRIER";
    static constexpr std::tuple<> parts{};
};

// Packed: it has no fixed structure, so the decoder reads it by hand (codec/decode.cpp) and the parts
// describe what comes of that.
struct write_runs : enqueued<VGPU_CMD_WRITE_RUNS, op_write_runs> {
    static constexpr const char* name = "WRITE_RUNS";
    static constexpr bool packed = true;
    static constexpr auto parts = std::tuple(
        writes(object::buffer, &wire::buffer));
};

using common_rows = rows<
    create_context, create_program, create_kernel, destroy, flush, await, take_built, store_built, write_buffer, read_buffer,
    write_buffer_rect, read_buffer_rect, copy_buffer, copy_buffer_rect, fill_buffer, launch, marker, barrier,
    write_runs>;
// clang-format on

} // namespace kagemusha::codec::commands
