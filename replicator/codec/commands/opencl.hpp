// SPDX-License-Identifier: GPL-2.0-or-later
// The rows of commands that only OpenCL has, or that contain its numbers (flags, modes, types of images). In
// the order of proto/abi/vgpu_protocol.h. Queues and buffers are here because of their flags: an API with
// other flags gets rows of its own.
#pragma once

#include <algorithm>
#include <span>
#include <tuple>

#include "codec/cl_numbers.hpp"
#include "codec/commands/common.hpp"
#include "proto/abi/vgpu_cuda.h"

namespace kagemusha::codec::commands {

// clang-format off: one part per line
// The object's kind depends on the subject, so core's validator looks it up by hand.
// What a guest tells of its driver or its program: a function that is not there, who asks for a proof.
constexpr bool is_report(const vgpu_cmd_info& c) {
    return c.subject == VGPU_INFO_DEVICE && (c.name == VGPU_CUDA_UNSUPPORTED || c.name == VGPU_CUDA_VALIDITY);
}
static_assert(sizeof(vgpu_cuda_question) <= VGPU_CUDA_REPORT_BYTES);

constexpr bool is_tensor_map(const vgpu_cmd_info& c) {
    return c.subject == VGPU_INFO_DEVICE && c.name == VGPU_CUDA_TENSOR_MAP;
}

struct info : call<VGPU_CMD_INFO, op_info> {
    static constexpr const char* name = "INFO";
    static constexpr auto parts = std::tuple(
        between(&wire::subject, VGPU_INFO_PLATFORM, VGPU_INFO_TIMERS, "the subject of a query is unknown"),
        may_use(object::any, &wire::object),
        rule("a query names no object although its subject needs one, or names one needlessly",
             [](const wire& c) {
                 const bool of_object = c.subject != VGPU_INFO_PLATFORM && c.subject != VGPU_INFO_DEVICE &&
                                        c.subject != VGPU_INFO_TIMERS;
                 return (c.object != 0) == of_object;
             }),
        rule("the room for a result is larger than VGPU_MAX_RESULT_BYTES",
             [](const wire& c) { return c.result.bytes <= VGPU_MAX_RESULT_BYTES; }),
        payload_out(&op::result, &wire::result),
        rule("the input of a query must be inline",
             [](const wire& c) { return c.input.index == VGPU_PAYLOAD_NONE ||
                                        c.input.index == VGPU_PAYLOAD_INLINE; }),
        rule("only a query about sub-groups and a report have an input, of at most 64 bytes, one about a program, a name, or one about a tensor map, the map",
             [](const wire& c) { return c.input.index == VGPU_PAYLOAD_NONE ||
                                        ((c.subject == VGPU_INFO_KERNEL_SUB_GROUP || is_report(c)) &&
                                         c.input.bytes <= VGPU_CUDA_REPORT_BYTES) ||
                                        (is_tensor_map(c) && c.input.bytes == sizeof(vgpu_cuda_tensor_map)) ||
                                        (c.subject == VGPU_INFO_PROGRAM && c.input.bytes <= VGPU_MAX_NAME_BYTES); }),
        payload_in(&op::input, &wire::input));
};

struct create_queue : call<VGPU_CMD_CREATE_QUEUE, op_create_queue> {
    static constexpr const char* name = "CREATE_QUEUE";
    static constexpr auto parts = std::tuple(
        creates(object::queue, &wire::id),
        uses(object::context, &wire::context),
        flags(&wire::properties, cl_queue_out_of_order | cl_queue_profiling | VGPU_QUEUE_LEGACY |
                                     VGPU_QUEUE_NON_BLOCKING | VGPU_QUEUE_URGENT),
        pad(&wire::pad));
};

inline constexpr auto memory_flags_agree = [](const auto& c) {
    return at_most_one_bit(c.flags & cl_mem_device_access_flags) &&
           at_most_one_bit(c.flags & cl_mem_host_access_flags);
};
inline constexpr const char* contradiction = "memory flags contradict each other";

struct create_buffer : call<VGPU_CMD_CREATE_BUFFER, op_create_buffer> {
    static constexpr const char* name = "CREATE_BUFFER";
    static constexpr auto parts = std::tuple(
        creates(object::buffer, &wire::id),
        uses(object::context, &wire::context),
        flags(&wire::flags, cl_mem_known_flags),
        rule(contradiction, memory_flags_agree),
        not_zero(&wire::bytes, "a buffer of 0 bytes"),
        payload_in(&op::content, &wire::content),
        rule("the content of a buffer is not as long as the buffer",
             [](const wire& c) { return c.content.bytes == 0 || c.content.bytes == c.bytes; }));
};

struct create_sub_buffer : call<VGPU_CMD_CREATE_SUB_BUFFER, op_create_sub_buffer> {
    static constexpr const char* name = "CREATE_SUB_BUFFER";
    static constexpr auto parts = std::tuple(
        creates(object::buffer, &wire::id),
        uses(object::buffer, &wire::buffer),
        flags(&wire::flags, cl_mem_known_flags),
        rule(contradiction, memory_flags_agree),
        not_zero(&wire::bytes, "a sub-buffer of 0 bytes"),
        range(&wire::buffer, &wire::origin, &wire::bytes, "origin + length of a sub-buffer overflow"));
};

struct create_image : call<VGPU_CMD_CREATE_IMAGE, op_create_image> {
    static constexpr const char* name = "CREATE_IMAGE";
    static constexpr auto parts = std::tuple(
        creates(object::image, &wire::id),
        uses(object::context, &wire::context),
        flags(&wire::flags, cl_mem_known_flags),
        rule(contradiction, memory_flags_agree),
        rule("an unknown image type", [](const wire& c) { return is_image_type(c.image_type); }),
        at_most(&wire::mip_levels, 0, "mip levels are not supported"),
        not_zero(&wire::width, "an image without a width"),
        payload_in(&op::content, &wire::content),
        may_use(object::memory, &wire::buffer),
        rule("an image in a buffer can't have content of its own",
             [](const wire& c) { return c.buffer == 0 || c.content.bytes == 0; }),
        rule("a buffer image without a buffer",
             [](const wire& c) { return c.image_type != cl_mem_object_image1d_buffer || c.buffer != 0; }));
};

struct create_sampler : call<VGPU_CMD_CREATE_SAMPLER, op_create_sampler> {
    static constexpr const char* name = "CREATE_SAMPLER";
    static constexpr auto parts = std::tuple(
        creates(object::sampler, &wire::id),
        uses(object::context, &wire::context),
        at_most(&wire::normalized, 1, "a truth value is neither 0 nor 1"),
        between(&wire::addressing, cl_address_none, cl_address_mirrored_repeat,
                "an unknown addressing mode"),
        between(&wire::filter, cl_filter_nearest, cl_filter_linear, "an unknown filter mode"),
        pad(&wire::pad));
};

struct build_program : call<VGPU_CMD_BUILD_PROGRAM, op_build_program> {
    static constexpr const char* name = "BUILD_PROGRAM";
    static constexpr auto parts = std::tuple(
        changes(object::program, &wire::program),
        pad(&wire::pad),
        text(&op::options, &wire::options_bytes, VGPU_MAX_OPTIONS_BYTES));
};

struct compile_program : call<VGPU_CMD_COMPILE_PROGRAM, op_compile_program> {
    static constexpr const char* name = "COMPILE_PROGRAM";
    static constexpr auto parts = std::tuple(
        changes(object::program, &wire::program),
        pad(&wire::pad),
        ids(object::program, &op::headers, &wire::header_count),
        text(&op::options, &wire::options_bytes, VGPU_MAX_OPTIONS_BYTES),
        names(&op::names, &wire::names_bytes, &wire::header_count, VGPU_MAX_COMMAND_BYTES,
              "the names of headers are not one per header, each ended by a 0 byte"));
};

struct link_program : call<VGPU_CMD_LINK_PROGRAM, op_link_program> {
    static constexpr const char* name = "LINK_PROGRAM";
    static constexpr auto parts = std::tuple(
        creates(object::program, &wire::id),
        uses(object::context, &wire::context),
        not_zero(&wire::input_count, "a link without programs"),
        ids(object::program, &op::inputs, &wire::input_count),
        text(&op::options, &wire::options_bytes, VGPU_MAX_OPTIONS_BYTES));
};

struct create_user_event : call<VGPU_CMD_CREATE_USER_EVENT, op_create_user_event> {
    static constexpr const char* name = "CREATE_USER_EVENT";
    static constexpr auto parts = std::tuple(
        creates(object::user_event, &wire::id),
        uses(object::context, &wire::context));
};

struct set_user_event : silent<VGPU_CMD_SET_USER_EVENT, op_set_user_event> {
    static constexpr const char* name = "SET_USER_EVENT";
    static constexpr auto parts = std::tuple(
        uses(object::user_event, &wire::event),
        pad(&wire::pad),
        rule("the status of a user event is neither complete nor an error",
             [](const wire& c) { return c.status <= 0; }));
};

struct set_spec_constant : call<VGPU_CMD_SET_SPEC_CONSTANT, op_set_spec_constant> {
    static constexpr const char* name = "SET_SPEC_CONSTANT";
    static constexpr auto parts = std::tuple(
        changes(object::program, &wire::program),
        between(&wire::value_bytes, 1, 16,
                "a specialization constant has less than 1 or more than 16 bytes"),
        octets(&op::value, &wire::value_bytes));
};

struct suggested_group_size : call<VGPU_CMD_SUGGESTED_GROUP_SIZE, op_suggested_group_size> {
    static constexpr const char* name = "SUGGESTED_GROUP_SIZE";
    static constexpr auto parts = std::tuple(
        uses(object::queue, &wire::queue),
        uses(object::kernel, &wire::kernel),
        pad(&wire::pad),
        rules(std::span(launch_size_errors).first(3), [](const wire& c) { // it has no local size
            vgpu_cmd_launch launch{};
            launch.work_dim = c.work_dim;
            std::copy_n(c.offset, 3, launch.offset);
            std::copy_n(c.global, 3, launch.global);
            return launch_size_error(launch);
        }),
        payload_out(&op::result, &wire::result),
        rule("the room for a suggested size is not 24 bytes",
             [](const wire& c) { return c.result.bytes == 3 * sizeof(__u64); }),
        arguments(&op::arguments, &wire::argument_count, &wire::argument_bytes));
    static void sample(wire& c) {
        c.work_dim = 2;
        c.global[0] = c.global[1] = 64;
        c.global[2] = 1;
        c.result.bytes = 24;
    }
};

// ---- enqueued

// WRITE_IMAGE, READ_IMAGE. How long the payload must be depends on the image.
template <class Image, class Data>
constexpr auto transfer_image_parts(Image image, Data data) {
    using wire = vgpu_cmd_transfer_image;
    return std::tuple(
        image,
        box(&wire::image, &wire::origin, &wire::region),
        rule("a row pitch is shorter than a row", [](const wire& c) { return c.row_pitch >= c.region[0]; }),
        data,
        not_zero(data_bytes, empty_transfer));
}
constexpr void sample_of_image(vgpu_cmd_transfer_image& c) {
    sample_triple(c.origin, 4, 4, 0);
    sample_triple(c.region, 16, 8, 1);
    c.row_pitch = 64;
    c.data.bytes = 7 * 64 + 16 * 4;
}
struct write_image : enqueued<VGPU_CMD_WRITE_IMAGE, op_transfer_image> {
    static constexpr const char* name = "WRITE_IMAGE";
    static constexpr auto parts = transfer_image_parts(
        writes(object::image, &wire::image),
        payload_in(&op::data, &wire::data));
    static void sample(wire& c) { sample_of_image(c); }
};
struct read_image : enqueued<VGPU_CMD_READ_IMAGE, op_transfer_image> {
    static constexpr const char* name = "READ_IMAGE";
    static constexpr auto parts = transfer_image_parts(
        reads(object::image, &wire::image),
        payload_out(&op::data, &wire::data));
    static void sample(wire& c) { sample_of_image(c); }
};

struct copy_image : enqueued<VGPU_CMD_COPY_IMAGE, op_copy_image> {
    static constexpr const char* name = "COPY_IMAGE";
    static constexpr auto parts = std::tuple(
        reads(object::image, &wire::source),
        writes(object::image, &wire::destination),
        box(&wire::source, &wire::source_origin, &wire::region),
        box(&wire::destination, &wire::destination_origin, &wire::region));
    static void sample(wire& c) {
        sample_triple(c.destination_origin, 32, 16, 0);
        sample_triple(c.region, 16, 16, 1);
    }
};

struct copy_image_to_buffer : enqueued<VGPU_CMD_COPY_IMAGE_TO_BUFFER, op_copy_image_buffer> {
    static constexpr const char* name = "COPY_IMAGE_TO_BUFFER";
    static constexpr auto parts = std::tuple(
        reads(object::image, &wire::image),
        writes(object::buffer, &wire::buffer),
        box(&wire::image, &wire::origin, &wire::region));
    static void sample(wire& c) {
        sample_triple(c.region, 64, 32, 1);
        c.offset = 128;
    }
};
struct copy_buffer_to_image : enqueued<VGPU_CMD_COPY_BUFFER_TO_IMAGE, op_copy_image_buffer> {
    static constexpr const char* name = "COPY_BUFFER_TO_IMAGE";
    static constexpr auto parts = std::tuple(
        writes(object::image, &wire::image),
        reads(object::buffer, &wire::buffer),
        box(&wire::image, &wire::origin, &wire::region));
    static void sample(wire& c) { sample_triple(c.region, 64, 32, 1); }
};

struct fill_image : enqueued<VGPU_CMD_FILL_IMAGE, op_fill_image> {
    static constexpr const char* name = "FILL_IMAGE";
    static constexpr auto parts = std::tuple(
        writes(object::image, &wire::image),
        box(&wire::image, &wire::origin, &wire::region));
    static void sample(wire& c) { sample_triple(c.region, 64, 32, 1); }
};

// Whether it leaves the content as it is depends on a flag, so the mirror looks at it by hand.
struct migrate : enqueued<VGPU_CMD_MIGRATE, op_migrate> {
    static constexpr const char* name = "MIGRATE";
    static constexpr bool moves = true;
    static constexpr auto parts = std::tuple(
        flags(&wire::flags, cl_migrate_host | cl_migrate_content_undefined),
        pad(&wire::pad),
        not_zero(&wire::object_count, "a migration of nothing"),
        ids(object::memory, &op::objects, &wire::object_count));
    static void sample(wire& c) { c.flags = cl_migrate_host; }
};

using opencl_rows = rows<
    info, create_queue, create_buffer, create_sub_buffer, create_image, create_sampler, build_program,
    compile_program, link_program, create_user_event, set_user_event, set_spec_constant, suggested_group_size, write_image,
    read_image, copy_image, copy_image_to_buffer, copy_buffer_to_image, fill_image, migrate>;
// clang-format on

} // namespace kagemusha::codec::commands
