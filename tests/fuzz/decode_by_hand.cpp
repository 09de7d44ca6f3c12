// SPDX-License-Identifier: GPL-2.0-or-later
// One function per opcode in the order of proto/abi/vgpu_protocol.h, as the decoder was before there was a
// table of commands.
#include "decode_by_hand.hpp"

#include <algorithm>
#include <cassert>

#include "base/checked.hpp"
#include "codec/cl_numbers.hpp"
#include "codec/command_reader.hpp"
#include "codec/rect.hpp"
#include "codec/stream_walk.hpp"

namespace kagemusha::fuzz {

using namespace codec;

namespace {

using base::checked_u64;
using reader = command_reader;

bool read(reader& r, op_info& o) {
    if (!r.fixed(o.c)) {
        return false;
    }
    const bool subject_is_object = o.c->subject != VGPU_INFO_PLATFORM && o.c->subject != VGPU_INFO_DEVICE &&
                                   o.c->subject != VGPU_INFO_TIMERS;
    return r.require(o.c->subject >= VGPU_INFO_PLATFORM && o.c->subject <= VGPU_INFO_TIMERS,
                     "the subject of a query is unknown") &&
           r.require((o.c->object != 0) == subject_is_object,
                     "a query names no object although its subject needs one, or names one needlessly") &&
           r.require(o.c->result.bytes <= VGPU_MAX_RESULT_BYTES,
                     "the room for a result is larger than VGPU_MAX_RESULT_BYTES") &&
           r.payload_out(o.c->result, o.result) &&
           r.require(o.c->input.index == VGPU_PAYLOAD_NONE || o.c->input.index == VGPU_PAYLOAD_INLINE,
                     "the input of a query must be inline") &&
           r.require(o.c->input.index == VGPU_PAYLOAD_NONE ||
                         (o.c->subject == VGPU_INFO_KERNEL_SUB_GROUP && o.c->input.bytes <= 64),
                     "only a query about sub-groups has an input, of at most 64 bytes") &&
           r.payload_in(o.c->input, o.input);
}

bool read(reader& r, op_create_context& o) {
    return r.fixed(o.c) && r.id(o.c->id) && r.flags(o.c->flags, 0);
}

bool read(reader& r, op_create_queue& o) {
    return r.fixed(o.c) && r.id(o.c->id) && r.id(o.c->context) &&
           r.flags(o.c->properties, cl_queue_out_of_order | cl_queue_profiling) && r.pad(o.c->pad);
}

bool memory_flags(reader& r, std::uint64_t flags) {
    return r.flags(flags, cl_mem_known_flags) &&
           r.require(at_most_one_bit(flags & cl_mem_device_access_flags) &&
                         at_most_one_bit(flags & cl_mem_host_access_flags),
                     "memory flags contradict each other");
}

bool read(reader& r, op_create_buffer& o) {
    return r.fixed(o.c) && r.id(o.c->id) && r.id(o.c->context) && memory_flags(r, o.c->flags) &&
           r.require(o.c->bytes != 0, "a buffer of 0 bytes") && r.payload_in(o.c->content, o.content) &&
           r.require(o.content.bytes == 0 || o.content.bytes == o.c->bytes,
                     "the content of a buffer is not as long as the buffer");
}

bool read(reader& r, op_create_sub_buffer& o) {
    return r.fixed(o.c) && r.id(o.c->id) && r.id(o.c->buffer) && memory_flags(r, o.c->flags) &&
           r.require(o.c->bytes != 0, "a sub-buffer of 0 bytes") &&
           r.require((checked_u64(o.c->origin) + o.c->bytes).ok(),
                     "origin + length of a sub-buffer overflow");
}

bool read(reader& r, op_create_image& o) {
    return r.fixed(o.c) && r.id(o.c->id) && r.id(o.c->context) && memory_flags(r, o.c->flags) &&
           r.require(is_image_type(o.c->image_type), "an unknown image type") &&
           r.require(o.c->mip_levels == 0, "mip levels are not supported") &&
           r.require(o.c->width != 0, "an image without a width") && r.payload_in(o.c->content, o.content) &&
           r.require(o.c->buffer == 0 || o.content.bytes == 0,
                     "an image in a buffer can't have content of its own") &&
           r.require(o.c->image_type != cl_mem_object_image1d_buffer || o.c->buffer != 0,
                     "a buffer image without a buffer");
}

bool read(reader& r, op_create_sampler& o) {
    return r.fixed(o.c) && r.id(o.c->id) && r.id(o.c->context) &&
           r.require(o.c->normalized <= 1, "a truth value is neither 0 nor 1") &&
           r.require(o.c->addressing >= cl_address_none && o.c->addressing <= cl_address_mirrored_repeat,
                     "an unknown addressing mode") &&
           r.require(o.c->filter == cl_filter_nearest || o.c->filter == cl_filter_linear,
                     "an unknown filter mode") &&
           r.pad(o.c->pad);
}

bool read(reader& r, op_create_program& o) {
    return r.fixed(o.c) && r.id(o.c->id) && r.id(o.c->context) &&
           r.require(o.c->kind >= VGPU_PROGRAM_SOURCE && o.c->kind <= VGPU_PROGRAM_BUILT_IN,
                     "an unknown kind of program") &&
           r.pad(o.c->pad) &&
           r.require(o.c->content.bytes <= VGPU_MAX_PROGRAM_BYTES,
                     "a program is larger than VGPU_MAX_PROGRAM_BYTES") &&
           r.require(o.c->content.bytes != 0 || o.c->kind == VGPU_PROGRAM_SOURCE,
                     "a program without content that is not source") &&
           r.payload_in(o.c->content, o.content);
}

bool read(reader& r, op_build_program& o) {
    return r.fixed(o.c) && r.id(o.c->program) && r.pad(o.c->pad) &&
           r.c_text(o.c->options_bytes, VGPU_MAX_OPTIONS_BYTES, o.options);
}

bool read(reader& r, op_compile_program& o) {
    if (!r.fixed(o.c) || !r.id(o.c->program) || !r.pad(o.c->pad) || !r.ids(o.c->header_count, o.headers) ||
        !r.c_text(o.c->options_bytes, VGPU_MAX_OPTIONS_BYTES, o.options) ||
        !r.text(o.c->names_bytes, VGPU_MAX_COMMAND_BYTES, o.names)) {
        return false;
    }
    std::uint32_t names = 0;
    for (const char c : o.names) {
        names += c == '\0';
    }
    return r.require(names == o.c->header_count && (o.names.empty() || o.names.back() == '\0'),
                     "the names of headers are not one per header, each ended by a 0 byte");
}

bool read(reader& r, op_link_program& o) {
    return r.fixed(o.c) && r.id(o.c->id) && r.id(o.c->context) &&
           r.require(o.c->input_count != 0, "a link without programs") && r.ids(o.c->input_count, o.inputs) &&
           r.c_text(o.c->options_bytes, VGPU_MAX_OPTIONS_BYTES, o.options);
}

bool read(reader& r, op_create_kernel& o) {
    return r.fixed(o.c) && r.id(o.c->id) && r.id(o.c->program) && r.pad(o.c->pad) &&
           r.require(o.c->name_bytes != 0, "a kernel without a name") &&
           r.c_text(o.c->name_bytes, VGPU_MAX_NAME_BYTES, o.name);
}

bool read(reader& r, op_create_user_event& o) {
    return r.fixed(o.c) && r.id(o.c->id) && r.id(o.c->context);
}

bool read(reader& r, op_set_user_event& o) {
    return r.fixed(o.c) && r.id(o.c->event) && r.pad(o.c->pad) &&
           r.require(o.c->status <= 0, "the status of a user event is neither complete nor an error");
}

bool read(reader& r, op_destroy& o) {
    return r.fixed(o.c) && r.id(o.c->id) && r.pad(o.c->pad) &&
           r.require(o.c->kind >= VGPU_OBJECT_CONTEXT && o.c->kind <= VGPU_OBJECT_EVENT,
                     "an unknown kind of object");
}

bool read(reader& r, op_flush& o) {
    return r.fixed(o.c) && r.id(o.c->queue);
}

bool read(reader& r, op_await& o) {
    return r.fixed(o.c) && r.pad(o.c->pad) &&
           r.require(o.c->event_count >= 1 && o.c->event_count <= VGPU_MAX_WAIT_COUNT,
                     "an AWAIT without events or with too many") &&
           r.ids(o.c->event_count, o.events);
}

bool read(reader& r, op_set_spec_constant& o) {
    return r.fixed(o.c) && r.id(o.c->program) &&
           r.require(o.c->value_bytes >= 1 && o.c->value_bytes <= 16,
                     "a specialization constant has less than 1 or more than 16 bytes") &&
           r.bytes(o.c->value_bytes, o.value);
}

bool transfer_data(reader& r, bool write, const vgpu_payload_ref& ref, payload_source& data) {
    return (write ? r.payload_in(ref, data) : r.payload_out(ref, data)) &&
           r.require(data.bytes != 0, "a transfer of 0 bytes");
}

bool read(reader& r, op_transfer_buffer& o) {
    return r.fixed(o.c) && r.enqueue(o.c->enqueue, o.waits) && r.id(o.c->buffer) &&
           transfer_data(r, o.write(), o.c->data, o.data) &&
           r.require((checked_u64(o.c->offset) + o.data.bytes).ok(),
                     "offset + length of a transfer overflow");
}

bool region_3d(reader& r, const wire_triple& region) {
    return r.require(region[0] != 0 && region[1] != 0 && region[2] != 0, "a region has a side of 0");
}

bool pitches(reader& r, const wire_triple& region, std::uint64_t row_pitch, std::uint64_t slice_pitch) {
    return r.require(row_pitch >= region[0], "a row pitch is shorter than a row") &&
           r.require((checked_u64(region[1]) * row_pitch).within(slice_pitch),
                     "a slice pitch is shorter than a slice");
}

bool read(reader& r, op_transfer_rect& o) {
    return r.fixed(o.c) && r.enqueue(o.c->enqueue, o.waits) && r.id(o.c->buffer) &&
           region_3d(r, o.c->region) &&
           pitches(r, o.c->region, o.c->buffer_row_pitch, o.c->buffer_slice_pitch) &&
           pitches(r, o.c->region, o.c->host_row_pitch, o.c->host_slice_pitch) &&
           r.require(
               rect_end(o.c->buffer_origin, o.c->region, o.c->buffer_row_pitch, o.c->buffer_slice_pitch).ok(),
               "a rectangle's end overflows") &&
           transfer_data(r, o.write(), o.c->data, o.data) &&
           r.require(rect_bytes(o.c->region, o.c->host_row_pitch, o.c->host_slice_pitch).value() ==
                         o.data.bytes,
                     "the payload is not as long as the rectangle in host memory");
}

bool read(reader& r, op_copy_buffer& o) {
    return r.fixed(o.c) && r.enqueue(o.c->enqueue, o.waits) && r.id(o.c->source) && r.id(o.c->destination) &&
           r.require(o.c->bytes != 0, "a copy of 0 bytes") &&
           r.require((checked_u64(o.c->source_offset) + o.c->bytes).ok() &&
                         (checked_u64(o.c->destination_offset) + o.c->bytes).ok(),
                     "offset + length of a copy overflow");
}

bool read(reader& r, op_copy_rect& o) {
    return r.fixed(o.c) && r.enqueue(o.c->enqueue, o.waits) && r.id(o.c->source) && r.id(o.c->destination) &&
           region_3d(r, o.c->region) &&
           pitches(r, o.c->region, o.c->source_row_pitch, o.c->source_slice_pitch) &&
           pitches(r, o.c->region, o.c->destination_row_pitch, o.c->destination_slice_pitch) &&
           r.require(rect_end(o.c->source_origin, o.c->region, o.c->source_row_pitch, o.c->source_slice_pitch)
                             .ok() &&
                         rect_end(o.c->destination_origin, o.c->region, o.c->destination_row_pitch,
                                  o.c->destination_slice_pitch)
                             .ok(),
                     "a rectangle's end overflows");
}

bool read(reader& r, op_fill_buffer& o) {
    if (!r.fixed(o.c) || !r.enqueue(o.c->enqueue, o.waits) || !r.id(o.c->buffer) || !r.pad(o.c->pad)) {
        return false;
    }
    const std::uint32_t pattern = o.c->pattern_bytes;
    return r.require(pattern != 0 && pattern <= sizeof(o.c->pattern) && at_most_one_bit(pattern),
                     "the length of a fill pattern is not a power of two up to 128") &&
           r.require(reader::zeros(std::as_bytes(std::span(o.c->pattern)).subspan(pattern)),
                     "padding is not 0") &&
           r.require(o.c->bytes != 0, "a fill of 0 bytes") &&
           r.require(o.c->bytes % pattern == 0 && o.c->offset % pattern == 0,
                     "offset or length of a fill is not a multiple of its pattern") &&
           r.require((checked_u64(o.c->offset) + o.c->bytes).ok(), "offset + length of a fill overflow");
}

bool image_box(reader& r, const wire_triple& origin, const wire_triple& region) {
    return region_3d(r, region) &&
           r.require((checked_u64(origin[0]) + region[0]).ok() && (checked_u64(origin[1]) + region[1]).ok() &&
                         (checked_u64(origin[2]) + region[2]).ok(),
                     "origin + region of an image overflow");
}

bool read(reader& r, op_transfer_image& o) {
    return r.fixed(o.c) && r.enqueue(o.c->enqueue, o.waits) && r.id(o.c->image) &&
           image_box(r, o.c->origin, o.c->region) &&
           r.require(o.c->row_pitch >= o.c->region[0], "a row pitch is shorter than a row") &&
           transfer_data(r, o.write(), o.c->data, o.data);
}

bool read(reader& r, op_copy_image& o) {
    return r.fixed(o.c) && r.enqueue(o.c->enqueue, o.waits) && r.id(o.c->source) && r.id(o.c->destination) &&
           image_box(r, o.c->source_origin, o.c->region) &&
           image_box(r, o.c->destination_origin, o.c->region);
}

bool read(reader& r, op_copy_image_buffer& o) {
    return r.fixed(o.c) && r.enqueue(o.c->enqueue, o.waits) && r.id(o.c->image) && r.id(o.c->buffer) &&
           image_box(r, o.c->origin, o.c->region);
}

bool read(reader& r, op_fill_image& o) {
    return r.fixed(o.c) && r.enqueue(o.c->enqueue, o.waits) && r.id(o.c->image) &&
           image_box(r, o.c->origin, o.c->region);
}

// Walks the arguments of a launch once, so that argument_list::for_each can't fail later.
bool walk_arguments(reader& r, std::span<const std::byte> bytes, std::uint32_t count) {
    std::int64_t last_index = -1;
    for (std::uint32_t i = 0; i < count; ++i) {
        if (bytes.size() < sizeof(vgpu_argument)) {
            return r.refuse("fewer argument bytes than arguments");
        }
        const auto& a = *reinterpret_cast<const vgpu_argument*>(bytes.data());
        bytes = bytes.subspan(sizeof(vgpu_argument));
        if (a.index >= VGPU_MAX_ARGUMENTS || std::int64_t{a.index} <= last_index) {
            return r.refuse("the indices of arguments do not ascend or are too large");
        }
        last_index = a.index;
        if (a.bytes == 0) {
            return r.refuse("an argument of 0 bytes");
        }
        std::uint64_t value_bytes = 0;
        switch (a.kind) {
        case VGPU_ARGUMENT_BYTES:
            value_bytes = a.bytes;
            break;
        case VGPU_ARGUMENT_MEMORY:
        case VGPU_ARGUMENT_SAMPLER:
            if (a.bytes != sizeof(guest_id)) {
                return r.refuse("an argument that names an object is not 8 bytes long");
            }
            value_bytes = sizeof(guest_id);
            break;
        case VGPU_ARGUMENT_LOCAL:
            break;
        default:
            return r.refuse("an unknown kind of argument");
        }
        // bytes.size() is a multiple of 8, so a value that fits has room for its padding too.
        if (value_bytes > bytes.size()) {
            return r.refuse("an argument is longer than the command");
        }
        if (!reader::zeros(bytes.subspan(value_bytes, padded(value_bytes) - value_bytes))) {
            return r.refuse("padding is not 0");
        }
        if (a.kind == VGPU_ARGUMENT_SAMPLER && *reinterpret_cast<const guest_id*>(bytes.data()) == 0) {
            return r.refuse("an id that must name an object is 0");
        }
        bytes = bytes.subspan(padded(value_bytes));
    }
    return r.require(bytes.empty(), "more argument bytes than arguments");
}

bool read(reader& r, op_launch& o) {
    if (!r.fixed(o.c) || !r.enqueue(o.c->enqueue, o.waits) || !r.id(o.c->kernel) ||
        !r.flags(o.c->flags, VGPU_LAUNCH_LOCAL_SIZE)) {
        return false;
    }
    if (const char* why = launch_size_error(*o.c)) {
        return r.refuse(why);
    }
    std::span<const std::byte> bytes;
    if (!r.require(o.c->argument_count <= VGPU_MAX_ARGUMENTS, "more arguments than VGPU_MAX_ARGUMENTS") ||
        !r.require(o.c->argument_bytes % 8 == 0, "argument_bytes is not a multiple of 8") ||
        !r.bytes(o.c->argument_bytes, bytes) || !walk_arguments(r, bytes, o.c->argument_count)) {
        return false;
    }
    o.arguments = argument_list(bytes, o.c->argument_count);
    return true;
}

bool read(reader& r, op_sync& o) {
    return r.fixed(o.c) && r.enqueue(o.c->enqueue, o.waits);
}

bool read(reader& r, op_migrate& o) {
    return r.fixed(o.c) && r.enqueue(o.c->enqueue, o.waits) &&
           r.flags(o.c->flags, cl_migrate_host | cl_migrate_content_undefined) && r.pad(o.c->pad) &&
           r.require(o.c->object_count != 0, "a migration of nothing") && r.ids(o.c->object_count, o.objects);
}

bool read(reader& r, op_write_runs& o) {
    const auto command = r.all();
    write_runs_fields& f = o.c.value;
    f = {{VGPU_CMD_WRITE_RUNS, 0, static_cast<std::uint32_t>(command.size())}, {}, 0};
    std::size_t at = offsetof(vgpu_cmd_write_runs, body);
    std::uint64_t queue = 0, run_bytes = 0;
    for (std::uint64_t* number : {&queue, &f.buffer, &run_bytes}) {
        if (const char* why = read_number(command, at, *number)) {
            return r.refuse(why);
        }
    }
    f.enqueue.queue = queue;
    if (!r.id(queue) || !r.id(f.buffer) ||
        !r.require(run_bytes != 0 && run_bytes <= VGPU_MAX_RUN_BYTES,
                   "a write has no runs, or more bytes of them than VGPU_MAX_RUN_BYTES") ||
        !r.require(run_bytes <= command.size() - at, "the runs of a write are longer than the command")) {
        return false;
    }
    const auto encoded = command.subspan(at, run_bytes);
    const auto rest = command.subspan(at + run_bytes);
    run_walk walk(encoded, static_cast<std::uint32_t>(
                               std::min<std::size_t>(rest.size(), VGPU_MAX_INLINE_PAYLOAD_BYTES)));
    buffer_run run{};
    while (walk.next(run)) {
    }
    if (walk.error()) {
        return r.refuse(walk.error());
    }
    o.bytes = rest.first(walk.bytes());
    o.runs = run_list(encoded, walk.bytes());
    o.end = walk.end();
    const auto padding = rest.subspan(walk.bytes());
    return r.require(padding.size() < 8, "the runs of a write are shorter than their data") &&
           r.require(reader::zeros(padding), "padding is not 0");
}

template <class Op>
bool read_as(reader& r, op& out) {
    Op& o = out.emplace<Op>();
    return read(r, o) && r.done();
}

bool read_command(reader& r, std::uint16_t opcode, op& out) {
    switch (opcode) {
        // clang-format off
    case VGPU_CMD_INFO:                 return read_as<op_info>(r, out);
    case VGPU_CMD_CREATE_CONTEXT:       return read_as<op_create_context>(r, out);
    case VGPU_CMD_CREATE_QUEUE:         return read_as<op_create_queue>(r, out);
    case VGPU_CMD_CREATE_BUFFER:        return read_as<op_create_buffer>(r, out);
    case VGPU_CMD_CREATE_SUB_BUFFER:    return read_as<op_create_sub_buffer>(r, out);
    case VGPU_CMD_CREATE_IMAGE:         return read_as<op_create_image>(r, out);
    case VGPU_CMD_CREATE_SAMPLER:       return read_as<op_create_sampler>(r, out);
    case VGPU_CMD_CREATE_PROGRAM:       return read_as<op_create_program>(r, out);
    case VGPU_CMD_BUILD_PROGRAM:        return read_as<op_build_program>(r, out);
    case VGPU_CMD_COMPILE_PROGRAM:      return read_as<op_compile_program>(r, out);
    case VGPU_CMD_LINK_PROGRAM:         return read_as<op_link_program>(r, out);
    case VGPU_CMD_CREATE_KERNEL:        return read_as<op_create_kernel>(r, out);
    case VGPU_CMD_CREATE_USER_EVENT:    return read_as<op_create_user_event>(r, out);
    case VGPU_CMD_SET_USER_EVENT:       return read_as<op_set_user_event>(r, out);
    case VGPU_CMD_DESTROY:              return read_as<op_destroy>(r, out);
    case VGPU_CMD_FLUSH:                return read_as<op_flush>(r, out);
    case VGPU_CMD_AWAIT:                return read_as<op_await>(r, out);
    case VGPU_CMD_SET_SPEC_CONSTANT:    return read_as<op_set_spec_constant>(r, out);
    case VGPU_CMD_WRITE_BUFFER:
    case VGPU_CMD_READ_BUFFER:          return read_as<op_transfer_buffer>(r, out);
    case VGPU_CMD_WRITE_BUFFER_RECT:
    case VGPU_CMD_READ_BUFFER_RECT:     return read_as<op_transfer_rect>(r, out);
    case VGPU_CMD_COPY_BUFFER:          return read_as<op_copy_buffer>(r, out);
    case VGPU_CMD_COPY_BUFFER_RECT:     return read_as<op_copy_rect>(r, out);
    case VGPU_CMD_FILL_BUFFER:          return read_as<op_fill_buffer>(r, out);
    case VGPU_CMD_WRITE_IMAGE:
    case VGPU_CMD_READ_IMAGE:           return read_as<op_transfer_image>(r, out);
    case VGPU_CMD_COPY_IMAGE:           return read_as<op_copy_image>(r, out);
    case VGPU_CMD_COPY_IMAGE_TO_BUFFER:
    case VGPU_CMD_COPY_BUFFER_TO_IMAGE: return read_as<op_copy_image_buffer>(r, out);
    case VGPU_CMD_FILL_IMAGE:           return read_as<op_fill_image>(r, out);
    case VGPU_CMD_LAUNCH:               return read_as<op_launch>(r, out);
    case VGPU_CMD_MARKER:
    case VGPU_CMD_BARRIER:              return read_as<op_sync>(r, out);
    case VGPU_CMD_MIGRATE:              return read_as<op_migrate>(r, out);
    case VGPU_CMD_WRITE_RUNS:           return read_as<op_write_runs>(r, out);
    // clang-format on
    default:
        return r.refuse("an unknown opcode");
    }
}

} // namespace

decode_status hand_decoder::next(op& out) {
    return next_by(out, [](std::span<const std::byte> command, const stream_context& context,
                           std::uint64_t* payload_used, op& o) {
        command_reader r(command, context, payload_used);
        read_command(r, reinterpret_cast<const vgpu_cmd*>(command.data())->opcode, o);
        return r.message;
    });
}

} // namespace kagemusha::fuzz
