// SPDX-License-Identifier: GPL-2.0-or-later
//
// Maps that read nothing, because the host view has what the buffer has (memory::keep_view()).
#include "test_fixture.hpp"

#include <functional>

namespace kagemusha::opencl {
namespace {

class kept_view_test : public driver_test {
protected:
    static constexpr std::size_t bytes = 8192;

    void SetUp() override {
        driver_test::SetUp();
        gpu->kernels["reads"] = {{CL_KERNEL_ARG_ADDRESS_GLOBAL, "int*", CL_KERNEL_ARG_TYPE_CONST}};
        gpu->kernels["reads_constant"] = {{CL_KERNEL_ARG_ADDRESS_CONSTANT, "int*"}};
        gpu->kernels["writes"] = {{CL_KERNEL_ARG_ADDRESS_GLOBAL, "int*"}};
    }

    // Maps and unmaps; whether that read the buffer.
    bool map_reads(cl_mem buffer, std::size_t of = bytes, cl_map_flags flags = CL_MAP_WRITE) {
        const std::size_t before = gpu->commands(VGPU_CMD_READ_BUFFER).size();
        cl_int error = CL_SUCCESS;
        auto* const view = static_cast<char*>(
            cl.clEnqueueMapBuffer(queue, buffer, CL_TRUE, flags, 0, of, 0, nullptr, nullptr, &error));
        EXPECT_EQ(error, CL_SUCCESS);
        EXPECT_EQ(view[1], shown) << "what the GPU has";
        if (flags != CL_MAP_READ)
            view[1] = ++shown;
        EXPECT_EQ(cl.clEnqueueUnmapMemObject(queue, buffer, view, 0, nullptr, nullptr), CL_SUCCESS);
        return gpu->commands(VGPU_CMD_READ_BUFFER).size() != before;
    }

    void launch_with(const char* name, cl_mem buffer) {
        cl_kernel kernel = make_kernel(name);
        EXPECT_EQ(cl.clSetKernelArg(kernel, 0, sizeof buffer, &buffer), CL_SUCCESS);
        EXPECT_EQ(launch(kernel), CL_SUCCESS);
        cl.clReleaseKernel(kernel);
    }

    char shown = 0; // the buffer's second byte
};

TEST_F(kept_view_test, what_only_maps_and_reading_kernels_use_is_read_once) {
    cl_mem buffer = make_buffer(bytes, CL_MEM_READ_ONLY), other = make_buffer(bytes);
    EXPECT_TRUE(map_reads(buffer));
    char byte = 0;
    for (int round = 0; round < 3; ++round) {
        launch_with("reads", buffer);
        launch_with("reads_constant", buffer);
        launch_with("writes", other);
        EXPECT_EQ(cl.clEnqueueReadBuffer(queue, buffer, CL_TRUE, 1, 1, &byte, 0, nullptr, nullptr),
                  CL_SUCCESS);
        EXPECT_EQ(byte, shown);
        EXPECT_FALSE(map_reads(buffer)) << round;
        EXPECT_FALSE(map_reads(buffer, 100, CL_MAP_READ)) << round;
        EXPECT_FALSE(map_reads(buffer, 100)) << round;
    }
    for (cl_mem one : {buffer, other})
        cl.clReleaseMemObject(one);
}

TEST_F(kept_view_test, what_may_have_changed_is_read_again) {
    cl_mem buffer = make_buffer(bytes, CL_MEM_READ_ONLY), other = make_buffer(bytes);
    const char value = 77;
    const auto fill_other = [&] {
        return cl.clEnqueueFillBuffer(queue, other, &value, 1, 0, bytes, 0, nullptr, nullptr);
    };
    const std::size_t origin[3] = {}, region[3] = {bytes, 1, 1};
    const std::vector<char> all(bytes, value);
    const std::function<cl_int()> changes[] = {
        [&] { return cl.clEnqueueFillBuffer(queue, buffer, &value, 1, 0, bytes, 0, nullptr, nullptr); },
        [&] { return cl.clEnqueueWriteBuffer(queue, buffer, CL_FALSE, 1, 1, &value, 0, nullptr, nullptr); },
        [&] {
            return cl.clEnqueueWriteBufferRect(queue, buffer, CL_FALSE, origin, origin, region, 0, 0, 0, 0,
                                               all.data(), 0, nullptr, nullptr);
        },
        [&] {
            fill_other();
            return cl.clEnqueueCopyBuffer(queue, other, buffer, 0, 0, bytes, 0, nullptr, nullptr);
        }};
    for (const auto& change : changes) {
        map_reads(buffer);
        EXPECT_FALSE(map_reads(buffer));
        ASSERT_EQ(change(), CL_SUCCESS);
        EXPECT_EQ(cl.clEnqueueReadBuffer(queue, buffer, CL_TRUE, 1, 1, &shown, 0, nullptr, nullptr),
                  CL_SUCCESS);
        EXPECT_TRUE(map_reads(buffer)) << &change - changes;
    }
    // A kernel that might write after all: its parameter does not say that it only reads, or nobody knows.
    EXPECT_FALSE(map_reads(buffer));
    launch_with("writes", buffer);
    EXPECT_TRUE(map_reads(buffer));
    gpu->argument_info_available = false;
    gpu->kernels["unknown"] = gpu->kernels["reads"];
    launch_with("unknown", buffer);
    EXPECT_TRUE(map_reads(buffer));
    for (cl_mem one : {buffer, other})
        cl.clReleaseMemObject(one);
}

TEST_F(kept_view_test, a_part_or_an_unread_view_is_not_kept) {
    cl_mem buffer = make_buffer(bytes, CL_MEM_READ_ONLY);
    EXPECT_TRUE(map_reads(buffer, 100));
    EXPECT_TRUE(map_reads(buffer, 100));
    EXPECT_TRUE(map_reads(buffer, bytes, CL_MAP_READ));
    EXPECT_FALSE(map_reads(buffer, 100));
    cl.clReleaseMemObject(buffer);
}

TEST_F(kept_view_test, others_may_change_it) {
    // Kernels may write it.
    cl_mem writable = make_buffer(bytes);
    EXPECT_TRUE(map_reads(writable));
    EXPECT_TRUE(map_reads(writable));
    // The view is the program's own memory.
    shown = 0;
    std::vector<char> own(bytes);
    cl_mem shared = make_buffer(bytes, CL_MEM_READ_ONLY | CL_MEM_USE_HOST_PTR, own.data());
    EXPECT_TRUE(map_reads(shared));
    EXPECT_TRUE(map_reads(shared));
    // A part of it has a name of its own.
    shown = 0;
    cl_mem divided = make_buffer(bytes, CL_MEM_READ_ONLY);
    EXPECT_TRUE(map_reads(divided));
    EXPECT_FALSE(map_reads(divided));
    const cl_buffer_region half{0, bytes / 2};
    cl_int error = CL_SUCCESS;
    cl_mem part = cl.clCreateSubBuffer(divided, 0, CL_BUFFER_CREATE_TYPE_REGION, &half, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    EXPECT_TRUE(map_reads(divided));
    EXPECT_TRUE(map_reads(divided));
    // Other queues are in no order with this one.
    shown = 0;
    cl_mem buffer = make_buffer(bytes, CL_MEM_READ_ONLY);
    EXPECT_TRUE(map_reads(buffer));
    EXPECT_FALSE(map_reads(buffer));
    cl_command_queue second = cl.clCreateCommandQueue(context, device, 0, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    EXPECT_TRUE(map_reads(buffer));
    EXPECT_TRUE(map_reads(buffer));
    cl.clReleaseCommandQueue(second);
    for (cl_mem one : {writable, shared, part, divided, buffer})
        cl.clReleaseMemObject(one);
}

} // namespace
} // namespace kagemusha::opencl
