// SPDX-License-Identifier: GPL-2.0-or-later
//
// Buffers with CL_MEM_ALLOC_HOST_PTR are mapped in the VRAM window: who sends what the program stored there,
// and where to.
#include "test_fixture.hpp"

#include <algorithm>

namespace kagemusha::opencl {
namespace {

class window_test : public driver_test {
protected:
    char* map(cl_mem buffer, cl_map_flags flags, std::size_t offset, std::size_t bytes) {
        cl_int error = CL_SUCCESS;
        void* const place =
            cl.clEnqueueMapBuffer(queue, buffer, CL_TRUE, flags, offset, bytes, 0, nullptr, nullptr, &error);
        EXPECT_EQ(error, CL_SUCCESS);
        return static_cast<char*>(place);
    }

    void unmap(cl_mem buffer, void* place) {
        EXPECT_EQ(cl.clEnqueueUnmapMemObject(queue, buffer, place, 0, nullptr, nullptr), CL_SUCCESS);
        EXPECT_EQ(cl.clFinish(queue), CL_SUCCESS);
    }

    std::size_t count(vgpu_opcode opcode) { return gpu->commands(opcode).size(); }
};

constexpr cl_mem_flags in_window = CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR;

TEST_F(window_test, traced_memory_is_read_at_a_map_and_never_written_back) {
    gpu->offer_window(true);
    cl_mem buffer = make_buffer(8192, in_window);
    cl_mem other = make_buffer(8192);
    const char old = 'o';
    ASSERT_EQ(cl.clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 4096, 1, &old, 0, nullptr, nullptr),
              CL_SUCCESS);
    cl.clFinish(queue);
    gpu->forget();

    char* const place = map(buffer, CL_MAP_READ | CL_MAP_WRITE, 4096, 100);
    ASSERT_EQ(gpu->windows().size(), 1u);
    EXPECT_EQ(reinterpret_cast<const std::byte*>(place), gpu->windows().begin()->first + 4096);
    EXPECT_EQ(place[0], 'o');
    EXPECT_EQ(count(VGPU_CMD_READ_BUFFER), 1u);
    unmap(buffer, place);
    EXPECT_EQ(count(VGPU_CMD_WRITE_BUFFER), 0u);
    EXPECT_TRUE(gpu->windows().begin()->second.discarded.empty());

    unmap(other, map(other, CL_MAP_WRITE, 0, 8192));
    EXPECT_EQ(gpu->windows().size(), 1u); // not asked for
    EXPECT_EQ(count(VGPU_CMD_WRITE_BUFFER), 1u);
    cl.clReleaseMemObject(other);
    cl.clReleaseMemObject(buffer);
}

TEST_F(window_test, requests_with_commands_say_where_stores_go) {
    gpu->offer_window(true);
    cl_mem buffer = make_buffer(8192, in_window);
    char* const place = map(buffer, CL_MAP_WRITE, 0, 8192);
    cl_kernel kernel = make_kernel("none");
    gpu->forget();

    ASSERT_EQ(launch(kernel), CL_SUCCESS);
    ASSERT_EQ(cl.clFinish(queue), CL_SUCCESS);
    const auto launches = gpu->commands(VGPU_CMD_LAUNCH);
    ASSERT_EQ(launches.size(), 1u);
    auto targets = gpu->flush_targets();
    const flush_target there = targets[launches[0].request];
    EXPECT_EQ(there.queue, launches[0].as<vgpu_cmd_launch>().enqueue.queue);
    EXPECT_FALSE(there.out_of_order);
    EXPECT_NE(there.context, 0u);
    EXPECT_TRUE(gpu->flushes().empty());

    unmap(buffer, place);
    cl.clReleaseKernel(kernel);
    cl.clReleaseMemObject(buffer);
}

TEST_F(window_test, of_an_unordered_queue_too) {
    gpu->offer_window(true);
    cl_int error = CL_SUCCESS;
    cl_context own = cl.clCreateContext(nullptr, 1, &device, nullptr, nullptr, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    cl_command_queue unordered =
        cl.clCreateCommandQueue(own, device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    cl_mem buffer = cl.clCreateBuffer(own, in_window, 8192, nullptr, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    void* const place =
        cl.clEnqueueMapBuffer(unordered, buffer, CL_TRUE, CL_MAP_WRITE, 0, 8192, 0, nullptr, nullptr, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    gpu->forget();
    ASSERT_EQ(cl.clEnqueueMarkerWithWaitList(unordered, 0, nullptr, nullptr), CL_SUCCESS);
    ASSERT_EQ(cl.clFlush(unordered), CL_SUCCESS);
    const auto markers = gpu->commands(VGPU_CMD_MARKER);
    ASSERT_EQ(markers.size(), 1u);
    const flush_target there = gpu->flush_targets()[markers[0].request];
    EXPECT_EQ(there.queue, markers[0].as<vgpu_cmd_sync>().enqueue.queue);
    EXPECT_TRUE(there.out_of_order);
    ASSERT_EQ(cl.clEnqueueUnmapMemObject(unordered, buffer, place, 0, nullptr, nullptr), CL_SUCCESS);
    cl.clReleaseMemObject(buffer);
    cl.clReleaseCommandQueue(unordered);
    cl.clReleaseContext(own);
}

// Of two queues none is good for what is stored: commands of the other one would not wait for it.
TEST_F(window_test, with_several_queues_stores_have_one_of_their_own) {
    gpu->offer_window(true);
    cl_mem buffer = make_buffer(8192, in_window);
    char* const place = map(buffer, CL_MAP_WRITE, 0, 8192);
    cl_kernel kernel = make_kernel("none");
    gpu->forget();
    cl_int error = CL_SUCCESS;
    cl_command_queue other = cl.clCreateCommandQueue(context, device, 0, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    const auto made = gpu->commands(VGPU_CMD_CREATE_QUEUE);
    ASSERT_EQ(made.size(), 2u);
    const std::uint64_t second = made[0].as<vgpu_cmd_create_queue>().id;
    const std::uint64_t stores = made[1].as<vgpu_cmd_create_queue>().id;
    gpu->forget();

    const auto launch_on = [&](cl_command_queue where) {
        const std::size_t one = 1;
        ASSERT_EQ(cl.clEnqueueNDRangeKernel(where, kernel, 1, nullptr, &one, nullptr, 0, nullptr, nullptr),
                  CL_SUCCESS);
        ASSERT_EQ(cl.clFinish(where), CL_SUCCESS);
    };
    gpu->set_dirty_bytes(100);
    launch_on(other);
    launch_on(other);
    launch_on(queue);

    const auto flushes = gpu->flushes();
    const auto launches = gpu->commands(VGPU_CMD_LAUNCH);
    const auto barriers = gpu->commands(VGPU_CMD_BARRIER);
    ASSERT_EQ(launches.size(), 3u);
    ASSERT_GE(flushes.size(), 3u);
    EXPECT_EQ(flushes[0].target.queue, stores);
    EXPECT_LT(flushes[0].requests, launches[0].request);
    // one marker behind the bytes, and each queue waits for it once
    std::uint64_t flushed = 0;
    for (const auto& one : gpu->commands(VGPU_CMD_MARKER))
        if (const auto marker = one.as<vgpu_cmd_sync>().enqueue; marker.queue == stores) {
            EXPECT_EQ(flushed, 0u);
            flushed = marker.event;
            EXPECT_LT(one.request, launches[0].request);
        }
    ASSERT_NE(flushed, 0u);
    ASSERT_EQ(barriers.size(), 2u);
    const auto check = [&](std::size_t i, std::uint64_t where, std::size_t before) {
        const auto barrier = barriers[i].as<vgpu_cmd_sync>().enqueue;
        std::uint64_t awaited = 0;
        ASSERT_EQ(barriers[i].bytes.size(), sizeof(vgpu_cmd_sync) + sizeof awaited);
        std::memcpy(&awaited, barriers[i].bytes.data() + sizeof(vgpu_cmd_sync), sizeof awaited);
        EXPECT_EQ(barrier.queue, where);
        EXPECT_EQ(barrier.wait_count, 1u);
        EXPECT_EQ(awaited, flushed);
        EXPECT_LT(barriers[i].request, launches[before].request);
    };
    check(0, second, 0);
    check(1, launches[2].as<vgpu_cmd_launch>().enqueue.queue, 2);
    EXPECT_GT(barriers[1].request, launches[1].request);
    EXPECT_EQ(gpu->flush_targets()[launches[0].request].queue, 0u); // not flushed twice

    // the next flush gives the event back
    gpu->set_dirty_bytes(1);
    launch_on(queue);
    launch_on(queue);
    const auto destroys = gpu->commands(VGPU_CMD_DESTROY);
    EXPECT_EQ(
        std::count_if(destroys.begin(), destroys.end(),
                      [&](const auto& one) { return one.template as<vgpu_cmd_destroy>().id == flushed; }),
        1);
    unmap(buffer, place);
    cl.clReleaseCommandQueue(other);
    cl.clReleaseKernel(kernel);
    cl.clReleaseMemObject(buffer);
}

TEST_F(window_test, a_region_whose_content_is_not_wanted_is_sent_whole) {
    gpu->offer_window(true);
    cl_mem buffer = make_buffer(8192, in_window);
    gpu->forget();
    char* const place = map(buffer, CL_MAP_WRITE_INVALIDATE_REGION, 1000, 50);
    EXPECT_EQ(count(VGPU_CMD_READ_BUFFER), 0u);
    const auto discarded = gpu->windows().begin()->second.discarded;
    ASSERT_EQ(discarded.size(), 1u);
    EXPECT_EQ(discarded[0], std::pair(std::uint64_t{1000}, std::uint64_t{50}));
    unmap(buffer, place);
    cl.clReleaseMemObject(buffer);
}

TEST_F(window_test, a_sub_buffer_shows_its_buffers_window) {
    gpu->offer_window(true);
    cl_mem buffer = make_buffer(8192, in_window);
    const cl_buffer_region region{4096, 4096};
    cl_int error = CL_SUCCESS;
    cl_mem part = cl.clCreateSubBuffer(buffer, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    char* const place = map(part, CL_MAP_WRITE_INVALIDATE_REGION, 8, 8);
    ASSERT_EQ(gpu->windows().size(), 1u);
    EXPECT_EQ(reinterpret_cast<const std::byte*>(place), gpu->windows().begin()->first + 4104);
    unmap(part, place);
    EXPECT_EQ(count(VGPU_CMD_WRITE_BUFFER), 0u);
    cl.clReleaseMemObject(part);
    cl.clReleaseMemObject(buffer);
}

TEST_F(window_test, what_the_device_read_into_a_mapping_is_written_back) {
    gpu->offer_window(true);
    cl_mem buffer = make_buffer(8192, in_window);
    cl_mem other = make_buffer(8192);
    const std::vector<char> text(100, 't'); // small enough to go inside a command;
    ASSERT_EQ(
        cl.clEnqueueWriteBuffer(queue, other, CL_TRUE, 0, text.size(), text.data(), 0, nullptr, nullptr),
        CL_SUCCESS);
    char* const place = map(buffer, CL_MAP_WRITE, 0, text.size());
    // nobody waits for the transfer, so the unmap must be in its order
    ASSERT_EQ(cl.clEnqueueReadBuffer(queue, other, CL_FALSE, 0, text.size(), place, 0, nullptr, nullptr),
              CL_SUCCESS);
    unmap(buffer, place);
    std::vector<char> found(text.size());
    ASSERT_EQ(
        cl.clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, found.size(), found.data(), 0, nullptr, nullptr),
        CL_SUCCESS);
    EXPECT_EQ(found, text);
    cl.clReleaseMemObject(other);
    cl.clReleaseMemObject(buffer);
}

TEST_F(window_test, untraced_memory_is_written_back) {
    gpu->offer_window(false);
    cl_mem buffer = make_buffer(8192, in_window);
    char* const place = map(buffer, CL_MAP_WRITE_INVALIDATE_REGION, 0, 8192);
    EXPECT_EQ(gpu->windows().size(), 1u);
    gpu->forget();
    unmap(buffer, place);
    EXPECT_EQ(count(VGPU_CMD_WRITE_BUFFER), 1u);
    cl.clReleaseMemObject(buffer);
}

TEST_F(window_test, the_window_is_given_back_before_the_buffer_goes) {
    gpu->offer_window(true);
    cl_mem buffer = make_buffer(8192, in_window);
    unmap(buffer, map(buffer, CL_MAP_WRITE, 0, 8192));
    gpu->forget();
    ASSERT_EQ(cl.clReleaseMemObject(buffer), CL_SUCCESS);
    EXPECT_TRUE(gpu->windows().empty());
    EXPECT_EQ(destroyed(VGPU_OBJECT_MEMORY), 0u); // goes with the next request
    ASSERT_EQ(cl.clFinish(queue), CL_SUCCESS);
    EXPECT_EQ(destroyed(VGPU_OBJECT_MEMORY), 1u);
}

} // namespace
} // namespace kagemusha::opencl
