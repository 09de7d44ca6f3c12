// SPDX-License-Identifier: GPL-2.0-or-later
//
// Buffers with CL_MEM_ALLOC_HOST_PTR are mapped in the VRAM window: who sends what the program stored there,
// and where to.
#include "test_fixture.hpp"

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
    cl_int error = CL_SUCCESS;
    cl_command_queue unordered =
        cl.clCreateCommandQueue(context, device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    gpu->forget();

    ASSERT_EQ(launch(kernel), CL_SUCCESS);
    const std::size_t one = 1;
    ASSERT_EQ(cl.clEnqueueNDRangeKernel(unordered, kernel, 1, nullptr, &one, nullptr, 0, nullptr, nullptr),
              CL_SUCCESS);
    ASSERT_EQ(launch(kernel), CL_SUCCESS);
    ASSERT_EQ(cl.clFinish(queue), CL_SUCCESS);
    ASSERT_EQ(cl.clFinish(unordered), CL_SUCCESS);

    const auto launches = gpu->commands(VGPU_CMD_LAUNCH);
    ASSERT_EQ(launches.size(), 3u);
    const auto first = launches[0].as<vgpu_cmd_launch>().enqueue.queue;
    const auto second = launches[1].as<vgpu_cmd_launch>().enqueue.queue;
    EXPECT_NE(launches[0].request, launches[1].request); // one queue for each request
    EXPECT_NE(launches[1].request, launches[2].request);
    auto targets = gpu->flush_targets();
    const flush_target there = targets[launches[0].request];
    const flush_target elsewhere = targets[launches[1].request];
    EXPECT_EQ(there.queue, first);
    EXPECT_FALSE(there.out_of_order);
    EXPECT_NE(there.context, 0u);
    EXPECT_EQ(elsewhere.queue, second);
    EXPECT_TRUE(elsewhere.out_of_order);
    EXPECT_EQ(elsewhere.context, there.context);
    EXPECT_EQ(targets[launches[2].request].queue, first);

    unmap(buffer, place);
    cl.clReleaseCommandQueue(unordered);
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
