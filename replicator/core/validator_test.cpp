// SPDX-License-Identifier: GPL-2.0-or-later
// Commands that decode but break a rule about objects, or run into an OpenCL error: a table with every
// opcode.
#include "core/validator.hpp"

#include <gtest/gtest.h>

#include <array>

#include "codec/cl_numbers.hpp"
#include "codec/sample_session.hpp"
#include "core/limits.hpp"
#include "core/test_helpers.hpp"

namespace kagemusha::core {
namespace {

using namespace codec;
using testing::file_harness;

// A file with one object of each kind, and a second context with its own.
enum : std::uint64_t {
    context = 1,
    queue,
    buffer,
    sub,
    image,
    sampler,
    program,
    kernel,
    event,
    done_event,
    user_event,
    other_context = 21,
    other_queue,
    other_buffer,
    other_image,
    other_sampler,
    other_program,
    other_kernel,
    other_event,
    unknown = 99,
    fresh = 200,
};

struct validator_test : ::testing::Test {
    file_harness h;

    validator_test() {
        for (const std::uint64_t base : {context, other_context})
            h.run([&](auto& b) { b.create_context(base); });
        h.run([](auto& b) { b.create_queue(queue, context); });
        h.run([](auto& b) { b.create_queue(other_queue, other_context); });
        h.run([](auto& b) { b.create_buffer(buffer, context, 4096); });
        h.run([](auto& b) { b.create_buffer(other_buffer, other_context, 4096); });
        h.run([](auto& b) { b.create_sub_buffer(sub, buffer, 1024, 1024); });
        h.run([](auto& b) { b.create_image_2d(image, context, 16, 8); });
        h.run([](auto& b) { b.create_image_2d(other_image, other_context, 16, 8); });
        h.run([](auto& b) { b.create_sampler(sampler, context); });
        h.run([](auto& b) { b.create_sampler(other_sampler, other_context); });
        h.run([](auto& b) { b.create_program(program, context, "x"); });
        h.run([](auto& b) { b.create_program(other_program, other_context, "x"); });
        h.run([](auto& b) { b.create_kernel(kernel, program, "k"); });
        h.run([](auto& b) { b.create_kernel(other_kernel, other_program, "k"); });
        h.run([](auto& b) { b.marker({queue, event, {}}); });
        h.run([](auto& b) { b.marker({queue, done_event, {}}); });
        h.run([](auto& b) { b.marker({other_queue, other_event, {}}); });
        EXPECT_EQ(h.fsm.on_record(testing::completion(done_event)).broken_rule, nullptr);
        h.run([](auto& b) { b.create_user_event(user_event, context); });
        h.take_records();
    }
};

struct broken {
    const char* name;
    std::function<void(stream_builder&)> build;
};

const std::vector<std::byte> eight(8, std::byte{1});

vgpu_payload_ref in(stream_builder& b, std::uint64_t bytes) {
    return b.payload(false, 0, 0, bytes);
}
vgpu_payload_ref out(stream_builder& b, std::uint64_t bytes) {
    return b.payload(true, 0, 0, bytes);
}

// A call whose row names two objects and arguments.
void group_size(stream_builder& b, std::uint64_t on, std::uint64_t of,
                const argument_builder& arguments = {}) {
    vgpu_cmd_suggested_group_size c{};
    c.queue = on;
    c.kernel = of;
    c.work_dim = 1;
    c.global[0] = c.global[1] = c.global[2] = 1;
    c.result = out(b, 24);
    c.argument_count = arguments.count();
    c.argument_bytes = static_cast<std::uint32_t>(arguments.bytes().size());
    b.begin(VGPU_CMD_SUGGESTED_GROUP_SIZE, c).bytes(arguments.bytes());
}

// clang-format off
const broken malformed[] = {
    {"await of a guest", [](auto& b) { b.await(std::array<std::uint64_t, 1>{event}); }},
    {"info image formats of a queue", [](auto& b) { b.info(VGPU_INFO_IMAGE_FORMATS, 0, queue, 0, no_payload); }},
    {"info memory of unknown", [](auto& b) { b.info(VGPU_INFO_MEMORY, 0, unknown, 0, no_payload); }},
    {"info image of a queue", [](auto& b) { b.info(VGPU_INFO_IMAGE, 0, queue, 0, no_payload); }},
    {"info program of a kernel", [](auto& b) { b.info(VGPU_INFO_PROGRAM, 0, kernel, 0, no_payload); }},
    {"info build of unknown", [](auto& b) { b.info(VGPU_INFO_PROGRAM_BUILD, 0, unknown, 0, no_payload); }},
    {"info kernel of a program", [](auto& b) { b.info(VGPU_INFO_KERNEL, 0, program, 0, no_payload); }},
    {"info kernel arg of unknown", [](auto& b) { b.info(VGPU_INFO_KERNEL_ARG, 0, unknown, 0, no_payload); }},
    {"context with id of another", [](auto& b) { b.create_context(context); }},
    {"context with id of a buffer", [](auto& b) { b.create_context(buffer); }},
    {"queue in unknown", [](auto& b) { b.create_queue(fresh, unknown); }},
    {"queue in a buffer", [](auto& b) { b.create_queue(fresh, buffer); }},
    {"queue with used id", [](auto& b) { b.create_queue(queue, context); }},
    {"queue with used id on no device", [](auto& b) { b.create_queue(queue, context); reinterpret_cast<vgpu_cmd_create_queue*>(b.mutable_stream().data())->device_index = 1; }},
    {"buffer in unknown", [](auto& b) { b.create_buffer(fresh, unknown, 8); }},
    {"buffer with used id", [](auto& b) { b.create_buffer(buffer, context, 8); }},
    {"buffer with id of pending event", [](auto& b) { b.create_buffer(event, context, 8); }},
    {"sub-buffer of unknown", [](auto& b) { b.create_sub_buffer(fresh, unknown, 0, 8); }},
    {"sub-buffer of a queue", [](auto& b) { b.create_sub_buffer(fresh, queue, 0, 8); }},
    {"sub-buffer with used id", [](auto& b) { b.create_sub_buffer(sub, buffer, 0, 8); }},
    {"image in unknown", [](auto& b) { b.create_image_2d(fresh, unknown, 8, 8); }},
    {"image with used id", [](auto& b) { b.create_image_2d(image, context, 8, 8); }},
    {"image in unknown buffer", [](auto& b) { b.create_image_2d(fresh, context, 8, 8); reinterpret_cast<vgpu_cmd_create_image*>(b.mutable_stream().data())->buffer = unknown; }},
    {"image with too little content", [](auto& b) { auto p = in(b, 255); b.create_image_2d(fresh, context, 8, 8); reinterpret_cast<vgpu_cmd_create_image*>(b.mutable_stream().data())->content = p; }},
    {"sampler in unknown", [](auto& b) { b.create_sampler(fresh, unknown); }},
    {"program in unknown", [](auto& b) { b.create_program(fresh, unknown, "x"); }},
    {"program with used id", [](auto& b) { b.create_program(program, context, "x"); }},
    {"build of unknown", [](auto& b) { b.build_program(unknown); }},
    {"build of a kernel", [](auto& b) { b.build_program(kernel); }},
    {"compile of unknown", [](auto& b) { b.compile_program(unknown, "", {}, {}); }},
    {"compile with unknown header", [](auto& b) { b.compile_program(program, "", std::array<std::uint64_t, 1>{unknown}, std::array<std::string_view, 1>{"h"}); }},
    {"link in unknown", [](auto& b) { b.link_program(fresh, unknown, std::array<std::uint64_t, 1>{program}); }},
    {"link of unknown", [](auto& b) { b.link_program(fresh, context, std::array<std::uint64_t, 2>{program, unknown}); }},
    {"link with used id", [](auto& b) { b.link_program(program, context, std::array<std::uint64_t, 1>{program}); }},
    {"kernel of unknown", [](auto& b) { b.create_kernel(fresh, unknown, "k"); }},
    {"kernel with used id", [](auto& b) { b.create_kernel(kernel, program, "k"); }},
    {"user event in unknown", [](auto& b) { b.create_user_event(fresh, unknown); }},
    {"user event with used id", [](auto& b) { b.create_user_event(user_event, context); }},
    {"set unknown event", [](auto& b) { b.set_user_event(unknown, 0); }},
    {"set a command's event", [](auto& b) { b.set_user_event(event, 0); }},
    {"set a user event twice", [](auto& b) { b.set_user_event(user_event, 0).set_user_event(user_event, 0); }},
    {"destroy unknown", [](auto& b) { b.destroy(VGPU_OBJECT_MEMORY, unknown); }},
    {"destroy as another kind", [](auto& b) { b.destroy(VGPU_OBJECT_QUEUE, buffer); }},
    {"destroy twice", [](auto& b) { b.destroy(VGPU_OBJECT_MEMORY, buffer).destroy(VGPU_OBJECT_MEMORY, buffer); }},
    {"destroy a pending event twice", [](auto& b) { b.destroy(VGPU_OBJECT_EVENT, event).destroy(VGPU_OBJECT_EVENT, event); }},
    {"use after destroy", [](auto& b) { b.destroy(VGPU_OBJECT_MEMORY, buffer).fill_buffer({queue, 0, {}}, buffer, 0, 8, eight); }},
    {"id of a destroyed pending event", [](auto& b) { b.destroy(VGPU_OBJECT_EVENT, event).marker({queue, event, {}}); }},
    {"flush unknown", [](auto& b) { b.flush(unknown); }},
    {"flush a buffer", [](auto& b) { b.flush(buffer); }},
    {"spec constant of unknown", [](auto& b) { b.set_spec_constant(unknown, 0, eight); }},
    {"enqueue on unknown", [](auto& b) { b.marker({unknown, 0, {}}); }},
    {"enqueue on a context", [](auto& b) { b.marker({context, 0, {}}); }},
    {"event with used id", [](auto& b) { b.marker({queue, buffer, {}}); }},
    {"the same event twice", [](auto& b) { b.marker({queue, fresh, {}}).marker({queue, fresh, {}}); }},
    {"wait for unknown", [](auto& b) { b.marker({queue, 0, {unknown}}); }},
    {"wait for a queue", [](auto& b) { b.marker({queue, 0, {queue}}); }},
    {"wait for itself", [](auto& b) { b.marker({queue, fresh, {fresh}}); }},
    {"runs to unknown", [](auto& b) { b.write_runs(queue, unknown, std::array{written_run{0, eight}}); }},
    {"write to unknown", [](auto& b) { b.write_buffer({queue, 0, {}}, unknown, 0, eight); }},
    {"read from a queue", [](auto& b) { b.read_buffer({queue, 0, {}}, queue, 0, out(b, 8)); }},
    {"rect of unknown", [](auto& b) { b.transfer_rect(true, {queue, 0, {}}, unknown, {{0, 0, 0}}, {{8, 1, 1}}, 8, 8, in(b, 8)); }},
    {"copy from unknown", [](auto& b) { b.copy_buffer({queue, 0, {}}, unknown, buffer, 0, 0, 8); }},
    {"copy to unknown", [](auto& b) { b.copy_buffer({queue, 0, {}}, buffer, unknown, 0, 0, 8); }},
    {"copy from other context to unknown", [](auto& b) { b.copy_buffer({queue, 0, {}}, other_buffer, unknown, 0, 0, 8); }},
    {"copy rect to unknown", [](auto& b) { b.copy_rect({queue, 0, {}}, buffer, unknown, {{0, 0, 0}}, {{0, 0, 0}}, {{8, 1, 1}}, 8, 8); }},
    {"fill unknown", [](auto& b) { b.fill_buffer({queue, 0, {}}, unknown, 0, 8, eight); }},
    {"write unknown image", [](auto& b) { b.transfer_image(true, {queue, 0, {}}, unknown, {{0, 0, 0}}, {{1, 1, 1}}, 4, 0, in(b, 4)); }},
    {"write image with wrong length", [](auto& b) { b.transfer_image(true, {queue, 0, {}}, image, {{0, 0, 0}}, {{2, 2, 1}}, 8, 0, in(b, 15)); }},
    {"read image with huge pitch", [](auto& b) { b.transfer_image(false, {queue, 0, {}}, image, {{0, 0, 0}}, {{2, 2, 2}}, UINT64_MAX, UINT64_MAX, out(b, 16)); }},
    {"copy image from unknown", [](auto& b) { b.copy_image({queue, 0, {}}, unknown, image, {{0, 0, 0}}, {{0, 0, 0}}, {{1, 1, 1}}); }},
    {"copy image to unknown buffer", [](auto& b) { b.copy_image_buffer(true, {queue, 0, {}}, image, unknown, {{0, 0, 0}}, {{1, 1, 1}}, 0); }},
    {"fill unknown image", [](auto& b) { b.fill_image({queue, 0, {}}, unknown, {{0, 0, 0}}, {{1, 1, 1}}); }},
    {"group size on unknown", [](auto& b) { group_size(b, unknown, kernel); }},
    {"group size of unknown", [](auto& b) { group_size(b, queue, unknown); }},
    {"group size of a program of another context", [](auto& b) { group_size(b, queue, other_program); }},
    {"group size with unknown memory", [](auto& b) { group_size(b, queue, other_kernel, argument_builder{}.memory(0, unknown)); }},
    {"launch unknown", [](auto& b) { b.launch({queue, 0, {}}, unknown, {}); }},
    {"launch a program", [](auto& b) { b.launch({queue, 0, {}}, program, {}); }},
    {"launch with unknown memory", [](auto& b) { b.launch({queue, 0, {}}, kernel, {}, argument_builder{}.memory(0, unknown)); }},
    {"launch with a sampler as memory", [](auto& b) { b.launch({queue, 0, {}}, kernel, {}, argument_builder{}.memory(0, sampler).memory(1, buffer)); }},
    {"launch with memory as sampler", [](auto& b) { b.launch({queue, 0, {}}, kernel, {}, argument_builder{}.sampler(0, buffer).memory(1, other_buffer)); }},
    {"migrate a queue", [](auto& b) { b.migrate({queue, 0, {}}, std::array<std::uint64_t, 2>{buffer, queue}); }},
    {"completion count", [](auto& b) { b.marker({queue, 0, {}}); reinterpret_cast<vgpu_cmd_sync*>(b.mutable_stream().data())->enqueue.event = fresh; }},
};

struct failing {
    const char* name;
    std::function<void(stream_builder&)> build;
    std::int32_t error;
};

const failing failing_calls[] = {
    {"info of device 1", [](auto& b) { b.info(VGPU_INFO_DEVICE, 0, 0, 1, no_payload); }, cl_invalid_device},
    {"info image of a buffer", [](auto& b) { b.info(VGPU_INFO_IMAGE, 0, buffer, 0, no_payload); }, cl_invalid_mem_object},
    {"queue on device 1", [](auto& b) { b.create_queue(fresh, context); reinterpret_cast<vgpu_cmd_create_queue*>(b.mutable_stream().data())->device_index = 1; }, cl_invalid_device},
    {"sub-buffer beyond", [](auto& b) { b.create_sub_buffer(fresh, buffer, 4090, 8); }, cl_invalid_value},
    {"sub-buffer of sub-buffer", [](auto& b) { b.create_sub_buffer(fresh, sub, 0, 8); }, cl_invalid_mem_object},
    {"sub-buffer of image", [](auto& b) { b.create_sub_buffer(fresh, image, 0, 8); }, cl_invalid_mem_object},
    {"buffer beyond the quota", [](auto& b) { b.create_buffer(fresh, context, UINT64_MAX); }, cl_mem_object_allocation_failure},
    {"image of no format", [](auto& b) { b.create_image_2d(fresh, context, 8, 8); reinterpret_cast<vgpu_cmd_create_image*>(b.mutable_stream().data())->channel_order = 1; }, cl_image_format_not_supported},
    {"image without height", [](auto& b) { b.create_image_2d(fresh, context, 8, 0); }, cl_invalid_image_size},
    {"image whose size overflows", [](auto& b) { b.create_image_2d(fresh, context, 1ull << 40, 1ull << 40); }, cl_invalid_image_size},
    {"image beyond the quota", [](auto& b) { b.create_image_2d(fresh, context, 1ull << 30, 1ull << 25); }, cl_mem_object_allocation_failure},
    {"image with short row pitch", [](auto& b) { b.create_image_2d(fresh, context, 8, 8); reinterpret_cast<vgpu_cmd_create_image*>(b.mutable_stream().data())->row_pitch = 31; }, cl_invalid_image_descriptor},
    {"image beyond its buffer", [](auto& b) { b.create_image_2d(fresh, context, 64, 17); reinterpret_cast<vgpu_cmd_create_image*>(b.mutable_stream().data())->buffer = buffer; }, cl_invalid_image_descriptor},
    {"image in a buffer of another context", [](auto& b) { b.create_image_2d(fresh, context, 8, 8); reinterpret_cast<vgpu_cmd_create_image*>(b.mutable_stream().data())->buffer = other_buffer; }, cl_invalid_context},
    {"image in an image", [](auto& b) { b.create_image_2d(fresh, context, 8, 8); reinterpret_cast<vgpu_cmd_create_image*>(b.mutable_stream().data())->buffer = image; }, cl_invalid_image_descriptor},
    {"compile with a header of another context", [](auto& b) { b.compile_program(program, "", std::array<std::uint64_t, 1>{other_program}, std::array<std::string_view, 1>{"h"}); }, cl_invalid_context},
    {"group size of another context", [](auto& b) { group_size(b, queue, other_kernel); }, cl_invalid_context},
    {"group size with memory of another context", [](auto& b) { group_size(b, queue, kernel, argument_builder{}.memory(0, other_buffer)); }, cl_invalid_context},
    {"link across contexts", [](auto& b) { b.link_program(fresh, context, std::array<std::uint64_t, 1>{other_program}); }, cl_invalid_context},
};

const failing failing_commands[] = {
    {"write beyond", [](auto& b) { b.write_buffer({queue, fresh, {}}, buffer, 4089, eight); }, cl_invalid_value},
    {"read beyond a sub-buffer", [](auto& b) { b.read_buffer({queue, fresh, {}}, sub, 1020, out(b, 8)); }, cl_invalid_value},
    {"write to an image", [](auto& b) { b.write_buffer({queue, fresh, {}}, image, 0, eight); }, cl_invalid_mem_object},
    {"write to another context", [](auto& b) { b.write_buffer({queue, fresh, {}}, other_buffer, 0, eight); }, cl_invalid_context},
    {"rect beyond", [](auto& b) { b.transfer_rect(false, {queue, fresh, {}}, buffer, {{0, 60, 0}}, {{64, 5, 1}}, 64, 320, out(b, 320)); }, cl_invalid_value},
    {"copy source beyond", [](auto& b) { b.copy_buffer({queue, fresh, {}}, buffer, sub, 4090, 0, 8); }, cl_invalid_value},
    {"copy destination beyond", [](auto& b) { b.copy_buffer({queue, fresh, {}}, buffer, sub, 0, 1020, 8); }, cl_invalid_value},
    {"copy rect beyond", [](auto& b) { b.copy_rect({queue, fresh, {}}, buffer, sub, {{0, 0, 0}}, {{0, 15, 0}}, {{64, 2, 1}}, 64, 128); }, cl_invalid_value},
    {"copy to another context", [](auto& b) { b.copy_buffer({queue, fresh, {}}, buffer, other_buffer, 0, 0, 8); }, cl_invalid_context},
    {"fill beyond", [](auto& b) { b.fill_buffer({queue, fresh, {}}, buffer, 4096, 8, eight); }, cl_invalid_value},
    {"write image beyond", [](auto& b) { b.transfer_image(true, {queue, fresh, {}}, image, {{15, 0, 0}}, {{2, 1, 1}}, 8, 0, in(b, 8)); }, cl_invalid_value},
    {"write image into a slice that is not there", [](auto& b) { b.transfer_image(true, {queue, fresh, {}}, image, {{0, 0, 1}}, {{2, 1, 1}}, 8, 0, in(b, 8)); }, cl_invalid_value},
    {"write image with overlapping rows", [](auto& b) { b.transfer_image(true, {queue, fresh, {}}, image, {{0, 0, 0}}, {{2, 2, 1}}, 4, 0, in(b, 12)); }, cl_invalid_value},
    {"write a buffer as image", [](auto& b) { b.transfer_image(true, {queue, fresh, {}}, buffer, {{0, 0, 0}}, {{1, 1, 1}}, 4, 0, in(b, 4)); }, cl_invalid_mem_object},
    {"write image of another context", [](auto& b) { b.transfer_image(true, {queue, fresh, {}}, other_image, {{0, 0, 0}}, {{1, 1, 1}}, 4, 0, in(b, 4)); }, cl_invalid_context},
    {"copy image beyond", [](auto& b) { b.copy_image({queue, fresh, {}}, image, image, {{0, 0, 0}}, {{0, 8, 0}}, {{1, 1, 1}}); }, cl_invalid_value},
    {"copy image to buffer beyond", [](auto& b) { b.copy_image_buffer(true, {queue, fresh, {}}, image, buffer, {{0, 0, 0}}, {{16, 8, 1}}, 4096 - 511); }, cl_invalid_value},
    {"copy buffer to image beyond", [](auto& b) { b.copy_image_buffer(false, {queue, fresh, {}}, image, buffer, {{1, 0, 0}}, {{16, 8, 1}}, 0); }, cl_invalid_value},
    {"copy huge region to buffer", [](auto& b) { b.copy_image_buffer(true, {queue, fresh, {}}, image, buffer, {{0, 0, 0}}, {{1ull << 32, 1ull << 31, 2}}, 0); }, cl_invalid_value},
    {"fill image beyond", [](auto& b) { b.fill_image({queue, fresh, {}}, image, {{0, 0, 0}}, {{17, 1, 1}}); }, cl_invalid_value},
    {"launch of another context", [](auto& b) { b.launch({queue, fresh, {}}, other_kernel, {}); }, cl_invalid_context},
    {"launch with memory of another context", [](auto& b) { b.launch({queue, fresh, {}}, kernel, {}, argument_builder{}.memory(0, other_buffer)); }, cl_invalid_context},
    {"launch with a sampler of another context", [](auto& b) { b.launch({queue, fresh, {}}, kernel, {}, argument_builder{}.sampler(0, other_sampler)); }, cl_invalid_context},
    {"wait for an event of another context", [](auto& b) { b.marker({queue, fresh, {other_event}}); }, cl_invalid_context},
    {"migrate memory of another context", [](auto& b) { b.migrate({queue, fresh, {}}, std::array<std::uint64_t, 2>{buffer, other_image}); }, cl_invalid_context},
};
// clang-format on

TEST_F(validator_test, broken_rules_refuse_the_whole_request_and_change_nothing) {
    const std::uint64_t objects = h.fsm.objects().size();
    const std::uint64_t memory = h.fsm.objects().memory_bytes();
    for (const broken& x : malformed) {
        SCOPED_TRACE(x.name);
        stream_builder b;
        x.build(b);
        const submit_decision d = h.submit(b);
        EXPECT_EQ(d.what, submit_decision::action::answer);
        EXPECT_EQ(d.response.status, VGPU_STATUS_MALFORMED);
        EXPECT_NE(d.broken_rule, nullptr);
        EXPECT_EQ(h.fsm.objects().size(), objects);
        EXPECT_EQ(h.fsm.objects().memory_bytes(), memory);
        EXPECT_EQ(h.fsm.objects().pending_events(), 2u);
        EXPECT_EQ(h.fsm.objects().unset_user_events(), 1u);
        EXPECT_FALSE(h.fsm.has_record());
    }
}

TEST_F(validator_test, calls_that_fail_here_answer_opencls_error_and_create_nothing) {
    for (const failing& x : failing_calls) {
        SCOPED_TRACE(x.name);
        stream_builder b;
        x.build(b);
        const submit_decision d = h.submit(b);
        EXPECT_EQ(d.what, submit_decision::action::answer);
        EXPECT_EQ(d.response.status, VGPU_STATUS_OK);
        EXPECT_EQ(d.response.result, x.error);
        EXPECT_FALSE(h.fsm.objects().taken(fresh));
    }
}

TEST_F(validator_test, commands_that_fail_here_complete_with_opencls_error) {
    for (const failing& x : failing_commands) {
        SCOPED_TRACE(x.name);
        stream_builder b;
        x.build(b);
        const submit_decision d = h.submit(b);
        EXPECT_EQ(d.what, submit_decision::action::answer) << "nothing of the stream is left";
        EXPECT_EQ(d.response.status, VGPU_STATUS_OK) << (d.broken_rule ? d.broken_rule : "");
        const auto records = h.take_records();
        ASSERT_EQ(records.size(), 1u);
        const auto c = testing::as<vgpu_record_completion>(records[0]);
        EXPECT_EQ(c.record.type, VGPU_RECORD_COMPLETION);
        EXPECT_EQ(c.record.file, 7u);
        EXPECT_EQ(c.event, fresh);
        EXPECT_EQ(c.status, x.error);
        // The event is an object like any other until it is destroyed, but the worker is not asked to destroy
        // it.
        stream_builder destroy;
        destroy.destroy(VGPU_OBJECT_EVENT, fresh);
        const submit_decision gone = h.submit(destroy);
        EXPECT_EQ(gone.what, submit_decision::action::answer);
        EXPECT_EQ(gone.response.status, VGPU_STATUS_OK);
        EXPECT_FALSE(h.fsm.objects().taken(fresh));
    }
}

// They name no event, so it is their queue that tells.
TEST_F(validator_test, failing_runs_are_told_by_their_queue) {
    const auto error_of = [&](std::uint64_t memory, std::uint64_t last) {
        stream_builder b;
        b.write_runs(queue, memory, std::array{written_run{0, eight}, written_run{last, eight}});
        const submit_decision d = h.submit(b);
        EXPECT_EQ(d.what, submit_decision::action::answer) << "nothing of the stream is left";
        EXPECT_EQ(d.response.status, VGPU_STATUS_OK) << (d.broken_rule ? d.broken_rule : "");
        const auto records = h.take_records();
        EXPECT_EQ(records.size(), 1u);
        const auto e = testing::as<vgpu_record_queue_error>(records.at(0));
        EXPECT_EQ(e.record.type, VGPU_RECORD_QUEUE_ERROR);
        EXPECT_EQ(e.queue, queue);
        return e.error;
    };
    EXPECT_EQ(error_of(buffer, 4089), cl_invalid_value) << "beyond the end";
    EXPECT_EQ(error_of(image, 64), cl_invalid_mem_object);
    EXPECT_EQ(error_of(other_buffer, 64), cl_invalid_context);
}

TEST_F(validator_test, a_failed_command_is_left_out_and_what_waits_for_it_fails_too) {
    stream_builder b;
    b.flush(queue);
    b.write_buffer({queue, fresh, {}}, buffer, 5000, eight);         // refused
    b.marker({queue, fresh + 1, {fresh}});                           // waits for it
    b.fill_buffer({queue, fresh + 2, {event}}, buffer, 0, 8, eight); // goes on
    b.write_buffer({queue, 0, {}}, buffer, 5000, eight);             // refused, no event
    b.launch({queue, 0, {}}, kernel, {});
    const submit_decision d = h.submit(b);
    ASSERT_EQ(d.what, submit_decision::action::forward);
    const testing::received_request got(d.request);
    EXPECT_TRUE(got.valid);
    EXPECT_EQ(got.opcodes,
              (std::vector<std::uint16_t>{VGPU_CMD_FLUSH, VGPU_CMD_FILL_BUFFER, VGPU_CMD_LAUNCH}));
    const auto records = h.take_records();
    ASSERT_EQ(records.size(), 3u);
    EXPECT_EQ(testing::as<vgpu_record_completion>(records[0]).status, cl_invalid_value);
    EXPECT_EQ(testing::as<vgpu_record_completion>(records[1]).event, fresh + 1);
    EXPECT_EQ(testing::as<vgpu_record_completion>(records[1]).status, cl_wait_list_error);
    const auto e = testing::as<vgpu_record_queue_error>(records[2]);
    EXPECT_EQ(e.record.type, VGPU_RECORD_QUEUE_ERROR);
    EXPECT_EQ(e.queue, queue);
    EXPECT_EQ(e.error, cl_invalid_value);
    EXPECT_EQ(e.opcode, VGPU_CMD_WRITE_BUFFER);
}

TEST_F(validator_test, a_failed_call_behind_commands_overrides_only_the_result) {
    stream_builder b;
    b.flush(queue).create_sub_buffer(fresh, buffer, 0, 5000);
    const submit_decision d = h.submit(b);
    ASSERT_EQ(d.what, submit_decision::action::forward);
    EXPECT_EQ(testing::received_request(d.request).opcodes, std::vector<std::uint16_t>{VGPU_CMD_FLUSH});
    const done_decision done = h.fsm.on_done(d.request.token, testing::ok_response());
    ASSERT_FALSE(done.violation);
    EXPECT_EQ(done.response.result, cl_invalid_value);
    EXPECT_FALSE(h.fsm.objects().taken(fresh));
}

TEST_F(validator_test, destroy_takes_effect_in_stream_order) {
    stream_builder b;
    b.launch({queue, 0, {}}, kernel, {}, argument_builder{}.memory(0, buffer));
    b.destroy(VGPU_OBJECT_MEMORY, buffer);
    b.create_buffer(buffer, context, 16);
    EXPECT_EQ(h.submit(b).what, submit_decision::action::forward);
    EXPECT_EQ(h.fsm.objects().find(buffer, VGPU_OBJECT_MEMORY)->bytes, 16u);
}

TEST_F(validator_test, a_context_that_reuses_an_id_is_another_context) {
    h.run([](auto& b) { b.destroy(VGPU_OBJECT_CONTEXT, context).create_context(context); });
    h.run([](auto& b) { b.create_queue(fresh, context); });
    stream_builder b;
    b.fill_buffer({fresh, fresh + 1, {}}, buffer, 0, 8, eight);
    EXPECT_EQ(h.submit(b).what, submit_decision::action::answer);
    const auto records = h.take_records();
    ASSERT_EQ(records.size(), 1u);
    EXPECT_EQ(testing::as<vgpu_record_completion>(records[0]).status, cl_invalid_context);
}

TEST(validator_session, every_request_of_the_sample_session_is_accepted) {
    file_harness h;
    for (const sample_request& r : sample_session()) {
        SCOPED_TRACE(r.name);
        const submit_decision d = h.submit(r.builder);
        ASSERT_EQ(d.what, submit_decision::action::forward)
            << (d.broken_rule ? d.broken_rule : "an OpenCL error");
        EXPECT_FALSE(h.fsm.on_done(d.request.token, testing::ok_response()).violation);
    }
    EXPECT_EQ(h.fsm.objects().memory_bytes(), 0u);
    EXPECT_EQ(h.fsm.objects().size(), h.fsm.objects().pending_events())
        << "only events that did not complete are left";
}

} // namespace
} // namespace kagemusha::core
