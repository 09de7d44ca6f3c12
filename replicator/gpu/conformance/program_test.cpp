// SPDX-License-Identifier: GPL-2.0-or-later
// Programs, kernels, launches and what is known about them, on every backend.
#include <CL/cl.h>

#include <fcntl.h>
#include <unistd.h>

#include <numeric>

#include "gpu/conformance/session.hpp"

namespace kagemusha::gpu::conformance {
namespace {

using codec::argument_builder;
using codec::launch_size;
using codec::stream_builder;

constexpr std::string_view vector_add = R"(
// adds; the comma, in this comment, is no argument
__kernel void add(__global const float* a, global const float *b, __global float* restrict sum, const uint n, float4 v)
{
    size_t i = get_global_id(0);
    if (i < n) sum[i] = a[i] + b[i] + v.y;
}
kernel __attribute__((reqd_work_group_size(4, 1, 1))) void scale(global int* data, int factor, local int* scratch) {
    scratch[get_local_id(0)] = data[get_global_id(0)] * factor;
    barrier(CLK_LOCAL_MEM_FENCE);
    data[get_global_id(0)] = scratch[get_local_id(0)];
}
__kernel void is_null(global int* maybe, global int* out) { out[0] = maybe == 0 ? 1 : 2; }
)";

class programs : public backend_test {};

TEST_P(programs, VectorAdd) {
    const auto context = s->context(), queue = s->queue(context);
    const auto kernel = s->kernel(s->program(context, vector_add), "add");
    constexpr std::uint32_t n = 1000;
    const auto a = s->buffer(context, 4 * n), b = s->buffer(context, 4 * n), sum = s->buffer(context, 4 * n);
    for (std::uint32_t i = 0; i < n; ++i) {
        s->guest_as<float>()[i] = static_cast<float>(i);
        s->guest_as<float>(4096)[i] = 2.0f * static_cast<float>(i);
    }
    ASSERT_EQ(s->write(queue, a, 0, 4 * n), 0);
    ASSERT_EQ(s->write(queue, b, 4096, 4 * n), 0);
    const float v[4] = {0, 10, 0, 0};
    const auto event = s->new_id();
    s->ok(stream_builder().launch(
        {queue, event}, kernel, {1, {1024, 1, 1}},
        argument_builder().memory(0, a).memory(1, b).memory(2, sum).scalar(3, n).scalar(4, v)));
    EXPECT_EQ(s->sink.wait_event(event).status, 0);
    ASSERT_EQ(s->read(queue, sum, 8192, 4 * n), 0);
    KAGEMUSHA_NEEDS(executes);
    for (std::uint32_t i = 0; i < n; ++i)
        ASSERT_EQ(s->guest_as<float>(8192)[i], 3.0f * static_cast<float>(i) + 10) << i;
}

TEST_P(programs, ArgumentsAreRememberedOnlyWhileTheyAreTheSame) {
    const auto context = s->context(), queue = s->queue(context);
    const auto kernel = s->kernel(s->program(context, vector_add), "scale");
    const auto first = s->buffer(context, 64), other = s->buffer(context, 64);
    std::fill_n(s->guest_as<std::int32_t>(), 16, 1);
    ASSERT_EQ(s->write(queue, first, 0, 64), 0);
    ASSERT_EQ(s->write(queue, other, 0, 64), 0);
    const auto launch = [&](std::uint64_t buffer, std::int32_t factor) {
        launch_size size{1, {16, 1, 1}};
        size.local[0] = 4, size.local[1] = size.local[2] = 1;
        stream_builder b;
        b.launch({queue}, kernel, size, argument_builder().memory(0, buffer).scalar(1, factor).local(2, 16));
        s->ok(b);
    };
    launch(first, 2);
    launch(first, 2); // nothing changed
    launch(first, 3); // the value changed
    launch(other, 3); // the object changed
    // An object that is destroyed and made again under the same id is another one.
    s->finish(queue);
    s->ok(stream_builder().destroy(VGPU_OBJECT_MEMORY, other));
    s->ok(stream_builder().create_buffer(other, context, 64));
    ASSERT_EQ(s->write(queue, other, 0, 64), 0);
    launch(other, 3);
    ASSERT_EQ(s->read(queue, first, 0, 64), 0);
    ASSERT_EQ(s->read(queue, other, 64, 64), 0);
    KAGEMUSHA_NEEDS(executes);
    EXPECT_EQ(s->guest_as<std::int32_t>()[15], 12);
    EXPECT_EQ(s->guest_as<std::int32_t>(64)[15], 3);
}

// What it suggests is the runtime's affair, but a launch of that size must be possible.
TEST_P(programs, SuggestedGroupSizeIsOneThatALaunchCanHave) {
    const auto context = s->context(), queue = s->queue(context);
    const auto kernel = s->kernel(s->program(context, vector_add), "scale");
    const auto buffer = s->buffer(context, 256);
    const auto arguments = argument_builder().memory(0, buffer).scalar(1, 2).local(2, 16);
    stream_builder b;
    vgpu_cmd_suggested_group_size c{};
    c.queue = queue;
    c.kernel = kernel;
    c.work_dim = 1;
    c.global[0] = 64;
    c.global[1] = c.global[2] = 1;
    c.result = b.payload(true, 0, 0, 24);
    c.argument_count = arguments.count();
    c.argument_bytes = static_cast<std::uint32_t>(arguments.bytes().size());
    b.begin(VGPU_CMD_SUGGESTED_GROUP_SIZE, c).bytes(arguments.bytes());
    const vgpu_response answer = s->submit(b);
    EXPECT_EQ(answer.status, VGPU_STATUS_OK);
    if (answer.result == CL_INVALID_OPERATION)
        GTEST_SKIP() << "this runtime has no cl_khr_suggested_local_work_size";
    ASSERT_EQ(answer.result, CL_SUCCESS);
    EXPECT_EQ(answer.result_bytes, 24u);
    const auto* local = s->guest_as<std::uint64_t>();
    ASSERT_NE(local[0], 0u);
    EXPECT_EQ(64 % local[0], 0u);
    EXPECT_EQ(local[1], 1u);
    EXPECT_EQ(local[2], 1u);
    launch_size size{1, {64, 1, 1}};
    size.local[0] = local[0], size.local[1] = size.local[2] = 1;
    const auto event = s->new_id();
    s->ok(stream_builder().launch({queue, event}, kernel, size, arguments));
    EXPECT_EQ(s->sink.wait_event(event).status, 0);
}

TEST_P(programs, TheDeviceSaysWhichCommandsItKnows) {
    stream_builder b;
    b.info(VGPU_INFO_PLATFORM, VGPU_PLATFORM_COMMANDS, 0, 0, b.payload(true, 0, 0, 8));
    const vgpu_response answer = s->submit(b);
    ASSERT_EQ(answer.result, CL_SUCCESS);
    ASSERT_EQ(answer.result_bytes, 8u);
    const std::uint64_t known = *s->guest_as<std::uint64_t>();
    for (const int opcode : {VGPU_CMD_INFO, VGPU_CMD_SUGGESTED_GROUP_SIZE, VGPU_CMD_WRITE_RUNS})
        EXPECT_EQ(known >> opcode & 1, 1u) << opcode;
    for (const int opcode : {0, int{VGPU_CMD_AWAIT}, int{VGPU_CMD_TAKE_BUILT}, int{VGPU_CMD_STORE_BUILT},
                             VGPU_FIRST_ENQUEUE - 1})
        EXPECT_EQ(known >> opcode & 1, 0u) << opcode;
}

// What a query sets is set: the launch behind it sends the argument again only if it changed.
TEST_P(programs, AQuestionThatFailsDoesNotHideArguments) {
    const auto context = s->context(), queue = s->queue(context);
    const auto kernel = s->kernel(s->program(context, vector_add), "scale");
    stream_builder b;
    vgpu_cmd_suggested_group_size c{};
    c.queue = queue;
    c.kernel = kernel;
    c.work_dim = 1;
    c.global[0] = c.global[1] = c.global[2] = 1;
    c.result = b.payload(true, 0, 0, 24);
    const auto arguments = argument_builder().memory(0, 987654);
    c.argument_count = arguments.count();
    c.argument_bytes = static_cast<std::uint32_t>(arguments.bytes().size());
    b.begin(VGPU_CMD_SUGGESTED_GROUP_SIZE, c).bytes(arguments.bytes());
    EXPECT_EQ(s->submit(b).result, CL_INVALID_MEM_OBJECT);
    const auto buffer = s->buffer(context, 64);
    std::fill_n(s->guest_as<std::int32_t>(), 16, 1);
    ASSERT_EQ(s->write(queue, buffer, 0, 64), 0);
    launch_size size{1, {16, 1, 1}};
    size.local[0] = 4, size.local[1] = size.local[2] = 1;
    s->ok(stream_builder().launch({queue}, kernel, size,
                                  argument_builder().memory(0, buffer).scalar(1, 3).local(2, 16)));
    ASSERT_EQ(s->read(queue, buffer, 0, 64), 0);
    KAGEMUSHA_NEEDS(executes);
    EXPECT_EQ(s->guest_as<std::int32_t>()[15], 3);
}

TEST_P(programs, NullMemoryArgument) {
    const auto context = s->context(), queue = s->queue(context);
    const auto kernel = s->kernel(s->program(context, vector_add), "is_null");
    const auto out = s->buffer(context, 4);
    const auto event = s->new_id();
    s->ok(
        stream_builder().launch({queue, event}, kernel, {}, argument_builder().memory(0, 0).memory(1, out)));
    EXPECT_EQ(s->sink.wait_event(event).status, 0);
    ASSERT_EQ(s->read(queue, out, 0, 4), 0);
    KAGEMUSHA_NEEDS(executes);
    EXPECT_EQ(*s->guest_as<std::int32_t>(), 1);
}

TEST_P(programs, SixtyFourLaunchesInOneStream) {
    const auto context = s->context(), queue = s->queue(context);
    const auto kernel =
        s->kernel(s->program(context, "kernel void inc(global int* x) { x[0] += 1; }"), "inc");
    const auto buffer = s->buffer(context, 4);
    *s->guest_as<std::int32_t>() = 0;
    ASSERT_EQ(s->write(queue, buffer, 0, 4), 0);
    stream_builder b;
    std::vector<std::uint64_t> events;
    for (int i = 0; i < 64; ++i) {
        events.push_back(s->new_id());
        b.launch({queue, events.back()}, kernel, {}, argument_builder().memory(0, buffer));
    }
    s->ok(b);
    for (const auto event : events)
        EXPECT_EQ(s->sink.wait_event(event).status, 0);
    ASSERT_EQ(s->read(queue, buffer, 0, 4), 0);
    KAGEMUSHA_NEEDS(executes);
    EXPECT_EQ(*s->guest_as<std::int32_t>(), 64);
}

TEST_P(programs, WhatIsWrongWithALaunchIsToldByItsEvent) {
    const auto context = s->context(), queue = s->queue(context);
    const auto kernel = s->kernel(s->program(context, vector_add), "is_null");
    const auto out = s->buffer(context, 4);
    const auto bad_index = s->new_id(), bad_memory = s->new_id(), good = s->new_id();
    s->ok(stream_builder().launch({queue, bad_index}, kernel, {},
                                  argument_builder().memory(0, 0).memory(1, out).scalar(9, 1)));
    EXPECT_EQ(s->sink.wait_event(bad_index).status, CL_INVALID_ARG_INDEX);
    s->ok(stream_builder().launch({queue, bad_memory}, kernel, {},
                                  argument_builder().memory(0, 12345).memory(1, out)));
    EXPECT_EQ(s->sink.wait_event(bad_memory).status, CL_INVALID_MEM_OBJECT);
    // Without an event the queue tells it.
    s->ok(stream_builder().launch({queue}, kernel, {}, argument_builder().memory(0, queue).memory(1, out)));
    const auto error = s->sink.wait_queue_error();
    EXPECT_EQ(error.queue, queue);
    EXPECT_EQ(error.error, CL_INVALID_MEM_OBJECT);
    EXPECT_EQ(error.opcode, static_cast<std::uint32_t>(VGPU_CMD_LAUNCH));
    // And the kernel object is as good as before.
    s->ok(stream_builder().launch({queue, good}, kernel, {}, argument_builder().memory(0, 0).memory(1, out)));
    EXPECT_EQ(s->sink.wait_event(good).status, 0);
}

TEST_P(programs, ArgumentInformationIsThereWithoutAsking) {
    const auto context = s->context();
    const auto kernel = s->kernel(s->program(context, vector_add), "add");
    EXPECT_EQ(s->info_value<cl_uint>(VGPU_INFO_KERNEL, CL_KERNEL_NUM_ARGS, kernel), 5u);
    EXPECT_EQ(s->info_text(VGPU_INFO_KERNEL, CL_KERNEL_FUNCTION_NAME, kernel), "add");
    const auto address = [&](std::uint64_t k, std::uint64_t i) {
        return s->info_value<cl_uint>(VGPU_INFO_KERNEL_ARG, CL_KERNEL_ARG_ADDRESS_QUALIFIER, k, i);
    };
    EXPECT_EQ(address(kernel, 0), static_cast<cl_uint>(CL_KERNEL_ARG_ADDRESS_GLOBAL));
    EXPECT_EQ(address(kernel, 3), static_cast<cl_uint>(CL_KERNEL_ARG_ADDRESS_PRIVATE));
    EXPECT_EQ(s->info_text(VGPU_INFO_KERNEL_ARG, CL_KERNEL_ARG_TYPE_NAME, kernel, 0), "float*");
    EXPECT_EQ(s->info_text(VGPU_INFO_KERNEL_ARG, CL_KERNEL_ARG_TYPE_NAME, kernel, 4), "float4");
    EXPECT_EQ(s->info_text(VGPU_INFO_KERNEL_ARG, CL_KERNEL_ARG_NAME, kernel, 2), "sum");
    std::int32_t result = 0;
    s->info(VGPU_INFO_KERNEL_ARG, CL_KERNEL_ARG_NAME, kernel, 5, result);
    EXPECT_EQ(result, CL_INVALID_ARG_INDEX);

    const auto scale = s->kernel(s->program(context, vector_add), "scale");
    EXPECT_EQ(address(scale, 2), static_cast<cl_uint>(CL_KERNEL_ARG_ADDRESS_LOCAL));
    EXPECT_GT(s->info_value<std::size_t>(VGPU_INFO_KERNEL_WORK_GROUP, CL_KERNEL_WORK_GROUP_SIZE, kernel), 0u);
}

TEST_P(programs, KernelNames) {
    const auto context = s->context();
    const auto program = s->program(context, vector_add);
    EXPECT_EQ(s->info_value<std::size_t>(VGPU_INFO_PROGRAM, CL_PROGRAM_NUM_KERNELS, program), 3u);
    const std::string names = ";" + s->info_text(VGPU_INFO_PROGRAM, CL_PROGRAM_KERNEL_NAMES, program) + ";";
    for (const char* name : {";add;", ";scale;", ";is_null;"})
        EXPECT_NE(names.find(name), names.npos) << names;
    EXPECT_EQ(s->submit(stream_builder().create_kernel(s->new_id(), program, "no_such_kernel")).result,
              CL_INVALID_KERNEL_NAME);
}

TEST_P(programs, ABuildThatFailsHasALog) {
    KAGEMUSHA_NEEDS(checks_source);
    const auto context = s->context(), program = s->new_id();
    s->ok(stream_builder().create_program(program, context,
                                          "kernel void k(global int* x) { x[0] = no_such_thing; }"));
    EXPECT_EQ(s->submit(stream_builder().build_program(program)).result, CL_BUILD_PROGRAM_FAILURE);
    const std::string log = s->info_text(VGPU_INFO_PROGRAM_BUILD, CL_PROGRAM_BUILD_LOG, program);
    EXPECT_NE(log.find("no_such_thing"), log.npos) << log;
    EXPECT_EQ(s->info_value<cl_int>(VGPU_INFO_PROGRAM_BUILD, CL_PROGRAM_BUILD_STATUS, program),
              CL_BUILD_ERROR);
    EXPECT_EQ(s->submit(stream_builder().create_kernel(s->new_id(), program, "k")).result,
              CL_INVALID_PROGRAM_EXECUTABLE);
}

TEST_P(programs, OptionsReachTheCompiler) {
    const auto context = s->context(), queue = s->queue(context), program = s->new_id();
    s->ok(
        stream_builder().create_program(program, context, "kernel void k(global int* x) { x[0] = VALUE; }"));
    s->ok(stream_builder().build_program(program, "-DVALUE=4711"));
    const auto kernel = s->kernel(program, "k");
    const auto out = s->buffer(context, 4);
    s->ok(stream_builder().launch({queue}, kernel, {}, argument_builder().memory(0, out)));
    ASSERT_EQ(s->read(queue, out, 0, 4), 0);
    KAGEMUSHA_NEEDS(executes);
    EXPECT_EQ(*s->guest_as<std::int32_t>(), 4711);
}

TEST_P(programs, CompileAndLink) {
    const auto context = s->context(), queue = s->queue(context);
    const auto header = s->new_id(), part = s->new_id(), main = s->new_id(), linked = s->new_id();
    s->ok(stream_builder().create_program(header, context, "int twice(int x);\n#define PLUS 5\n"));
    s->ok(stream_builder().create_program(part, context, "int twice(int x) { return 2 * x; }"));
    s->ok(stream_builder().create_program(
        main, context, "#include \"twice.h\"\nkernel void k(global int* x) { x[0] = twice(x[0]) + PLUS; }"));
    const std::uint64_t headers[] = {header};
    const std::string_view names[] = {"twice.h"};
    s->ok(stream_builder().compile_program(part, "", {}, {}));
    s->ok(stream_builder().compile_program(main, "", headers, names));
    const std::uint64_t inputs[] = {main, part};
    s->ok(stream_builder().link_program(linked, context, inputs));
    const auto kernel = s->kernel(linked, "k");
    const auto x = s->buffer(context, 4);
    *s->guest_as<std::int32_t>() = 21;
    ASSERT_EQ(s->write(queue, x, 0, 4), 0);
    s->ok(stream_builder().launch({queue}, kernel, {}, argument_builder().memory(0, x)));
    ASSERT_EQ(s->read(queue, x, 0, 4), 0);
    KAGEMUSHA_NEEDS(executes);
    EXPECT_EQ(*s->guest_as<std::int32_t>(), 47);
}

TEST_P(programs, LinkingWhatIsNotCompiledFails) {
    const auto context = s->context(), part = s->new_id(), linked = s->new_id();
    s->ok(stream_builder().create_program(part, context, "int f(int x) { return x; }"));
    const std::uint64_t inputs[] = {part};
    EXPECT_LT(s->submit(stream_builder().link_program(linked, context, inputs)).result, 0);
    const std::uint64_t nonsense[] = {context};
    EXPECT_EQ(s->submit(stream_builder().link_program(s->new_id(), context, nonsense)).result,
              CL_INVALID_PROGRAM);
}

TEST_P(programs, BinariesComeBackAsPrograms) {
    const auto context = s->context(), queue = s->queue(context);
    const auto program = s->program(context, "kernel void k(global int* x) { x[0] = 99; }");
    const auto bytes = s->info_value<std::uint64_t>(VGPU_INFO_PROGRAM, CL_PROGRAM_BINARY_SIZES, program);
    ASSERT_GT(bytes, 0u);
    std::int32_t result = 0;
    const auto binary = s->info(VGPU_INFO_PROGRAM, CL_PROGRAM_BINARIES, program, 0, result);
    ASSERT_EQ(result, 0);
    ASSERT_EQ(binary.size(), bytes);
    std::memcpy(s->guest(), binary.data(), binary.size());
    const auto again = s->new_id();
    stream_builder b;
    const auto content = b.payload(false, 0, 0, bytes);
    s->ok(b.create_program(again, context, VGPU_PROGRAM_BINARY, content));
    s->ok(stream_builder().build_program(again));
    const auto kernel = s->kernel(again, "k");
    const auto x = s->buffer(context, 4);
    s->ok(stream_builder().launch({queue}, kernel, {}, argument_builder().memory(0, x)));
    ASSERT_EQ(s->read(queue, x, 0, 4), 0);
    // Nonsense is no binary.
    std::memset(s->guest(), 0x33, 4096);
    stream_builder c;
    const auto nonsense = c.payload(false, 0, 0, 4096);
    // Runtimes look at it when it is given to them, or when it is built.
    const auto broken = s->new_id();
    const auto created = s->submit(c.create_program(broken, context, VGPU_PROGRAM_BINARY, nonsense));
    if (created.result == 0)
        EXPECT_LT(s->submit(stream_builder().build_program(broken)).result, 0);
    else
        EXPECT_EQ(created.result, CL_INVALID_BINARY);
    KAGEMUSHA_NEEDS(executes);
    s->read(queue, x, 0, 4);
    EXPECT_EQ(*s->guest_as<std::int32_t>(), 99);
}

// The runtime writes to the process's standard output; the worker turns that into a pipe, and so does this
// test.
TEST_P(programs, PrintedTextIsOutBeforeTheCompletion) {
    KAGEMUSHA_NEEDS(prints);
    int pipe_fds[2];
    ASSERT_EQ(pipe2(pipe_fds, O_NONBLOCK | O_CLOEXEC), 0);
    const auto context = s->context(), queue = s->queue(context);
    const auto kernel =
        s->kernel(s->program(context, "kernel void k(int x) { printf(\"the answer is %d\\n\", x); }"), "k");
    const std::size_t drains_before = s->sink.drains();
    std::fflush(stdout);
    const int kept = dup(1);
    dup2(pipe_fds[1], 1);
    const auto event = s->new_id();
    s->ok(
        stream_builder().launch({queue, event}, kernel, {}, argument_builder().scalar(0, std::int32_t{42})));
    const auto completion = s->sink.wait_event(event);
    std::fflush(stdout);
    dup2(kept, 1);
    close(kept);
    char text[256] = {};
    const auto n = read(pipe_fds[0], text, sizeof(text) - 1);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    EXPECT_EQ(completion.status, 0);
    EXPECT_GT(n, 0);
    EXPECT_STREQ(text, "the answer is 42\n");
    EXPECT_GT(s->sink.drains(), drains_before);
}

TEST_P(programs, DeviceInformation) {
    for (const std::uint32_t name : {CL_DEVICE_NAME, CL_DEVICE_VERSION, CL_DEVICE_VENDOR, CL_DRIVER_VERSION})
        EXPECT_FALSE(s->info_text(VGPU_INFO_DEVICE, name, 0).empty());
    EXPECT_GT(s->info_value<cl_ulong>(VGPU_INFO_DEVICE, CL_DEVICE_GLOBAL_MEM_SIZE, 0), 0u);
    EXPECT_FALSE(s->info_text(VGPU_INFO_PLATFORM, CL_PLATFORM_NAME, 0).empty());
    // Handles and pointers are never given out.
    std::int32_t result = 0;
    for (const std::uint32_t name : {CL_DEVICE_PLATFORM, CL_DEVICE_PARENT_DEVICE, 0x7777}) {
        s->info(VGPU_INFO_DEVICE, name, 0, 0, result);
        EXPECT_EQ(result, CL_INVALID_VALUE) << name;
    }
    const auto context = s->context();
    const auto kernel = s->kernel(s->program(context, vector_add), "add");
    s->info(VGPU_INFO_KERNEL, CL_KERNEL_PROGRAM, kernel, 0, result);
    EXPECT_EQ(result, CL_INVALID_VALUE);
    s->info(VGPU_INFO_KERNEL, CL_KERNEL_NUM_ARGS, context, 0, result);
    EXPECT_EQ(result, CL_INVALID_KERNEL);
    s->info(VGPU_INFO_DEVICE, CL_DEVICE_NAME, 0, 1, result);
    EXPECT_EQ(result, CL_INVALID_DEVICE);
}

TEST_P(programs, AnAnswerThatDoesNotFitIsCutAndItsSizeTold) {
    std::memset(s->guest(), 0x44, 64);
    stream_builder b;
    const auto out = b.payload(true, {{0, 3, 0, 0}, {10, 2, 0, 0}});
    b.info(VGPU_INFO_DEVICE, CL_DEVICE_NAME, 0, 0, out);
    const auto response = s->submit(b);
    EXPECT_EQ(response.result, 0);
    const std::string name = s->info_text(VGPU_INFO_DEVICE, CL_DEVICE_NAME, 0);
    EXPECT_EQ(response.result_bytes, name.size() + 1);
    const auto* text = s->guest_as<char>();
    EXPECT_EQ(std::string(text, 3) + std::string(text + 10, 2), name.substr(0, 5));
    EXPECT_EQ(text[3], 0x44);
    EXPECT_EQ(text[12], 0x44);
}

INSTANTIATE_TEST_SUITE_P(backends, programs, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

} // namespace
} // namespace kagemusha::gpu::conformance
