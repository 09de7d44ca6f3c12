// SPDX-License-Identifier: GPL-2.0-or-later
//
// Encoding and batching: how commands become requests, what happens when requests are refused, and the loss
// of a device.
#include "batch.hpp"
#include "test_fixture.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <thread>

namespace kagemusha::opencl {
namespace {

TEST(batch_test, commands_are_padded_and_payloads_numbered) {
    batch sent;
    sent.reserve({});
    int data[4] = {1, 2, 3, 4};
    auto inside = make_command<commands::write_buffer>();
    sent.append(make_outgoing(inside, codec::id_list{}, inlined(data, 5)), 7, 1);
    auto in_place = make_command<commands::read_buffer>();
    const outgoing out = make_outgoing(in_place, codec::id_list{}, payload{data, sizeof data, true});
    sent.append(out, 0, 1);
    sent.append(out, 0, 1);

    EXPECT_EQ(sent.command_count(), 3u);
    EXPECT_EQ(sent.completion_count(), 1u);
    EXPECT_EQ(sent.payloads().size(), 2u);
    vgpu_cmd_transfer_buffer first, third;
    std::memcpy(&first, sent.stream().data(), sizeof first);
    EXPECT_EQ(first.cmd.bytes, sizeof first + 8);
    EXPECT_EQ(first.cmd.opcode, VGPU_CMD_WRITE_BUFFER);
    EXPECT_EQ(first.data.bytes, 5u);
    EXPECT_EQ(first.data.index, VGPU_PAYLOAD_INLINE);
    EXPECT_EQ(std::memcmp(sent.stream().data() + sizeof first, "\1\0\0\0\2\0\0\0", 8), 0);
    std::memcpy(&third, sent.stream().data() + first.cmd.bytes + sizeof third, sizeof third);
    EXPECT_EQ(third.data.index, 1u);
    EXPECT_EQ(third.data.bytes, sizeof data);

    const submission alone = sent.single(2, true);
    EXPECT_EQ(alone.stream.size(), sizeof third);
    EXPECT_EQ(alone.payloads.size(), 1u);
    std::memcpy(&third, alone.stream.data(), sizeof third);
    EXPECT_EQ(third.data.index, 0u);
}

TEST(batch_test, limits_hold) {
    transport_limits limits;
    limits.max_stream_bytes = 256;
    limits.max_payload_bytes = 100;
    batch sent;
    sent.reserve(limits);
    auto command = make_command<commands::read_buffer>();
    outgoing out = make_outgoing(command, codec::id_list{}, payload{&command, 60, true});
    ASSERT_TRUE(sent.fits(out));
    sent.append(out, 0, 1);
    EXPECT_FALSE(sent.fits(out)); // 120 bytes of payload
    out.data.bytes = 101;
    EXPECT_FALSE(sent.possible(out));
    auto large = make_command<commands::write_buffer>();
    EXPECT_FALSE(sent.possible(make_outgoing(large, codec::id_list{}, inlined(&sent, 300))));
}

using connection_test = driver_test;

TEST_F(connection_test, many_launches_travel_in_few_requests) {
    cl_kernel kernel = make_kernel("none");
    const std::size_t before = gpu->request_count();
    for (int i = 0; i < 640; ++i)
        ASSERT_EQ(launch(kernel), CL_SUCCESS);
    ASSERT_EQ(cl.clFinish(queue), CL_SUCCESS);
    EXPECT_EQ(gpu->commands(VGPU_CMD_LAUNCH).size(), 640u);
    std::map<std::uint64_t, int> per_request;
    for (const recorded_command& one : gpu->commands(VGPU_CMD_LAUNCH))
        ++per_request[one.request];
    // A slow machine lets the flush thread send some earlier; on average a request still carries many.
    EXPECT_LE(gpu->request_count() - before, 640u / 16);
    cl.clReleaseKernel(kernel);
}

TEST_F(connection_test, a_full_batch_goes_out_by_itself) {
    cl_kernel kernel = make_kernel("none");
    for (std::size_t i = 0; i < 2 * batch_commands_threshold; ++i)
        ASSERT_EQ(launch(kernel), CL_SUCCESS);
    EXPECT_GE(gpu->commands(VGPU_CMD_LAUNCH).size(), batch_commands_threshold);
    cl.clReleaseKernel(kernel);
}

// A training step of a hundred launches must not wait for the flush thread: the GPU has nothing to do then.
TEST_F(connection_test, behind_a_wait_the_first_commands_go_out_early) {
    cl_kernel kernel = make_kernel("none");
    for (int round = 0; round < 3; ++round) {
        ASSERT_EQ(cl.clFinish(queue), CL_SUCCESS);
        const std::size_t before = gpu->commands(VGPU_CMD_LAUNCH).size();
        for (int i = 0; i < 16; ++i)
            ASSERT_EQ(launch(kernel), CL_SUCCESS);
        EXPECT_GT(gpu->commands(VGPU_CMD_LAUNCH).size(), before + 8); // other commands count, too
    }
    cl.clReleaseKernel(kernel);
}

TEST(send_pace, waits_for_eight_times_what_sending_takes) {
    using std::chrono::microseconds;
    const send_pace::clock::time_point begin{std::chrono::hours(1)};
    send_pace pace({microseconds(20), microseconds(2000)});
    pace.began(begin);
    EXPECT_FALSE(pace.is_old(begin + microseconds(19)));
    EXPECT_TRUE(pace.is_old(begin + microseconds(20)));
    for (int i = 0; i < 100; ++i)
        pace.sent(microseconds(100));
    EXPECT_NEAR(static_cast<double>(pace.longest_wait() / microseconds(1)), 800, 10);
    for (int i = 0; i < 100; ++i)
        pace.sent(microseconds(1000));
    EXPECT_EQ(pace.longest_wait(), microseconds(2000));
    for (int i = 0; i < 100; ++i)
        pace.sent(microseconds(1));
    EXPECT_EQ(pace.longest_wait(), microseconds(20));
}

TEST_F(connection_test, what_is_old_goes_out_with_the_next_command) {
    if (const auto old = connection::current(test_device::first_name))
        old->close();
    gpu = &test_device::fresh();
    gpu->limits.age = {std::chrono::nanoseconds(0), std::chrono::nanoseconds(0)}; // each is old at once
    cl_int error = CL_SUCCESS;
    cl_context of_it = cl.clCreateContext(nullptr, 1, &device, nullptr, nullptr, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    cl_command_queue own = cl.clCreateCommandQueue(of_it, device, 0, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    for (std::size_t sent = 1; sent < 5; ++sent) {
        ASSERT_EQ(cl.clEnqueueBarrierWithWaitList(own, 0, nullptr, nullptr), CL_SUCCESS);
        EXPECT_EQ(gpu->commands(VGPU_CMD_BARRIER).size(), sent);
    }
    cl.clReleaseCommandQueue(own);
    cl.clReleaseContext(of_it);
}

TEST_F(connection_test, behind_a_blocking_read_a_finish_asks_nobody) {
    cl_mem buffer = make_buffer(64);
    cl_int error = CL_SUCCESS;
    cl_command_queue other = cl.clCreateCommandQueue(context, device, 0, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    const auto read = [&] {
        int value = 0;
        ASSERT_EQ(
            cl.clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof value, &value, 0, nullptr, nullptr),
            CL_SUCCESS);
    };
    const auto markers_of_a_finish = [&](cl_command_queue of) {
        const std::size_t before = gpu->commands(VGPU_CMD_MARKER).size();
        EXPECT_EQ(cl.clFinish(of), CL_SUCCESS);
        return gpu->commands(VGPU_CMD_MARKER).size() - before;
    };
    read();
    EXPECT_EQ(markers_of_a_finish(queue), 0u);
    EXPECT_EQ(markers_of_a_finish(queue), 0u);
    EXPECT_EQ(markers_of_a_finish(other), 1u) << "nothing of that one was waited for";
    EXPECT_EQ(markers_of_a_finish(queue), 1u) << "something came since, elsewhere";
    read();
    ASSERT_EQ(cl.clEnqueueBarrierWithWaitList(queue, 0, nullptr, nullptr), CL_SUCCESS);
    EXPECT_EQ(markers_of_a_finish(queue), 1u);
    cl.clReleaseCommandQueue(other);
    cl.clReleaseMemObject(buffer);
}

// The bytes are taken, which is what the standard asks; other queues wait for the write itself.
TEST_F(connection_test, a_small_blocking_write_waits_for_nothing) {
    cl_mem buffer = make_buffer(1 << 20);
    cl_int error = CL_SUCCESS;
    cl_command_queue other = cl.clCreateCommandQueue(context, device, 0, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    cl_command_queue unordered =
        cl.clCreateCommandQueue(context, device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    std::vector<char> data(1 << 20, 'a');
    const auto write = [&](cl_command_queue to, std::size_t bytes, cl_event* event = nullptr) {
        return cl.clEnqueueWriteBuffer(to, buffer, CL_TRUE, 0, bytes, data.data(), 0, nullptr, event);
    };
    const auto awaited_by_a_copy = [&](cl_command_queue in) {
        EXPECT_EQ(cl.clEnqueueCopyBuffer(in, buffer, buffer, 0, 512, 512, 0, nullptr, nullptr), CL_SUCCESS);
        cl.clFlush(in);
        const recorded_command sent = gpu->commands(VGPU_CMD_COPY_BUFFER).back();
        const __u32 count = sent.as<vgpu_cmd_copy_buffer>().enqueue.wait_count;
        std::vector<std::uint64_t> ids;
        for (__u32 i = 0; i < count; ++i)
            std::memcpy(&ids.emplace_back(), sent.bytes.data() + sizeof(vgpu_cmd_copy_buffer) + i * 8, 8);
        return ids;
    };
    gpu->hold_completions();
    const std::size_t requests = gpu->request_count();
    EXPECT_EQ(write(queue, 100), CL_SUCCESS);
    data[0] = 'b'; // the program's again
    EXPECT_EQ(write(queue, 1), CL_SUCCESS);
    EXPECT_EQ(gpu->request_count(), requests);
    cl.clFlush(queue);
    const auto writes = gpu->commands(VGPU_CMD_WRITE_BUFFER);
    ASSERT_EQ(writes.size(), 2u);
    EXPECT_EQ(static_cast<char>(writes[0].bytes[sizeof(vgpu_cmd_transfer_buffer)]), 'a');
    EXPECT_EQ(static_cast<char>(writes[1].bytes[sizeof(vgpu_cmd_transfer_buffer)]), 'b');
    EXPECT_EQ(writes[1].as<vgpu_cmd_transfer_buffer>().enqueue.event, 0u) << "nobody asks";
    EXPECT_EQ(awaited_by_a_copy(queue), std::vector<std::uint64_t>{});
    EXPECT_TRUE(gpu->commands(VGPU_CMD_MARKER).empty());
    const auto marker = [&] {
        const auto all = gpu->commands(VGPU_CMD_MARKER);
        return std::vector<std::uint64_t>{all.empty() ? 0 : all.back().as<vgpu_cmd_sync>().enqueue.event};
    };
    const std::vector<std::uint64_t> by_other = awaited_by_a_copy(other);
    EXPECT_EQ(by_other, marker());
    EXPECT_EQ(gpu->commands(VGPU_CMD_MARKER).back().as<vgpu_cmd_sync>().enqueue.queue,
              writes[1].as<vgpu_cmd_transfer_buffer>().enqueue.queue);
    EXPECT_EQ(awaited_by_a_copy(unordered), by_other) << "one marker is enough";
    EXPECT_EQ(write(queue, 1), CL_SUCCESS);
    EXPECT_NE(awaited_by_a_copy(other), by_other);
    // Of a queue that is gone.
    cl_command_queue gone = cl.clCreateCommandQueue(context, device, 0, &error);
    EXPECT_EQ(write(gone, 1), CL_SUCCESS);
    cl.clReleaseCommandQueue(gone);
    EXPECT_EQ(awaited_by_a_copy(queue), marker());
    // What waits for everything before it must not wait for this alone.
    ASSERT_EQ(cl.clEnqueueBarrierWithWaitList(unordered, 0, nullptr, nullptr), CL_SUCCESS);
    cl.clFlush(unordered);
    EXPECT_EQ(gpu->commands(VGPU_CMD_BARRIER).back().as<vgpu_cmd_sync>().enqueue.wait_count, 0u);

    gpu->release_completions();
    EXPECT_EQ(cl.clFinish(queue), CL_SUCCESS);
    EXPECT_EQ(awaited_by_a_copy(other), std::vector<std::uint64_t>{});
    // Behind a blocking read they are over, and nothing need be asked.
    const std::size_t markers = gpu->commands(VGPU_CMD_MARKER).size();
    EXPECT_EQ(write(queue, 1), CL_SUCCESS);
    EXPECT_EQ(cl.clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, 4, data.data(), 0, nullptr, nullptr),
              CL_SUCCESS);
    EXPECT_EQ(awaited_by_a_copy(other), std::vector<std::uint64_t>{});
    EXPECT_EQ(gpu->commands(VGPU_CMD_MARKER).size(), markers);
    // These are over when they return: what is not inline, has an event, or is in no order.
    cl_event event = nullptr;
    EXPECT_EQ(write(queue, 100, &event), CL_SUCCESS);
    EXPECT_EQ(status_of(event), CL_COMPLETE);
    EXPECT_EQ(write(queue, data.size()), CL_SUCCESS);
    EXPECT_EQ(write(unordered, 100), CL_SUCCESS);
    EXPECT_EQ(gpu->commands(VGPU_CMD_WRITE_BUFFER).size(), 8u) << "each was sent before it returned";
    cl.clReleaseEvent(event);
    for (cl_command_queue one : {other, unordered})
        cl.clReleaseCommandQueue(one);
    cl.clReleaseMemObject(buffer);
}

TEST_F(connection_test, a_small_blocking_write_with_a_wait_list_tells_of_its_failure) {
    cl_mem buffer = make_buffer(64);
    const int value = 1;
    cl_int error = CL_SUCCESS;
    cl_event gate = cl.clCreateUserEvent(context, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    std::thread sets([&] { EXPECT_EQ(cl.clSetUserEventStatus(gate, -7), CL_SUCCESS); });
    EXPECT_EQ(cl.clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, sizeof value, &value, 1, &gate, nullptr),
              CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    sets.join();
    cl.clReleaseEvent(gate);
    cl.clReleaseMemObject(buffer);
}

TEST_F(connection_test, what_was_left_lying_is_sent_without_a_flush) {
    cl_kernel kernel = make_kernel("none");
    ASSERT_EQ(launch(kernel), CL_SUCCESS);
    while (gpu->commands(VGPU_CMD_LAUNCH).empty())
        std::this_thread::yield();
    cl.clReleaseKernel(kernel);
}

TEST_F(connection_test, small_data_is_inlined_and_large_data_stays_in_place) {
    cl_mem buffer = make_buffer(1 << 20);
    std::vector<char> data(1 << 20, 'a');
    ASSERT_EQ(cl.clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, 100, data.data(), 0, nullptr, nullptr),
              CL_SUCCESS);
    ASSERT_EQ(
        cl.clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, data.size(), data.data(), 0, nullptr, nullptr),
        CL_SUCCESS);
    const auto writes = gpu->commands(VGPU_CMD_WRITE_BUFFER);
    ASSERT_EQ(writes.size(), 2u);
    EXPECT_EQ(writes[0].as<vgpu_cmd_transfer_buffer>().data.index, VGPU_PAYLOAD_INLINE);
    EXPECT_EQ(writes[1].as<vgpu_cmd_transfer_buffer>().data.index, 0u);
    EXPECT_LT(writes[1].bytes.size(), 200u);
    cl.clReleaseMemObject(buffer);
}

// The bytes of a small write go with its command, those of a large one are taken when the host gets to it.
TEST_F(connection_test, a_write_waits_for_what_reads_into_its_memory) {
    std::array<char, 64> data{};
    cl_mem from = make_buffer(data.size()), to = make_buffer(data.size());
    data.fill('a');
    ASSERT_EQ(cl.clEnqueueWriteBuffer(queue, from, CL_TRUE, 0, data.size(), data.data(), 0, nullptr, nullptr),
              CL_SUCCESS);
    const auto read = [&] {
        data.fill('-');
        ASSERT_EQ(
            cl.clEnqueueReadBuffer(queue, from, CL_FALSE, 0, data.size(), data.data(), 0, nullptr, nullptr),
            CL_SUCCESS);
    };
    const auto write = [&](const char* bytes, std::size_t count) {
        EXPECT_EQ(cl.clEnqueueWriteBuffer(queue, to, CL_FALSE, 0, count, bytes, 0, nullptr, nullptr),
                  CL_SUCCESS);
        cl.clFlush(queue);
        return gpu->commands(VGPU_CMD_WRITE_BUFFER).back();
    };
    gpu->hold_completions();
    read();
    const std::string other(10, 'x');
    EXPECT_EQ(write(other.data(), other.size()).as<vgpu_cmd_transfer_buffer>().data.index,
              VGPU_PAYLOAD_INLINE)
        << "nothing reads into that memory";
    recorded_command sent;
    std::thread waits([&] { sent = write(data.data() + 63, 1); });
    gpu->release_completions();
    waits.join();
    EXPECT_EQ(static_cast<char>(sent.bytes[sizeof(vgpu_cmd_transfer_buffer)]), 'a');

    // Only the program can end this read, so nobody may wait for it.
    cl_int error = CL_SUCCESS;
    cl_event unset = cl.clCreateUserEvent(context, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    gpu->hold_completions();
    read();
    EXPECT_NE(write(data.data(), 1).as<vgpu_cmd_transfer_buffer>().data.index, VGPU_PAYLOAD_INLINE);
    ASSERT_EQ(cl.clSetUserEventStatus(unset, CL_COMPLETE), CL_SUCCESS);
    gpu->release_completions();
    EXPECT_EQ(cl.clFinish(queue), CL_SUCCESS);
    cl.clReleaseEvent(unset);
    for (cl_mem memory : {from, to})
        cl.clReleaseMemObject(memory);
}

TEST_F(connection_test, a_transfer_larger_than_a_request_goes_in_pieces) {
    if (const auto old = connection::current(test_device::first_name))
        old->close();
    gpu = &test_device::fresh();
    gpu->limits.max_payload_bytes = 64 << 10;
    cl_int error = CL_SUCCESS;
    cl_context small = cl.clCreateContext(nullptr, 1, &device, nullptr, nullptr, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    for (const cl_command_queue_properties properties : {0, int{CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE}}) {
        cl_command_queue own = cl.clCreateCommandQueue(small, device, properties, &error);
        ASSERT_EQ(error, CL_SUCCESS);
        std::vector<int> data(100000), back(100000);
        for (std::size_t i = 0; i < data.size(); ++i)
            data[i] = static_cast<int>(i * 3);
        // Creation with content is in pieces too.
        cl_mem buffer = cl.clCreateBuffer(small, CL_MEM_COPY_HOST_PTR | CL_MEM_HOST_READ_ONLY,
                                          data.size() * 4, data.data(), &error);
        ASSERT_EQ(error, CL_SUCCESS);
        ASSERT_EQ(cl.clEnqueueReadBuffer(own, buffer, CL_TRUE, 0, back.size() * 4, back.data(), 0, nullptr,
                                         nullptr),
                  CL_SUCCESS);
        EXPECT_EQ(back, data);
        cl.clReleaseMemObject(buffer);
        cl.clReleaseCommandQueue(own);
    }
    cl.clReleaseContext(small);
}

TEST_F(connection_test, an_image_larger_than_a_request_goes_in_pieces) {
    if (const auto old = connection::current(test_device::first_name))
        old->close();
    gpu = &test_device::fresh();
    gpu->limits.max_payload_bytes = 20000; // pieces of 12288
    cl_int error = CL_SUCCESS;
    cl_context small = cl.clCreateContext(nullptr, 1, &device, nullptr, nullptr, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    struct shape {
        const char* name;
        cl_mem_object_type type;
        std::size_t width, height, depth, layers;
        std::size_t region[3];
        std::size_t row_pitch, slice_pitch; // of the content
    };
    const shape shapes[] = {
        {"rows", CL_MEM_OBJECT_IMAGE2D, 100, 300, 0, 0, {100, 300, 1}, 0, 0},
        {"rows with gaps", CL_MEM_OBJECT_IMAGE2D, 100, 300, 0, 0, {100, 300, 1}, 5000, 0},
        {"slices", CL_MEM_OBJECT_IMAGE3D, 50, 40, 9, 0, {50, 40, 9}, 0, 0},
        {"rows of slices", CL_MEM_OBJECT_IMAGE3D, 50, 90, 3, 0, {50, 90, 3}, 220, 220 * 91},
        {"layers", CL_MEM_OBJECT_IMAGE2D_ARRAY, 50, 90, 0, 3, {50, 90, 3}, 0, 0},
        {"layers that are rows", CL_MEM_OBJECT_IMAGE1D_ARRAY, 100, 0, 0, 200, {100, 200, 1}, 400, 800},
        {"parts of a row", CL_MEM_OBJECT_IMAGE1D, 20000, 0, 0, 0, {20000, 1, 1}, 0, 0},
        {"parts of rows", CL_MEM_OBJECT_IMAGE2D, 4000, 5, 0, 0, {4000, 5, 1}, 0, 0},
    };
    for (const cl_command_queue_properties properties : {0, int{CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE}})
        for (const shape& one : shapes) {
            SCOPED_TRACE(one.name);
            cl_command_queue own = cl.clCreateCommandQueue(small, device, properties, &error);
            ASSERT_EQ(error, CL_SUCCESS);
            const std::size_t row = one.row_pitch ? one.row_pitch : one.width * 4;
            const std::size_t slice =
                one.slice_pitch ? one.slice_pitch : row * std::max<std::size_t>(1, one.height);
            const bool layers_are_rows = one.type == CL_MEM_OBJECT_IMAGE1D_ARRAY;
            std::vector<int> content(
                (one.region[2] * one.region[1] * (layers_are_rows ? slice : row) + one.region[2] * slice) /
                4);
            for (std::size_t i = 0; i < content.size(); ++i)
                content[i] = static_cast<int>(i * 3 + 1);
            cl_image_desc description{};
            description.image_type = one.type;
            description.image_width = one.width;
            description.image_height = one.height;
            description.image_depth = one.depth;
            description.image_array_size = one.layers;
            description.image_row_pitch = one.row_pitch;
            description.image_slice_pitch = one.slice_pitch;
            const cl_image_format format{CL_RGBA, CL_UNSIGNED_INT8};
            gpu->forget();
            cl_mem image = cl.clCreateImage(small, CL_MEM_COPY_HOST_PTR | CL_MEM_HOST_READ_ONLY, &format,
                                            &description, content.data(), &error);
            ASSERT_EQ(error, CL_SUCCESS);
            EXPECT_GT(gpu->commands(VGPU_CMD_WRITE_IMAGE).size(), 1u);
            const std::size_t origin[3] = {0, 0, 0};
            std::vector<int> back(one.region[0] * one.region[1] * one.region[2], -1);
            gpu->forget();
            ASSERT_EQ(cl.clEnqueueReadImage(own, image, CL_TRUE, origin, one.region, 0, 0, back.data(), 0,
                                            nullptr, nullptr),
                      CL_SUCCESS);
            EXPECT_GT(gpu->commands(VGPU_CMD_READ_IMAGE).size(), 1u);
            std::size_t wrong = 0;
            for (std::size_t z = 0, i = 0; z < one.region[2]; ++z)
                for (std::size_t y = 0; y < one.region[1]; ++y)
                    for (std::size_t x = 0; x < one.region[0]; ++x, ++i)
                        wrong +=
                            back[i] != content[(z * slice + y * (layers_are_rows ? slice : row)) / 4 + x];
            EXPECT_EQ(wrong, 0u);
            // No request carries more than it may, and none of them is refused for it.
            for (const vgpu_opcode opcode : {VGPU_CMD_READ_IMAGE, VGPU_CMD_WRITE_IMAGE})
                for (const recorded_command& sent : gpu->commands(opcode))
                    EXPECT_LE(sent.as<vgpu_cmd_transfer_image>().data.bytes, 20000u);
            cl.clReleaseMemObject(image);
            cl.clReleaseCommandQueue(own);
        }
    cl.clReleaseContext(small);
}

TEST_F(connection_test, a_busy_device_is_asked_again) {
    gpu->refuse_requests(5);
    EXPECT_EQ(cl.clFinish(queue), CL_SUCCESS);
}

TEST_F(connection_test, one_bad_pointer_fails_one_command) {
    cl_mem buffer = make_buffer(1 << 20);
    std::vector<char> good(1 << 20, 'g'), bad(1 << 20, 'b');
    gpu->refuse_address(bad.data());
    cl_event events[3] = {};
    ASSERT_EQ(cl.clEnqueueWriteBuffer(queue, buffer, CL_FALSE, 0, 8192, good.data(), 0, nullptr, &events[0]),
              CL_SUCCESS);
    ASSERT_EQ(
        cl.clEnqueueWriteBuffer(queue, buffer, CL_FALSE, 8192, 8192, bad.data(), 0, nullptr, &events[1]),
        CL_SUCCESS);
    ASSERT_EQ(
        cl.clEnqueueWriteBuffer(queue, buffer, CL_FALSE, 16384, 8192, good.data(), 0, nullptr, &events[2]),
        CL_SUCCESS);
    cl.clFinish(queue);
    EXPECT_EQ(status_of(events[0]), CL_COMPLETE);
    EXPECT_LT(status_of(events[1]), 0);
    EXPECT_EQ(status_of(events[2]), CL_COMPLETE);
    for (cl_event one : events)
        cl.clReleaseEvent(one);
    cl.clReleaseMemObject(buffer);
}

TEST_F(connection_test, an_answer_longer_than_expected_is_asked_again) {
    cl_program program = make_program();
    std::size_t size = 0;
    ASSERT_EQ(cl.clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size), CL_SUCCESS);
    EXPECT_EQ(size, 5001u);
    std::string log(size, 0);
    ASSERT_EQ(cl.clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr),
              CL_SUCCESS);
    EXPECT_EQ(log[4999], 'x');
    cl.clReleaseProgram(program);
}

TEST_F(connection_test, an_error_of_a_queue_is_told_once) {
    const auto create = gpu->commands(); // forgotten in SetUp: the queue's id comes from a command
    ASSERT_EQ(cl.clFinish(queue), CL_SUCCESS);
    const std::uint64_t id = gpu->commands(VGPU_CMD_MARKER).at(0).as<vgpu_cmd_sync>().enqueue.queue;
    ASSERT_EQ(cl.clEnqueueBarrierWithWaitList(queue, 0, nullptr, nullptr), CL_SUCCESS);
    gpu->send_queue_error(id, CL_OUT_OF_RESOURCES);
    EXPECT_EQ(cl.clFinish(queue), CL_OUT_OF_RESOURCES);
    EXPECT_EQ(cl.clFinish(queue), CL_SUCCESS);
}

TEST_F(connection_test, a_lost_device_fails_what_waits_and_a_new_context_works) {
    gpu->hold_completions();
    cl_event waiting = nullptr;
    ASSERT_EQ(cl.clEnqueueMarkerWithWaitList(queue, 0, nullptr, &waiting), CL_SUCCESS);
    ASSERT_EQ(cl.clFlush(queue), CL_SUCCESS);
    gpu->lose();
    EXPECT_EQ(cl.clWaitForEvents(1, &waiting), CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    EXPECT_LT(status_of(waiting), 0);
    EXPECT_EQ(cl.clFinish(queue), CL_OUT_OF_RESOURCES);
    cl_int error = CL_SUCCESS;
    EXPECT_EQ(cl.clCreateBuffer(context, 0, 64, nullptr, &error), nullptr);
    EXPECT_EQ(error, CL_OUT_OF_RESOURCES);

    test_device::fresh();
    cl_context again = cl.clCreateContext(nullptr, 1, &device, nullptr, nullptr, &error);
    EXPECT_EQ(error, CL_SUCCESS);
    cl_mem buffer = cl.clCreateBuffer(again, 0, 64, nullptr, &error);
    EXPECT_EQ(error, CL_SUCCESS);
    cl.clReleaseMemObject(buffer);
    cl.clReleaseContext(again);
    cl.clReleaseEvent(waiting);
}

TEST_F(connection_test, a_child_of_a_fork_opens_its_own_device) {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "ThreadSanitizer lets no child of a process with threads start threads";
#endif
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        // What was made before belongs to the parent; what is made now works. The exit status says which step
        // failed.
        if (cl.clFinish(queue) != CL_OUT_OF_RESOURCES)
            _exit(1);
        test_device::fresh();
        cl_int error = CL_SUCCESS;
        cl_context own = cl.clCreateContext(nullptr, 1, &device, nullptr, nullptr, &error);
        if (error != CL_SUCCESS)
            _exit(2);
        cl_command_queue own_queue = cl.clCreateCommandQueue(own, device, 0, &error);
        if (error != CL_SUCCESS || cl.clFinish(own_queue) != CL_SUCCESS)
            _exit(3);
        cl.clReleaseCommandQueue(queue);
        cl.clReleaseContext(context);
        cl.clReleaseCommandQueue(own_queue);
        cl.clReleaseContext(own);
        _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << status;
    EXPECT_EQ(WEXITSTATUS(status), 0);
    EXPECT_EQ(cl.clFinish(queue), CL_SUCCESS); // and the parent goes on
}

TEST_F(connection_test, text_of_kernels_comes_out_on_stdout) {
    testing::internal::CaptureStdout();
    gpu->send_text("hello from a kernel\n");
    ASSERT_EQ(cl.clFinish(queue), CL_SUCCESS); // its completion comes after the text
    EXPECT_EQ(testing::internal::GetCapturedStdout(), "hello from a kernel\n");
}

} // namespace
} // namespace kagemusha::opencl
