// SPDX-License-Identifier: GPL-2.0-or-later
// What valid streams decode to, and that the numbers written out in cl_numbers.hpp are OpenCL's.
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <set>

#include "codec/cl_numbers.hpp"
#include "codec/commands/table.hpp"
#include "codec/decode.hpp"
#include "codec/encode.hpp"
#include "codec/image_format.hpp"
#include "codec/rect.hpp"
#include "codec/sample_session.hpp"

namespace kagemusha::codec {
namespace {

TEST(cl_numbers, are_those_of_opencl) {
    EXPECT_EQ(cl_mem_read_write, CL_MEM_READ_WRITE);
    EXPECT_EQ(cl_mem_write_only, CL_MEM_WRITE_ONLY);
    EXPECT_EQ(cl_mem_read_only, CL_MEM_READ_ONLY);
    EXPECT_EQ(cl_mem_alloc_host_ptr, CL_MEM_ALLOC_HOST_PTR);
    EXPECT_EQ(cl_mem_host_write_only, CL_MEM_HOST_WRITE_ONLY);
    EXPECT_EQ(cl_mem_host_read_only, CL_MEM_HOST_READ_ONLY);
    EXPECT_EQ(cl_mem_host_no_access, CL_MEM_HOST_NO_ACCESS);
    EXPECT_EQ(cl_mem_kernel_read_and_write, CL_MEM_KERNEL_READ_AND_WRITE);
    EXPECT_EQ(cl_queue_out_of_order, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    EXPECT_EQ(cl_queue_profiling, CL_QUEUE_PROFILING_ENABLE);
    EXPECT_EQ(cl_migrate_host, CL_MIGRATE_MEM_OBJECT_HOST);
    EXPECT_EQ(cl_migrate_content_undefined, CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED);
    EXPECT_EQ(cl_mem_object_image2d, unsigned{CL_MEM_OBJECT_IMAGE2D});
    EXPECT_EQ(cl_mem_object_image3d, unsigned{CL_MEM_OBJECT_IMAGE3D});
    EXPECT_EQ(cl_mem_object_image2d_array, unsigned{CL_MEM_OBJECT_IMAGE2D_ARRAY});
    EXPECT_EQ(cl_mem_object_image1d, unsigned{CL_MEM_OBJECT_IMAGE1D});
    EXPECT_EQ(cl_mem_object_image1d_array, unsigned{CL_MEM_OBJECT_IMAGE1D_ARRAY});
    EXPECT_EQ(cl_mem_object_image1d_buffer, unsigned{CL_MEM_OBJECT_IMAGE1D_BUFFER});
    EXPECT_EQ(cl_address_none, unsigned{CL_ADDRESS_NONE});
    EXPECT_EQ(cl_address_mirrored_repeat, unsigned{CL_ADDRESS_MIRRORED_REPEAT});
    EXPECT_EQ(cl_filter_nearest, unsigned{CL_FILTER_NEAREST});
    EXPECT_EQ(cl_filter_linear, unsigned{CL_FILTER_LINEAR});
    EXPECT_EQ(cl_mem_object_allocation_failure, CL_MEM_OBJECT_ALLOCATION_FAILURE);
    EXPECT_EQ(cl_out_of_resources, CL_OUT_OF_RESOURCES);
    EXPECT_EQ(cl_out_of_host_memory, CL_OUT_OF_HOST_MEMORY);
    EXPECT_EQ(cl_image_format_not_supported, CL_IMAGE_FORMAT_NOT_SUPPORTED);
    EXPECT_EQ(cl_wait_list_error, CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    EXPECT_EQ(cl_link_program_failure, CL_LINK_PROGRAM_FAILURE);
    EXPECT_EQ(cl_invalid_value, CL_INVALID_VALUE);
    EXPECT_EQ(cl_invalid_context, CL_INVALID_CONTEXT);
    EXPECT_EQ(cl_invalid_mem_object, CL_INVALID_MEM_OBJECT);
    EXPECT_EQ(cl_invalid_device, CL_INVALID_DEVICE);
    EXPECT_EQ(cl_invalid_image_size, CL_INVALID_IMAGE_SIZE);
    EXPECT_EQ(cl_invalid_image_descriptor, CL_INVALID_IMAGE_DESCRIPTOR);
}

TEST(image_format, element_sizes_follow_the_specification) {
    EXPECT_EQ(image_element_bytes(CL_RGBA, CL_UNSIGNED_INT8), 4u);
    EXPECT_EQ(image_element_bytes(CL_RGBA, CL_FLOAT), 16u);
    EXPECT_EQ(image_element_bytes(CL_R, CL_HALF_FLOAT), 2u);
    EXPECT_EQ(image_element_bytes(CL_RG, CL_SIGNED_INT16), 4u);
    EXPECT_EQ(image_element_bytes(CL_sRGBA, CL_UNORM_INT8), 4u);
    EXPECT_EQ(image_element_bytes(CL_DEPTH, CL_FLOAT), 4u);
    EXPECT_EQ(image_element_bytes(CL_RGB, CL_UNORM_SHORT_565), 2u);
    EXPECT_EQ(image_element_bytes(CL_RGBx, CL_UNORM_INT_101010), 4u);
    EXPECT_EQ(image_element_bytes(CL_RGBA, CL_UNORM_INT_101010_2), 4u);
}

TEST(image_format, impossible_formats_have_no_size) {
    EXPECT_EQ(image_element_bytes(CL_RGBA, CL_UNORM_SHORT_565), 0u);
    EXPECT_EQ(image_element_bytes(CL_RGB, CL_UNORM_INT_101010_2), 0u);
    EXPECT_EQ(image_element_bytes(0, CL_FLOAT), 0u);
    EXPECT_EQ(image_element_bytes(CL_R, 0xffffffffu), 0u);
    EXPECT_EQ(image_element_bytes(CL_ABGR + 1, CL_FLOAT), 0u);
}

// Decodes a builder's stream that must be valid; calls f(op) for each.
template <class F>
void decode_all(const stream_builder& b, F&& f) {
    stream_decoder decoder(b.stream(), {b.payloads()});
    op o;
    for (;;) {
        const decode_status status = decoder.next(o);
        if (status == decode_status::end)
            return;
        ASSERT_EQ(status, decode_status::op) << decoder.error().message << " at " << decoder.error().offset;
        f(o);
    }
}

TEST(decode, every_opcode_of_the_sample_session) {
    std::set<std::uint16_t> seen;
    for (const sample_request& r : sample_session()) {
        SCOPED_TRACE(r.name);
        decode_all(r.builder, [&](const op& o) { seen.insert(header_of(o).opcode); });
    }
    const std::set<std::uint16_t> not_guests = {VGPU_CMD_AWAIT, VGPU_CMD_TAKE_BUILT, VGPU_CMD_STORE_BUILT};
    for (std::uint16_t opcode = 0; opcode < VGPU_OPCODE_COUNT; ++opcode) {
        const bool defined = commands::rows_with(opcode) == 1 && !not_guests.contains(opcode);
        EXPECT_EQ(seen.contains(opcode), defined) << "opcode " << opcode;
    }
}

TEST(decode, await_gives_its_events) {
    stream_builder b;
    decode_all(b.await(std::array<std::uint64_t, 2>{7, 9}).flush(1), [&](const op& o) {
        if (const auto* a = std::get_if<op_await>(&o)) {
            EXPECT_EQ(std::vector<guest_id>(a->events.begin(), a->events.end()),
                      (std::vector<guest_id>{7, 9}));
        }
    });
}

TEST(decode, an_empty_stream_ends_at_once) {
    stream_decoder decoder({}, {});
    op o;
    EXPECT_EQ(decoder.next(o), decode_status::end);
}

TEST(decode, launch_gives_wait_list_and_arguments) {
    stream_builder b;
    launch_size size;
    size.work_dim = 2;
    size.global[0] = 256;
    size.global[1] = 4;
    const std::uint32_t scalar = 0x12345678;
    b.launch({5, 6, {7, 8}}, 9, size,
             argument_builder{}.scalar(0, scalar).memory(1, 10).local(3, 512).sampler(4, 11));
    int ops = 0;
    decode_all(b, [&](const op& o) {
        ++ops;
        const auto& l = std::get<op_launch>(o);
        EXPECT_EQ(l.c->kernel, 9u);
        EXPECT_EQ(enqueue_of(o)->queue, 5u);
        EXPECT_EQ(enqueue_of(o)->event, 6u);
        ASSERT_EQ(l.waits.size(), 2u);
        EXPECT_EQ(l.waits[0], 7u);
        EXPECT_EQ(waits_of(o)[1], 8u);
        std::vector<launch_argument> arguments;
        l.arguments.for_each([&](const launch_argument& a) { arguments.push_back(a); });
        ASSERT_EQ(arguments.size(), 4u);
        EXPECT_EQ(arguments[0].kind, VGPU_ARGUMENT_BYTES);
        ASSERT_EQ(arguments[0].value.size(), sizeof(scalar));
        EXPECT_EQ(std::memcmp(arguments[0].value.data(), &scalar, sizeof(scalar)), 0);
        EXPECT_EQ(arguments[1].object, 10u);
        EXPECT_EQ(arguments[2].index, 3u);
        EXPECT_EQ(arguments[2].bytes, 512u);
        EXPECT_EQ(arguments[3].kind, VGPU_ARGUMENT_SAMPLER);
        EXPECT_EQ(arguments[3].object, 11u);
    });
    EXPECT_EQ(ops, 1);
}

TEST(decode, inline_payload_comes_after_the_wait_list) {
    stream_builder b;
    const std::vector<std::byte> data(13, std::byte{0x7f});
    b.write_buffer({1, 0, {2, 3, 4}}, 5, 6, data);
    decode_all(b, [&](const op& o) {
        const auto& w = std::get<op_transfer_buffer>(o);
        EXPECT_TRUE(w.write());
        EXPECT_EQ(w.waits.size(), 3u);
        EXPECT_EQ(w.data.bytes, 13u);
        EXPECT_EQ(w.data.inline_bytes.size(), 13u);
        EXPECT_EQ(w.data.inline_bytes[12], std::byte{0x7f});
    });
}

TEST(decode, runs_say_where_their_data_goes) {
    const auto octets = [](auto... values) {
        return std::vector<std::byte>{static_cast<std::byte>(values)...};
    };
    stream_builder b;
    // 2 bytes at 1005; 2 bytes 300 behind them; twice more; 1 byte right behind
    b.write_runs(300, 5, octets(1, 2, 3, 4, 5, 6, 7, 8, 9),
                 octets((1005 << 2 | VGPU_RUN_NEW) % 128 + 128, (1005 << 2) / 128, 2,
                        (300 << 2 | VGPU_RUN_SAME_LENGTH) % 128 + 128, (300 << 2) / 128,
                        2 << 2 | VGPU_RUN_REPEAT, 0 << 2 | VGPU_RUN_NEW, 1));
    b.marker({300, 0, {}});
    std::vector<std::array<std::uint64_t, 3>> runs;
    decode_all(b, [&](const op& o) {
        EXPECT_EQ(queue_of(*reinterpret_cast<const vgpu_cmd*>(b.stream().data())), 300u);
        EXPECT_EQ(enqueue_of(o)->queue, 300u);
        EXPECT_EQ(enqueue_of(o)->event, 0u);
        EXPECT_TRUE(waits_of(o).empty());
        if (header_of(o).opcode == VGPU_CMD_MARKER)
            return;
        const auto& w = std::get<op_write_runs>(o);
        EXPECT_EQ(header_of(o).bytes, 32u);
        EXPECT_EQ(w.c->buffer, 5u);
        EXPECT_EQ(w.bytes.size(), 9u);
        EXPECT_EQ(w.bytes[8], std::byte{9});
        EXPECT_EQ(w.end, 1914u);
        w.runs.for_each([&](const buffer_run& r) { runs.push_back({r.offset, r.from, r.bytes}); });
    });
    ASSERT_EQ(b.stream().size(), 32u + sizeof(vgpu_cmd_sync));
    EXPECT_EQ(runs, (std::vector<std::array<std::uint64_t, 3>>{
                        {1005, 0, 2}, {1307, 2, 2}, {1609, 4, 2}, {1911, 6, 2}, {1913, 8, 1}}));
}

TEST(decode, compile_gives_headers_options_and_names) {
    stream_builder b;
    b.compile_program(1, "-g", std::array<std::uint64_t, 2>{2, 3},
                      std::array<std::string_view, 2>{"a.h", "b/c.h"});
    decode_all(b, [&](const op& o) {
        const auto& c = std::get<op_compile_program>(o);
        EXPECT_EQ(c.headers.size(), 2u);
        EXPECT_EQ(c.options, "-g");
        EXPECT_EQ(c.names, std::string_view("a.h\0b/c.h\0", 10));
    });
}

TEST(decode, the_offset_is_that_of_the_command) {
    stream_builder b;
    b.flush(1).destroy(VGPU_OBJECT_EVENT, 2);
    stream_decoder decoder(b.stream(), {});
    op o;
    ASSERT_EQ(decoder.next(o), decode_status::op);
    EXPECT_EQ(decoder.offset(), 0u);
    ASSERT_EQ(decoder.next(o), decode_status::op);
    EXPECT_EQ(decoder.offset(), sizeof(vgpu_cmd_flush));
    EXPECT_EQ(decoder.next(o), decode_status::end);
}

TEST(decode, only_answered_commands_are_calls) {
    EXPECT_TRUE(is_call(VGPU_CMD_INFO));
    EXPECT_TRUE(is_call(VGPU_CMD_CREATE_USER_EVENT));
    EXPECT_TRUE(is_call(VGPU_CMD_SET_SPEC_CONSTANT));
    EXPECT_FALSE(is_call(VGPU_CMD_SET_USER_EVENT));
    EXPECT_FALSE(is_call(VGPU_CMD_DESTROY));
    EXPECT_FALSE(is_call(VGPU_CMD_FLUSH));
    EXPECT_FALSE(is_call(VGPU_CMD_AWAIT));
    EXPECT_FALSE(is_call(VGPU_CMD_LAUNCH));
}

TEST(rect, bytes_and_end_of_a_rectangle) {
    EXPECT_EQ(rect_bytes({16, 4, 2}, 64, 1024).value(), 1024u + 3 * 64 + 16);
    EXPECT_EQ(rect_end({8, 1, 1}, {16, 4, 2}, 64, 1024).value(), 1024u + 64 + 8 + 1024 + 3 * 64 + 16);
    EXPECT_FALSE(rect_bytes({1, 1, 1ull << 60}, 1, 1ull << 60).ok());
}

} // namespace
} // namespace kagemusha::codec
