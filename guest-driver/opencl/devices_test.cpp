// SPDX-License-Identifier: GPL-2.0-or-later
//
// Several devices of one platform: each has a connection, a device on the host and contexts of its own.
#include "test_fixture.hpp"

namespace kagemusha::opencl {
namespace {

class devices_test : public driver_test {
protected:
    void SetUp() override {
        driver_test::SetUp();
        cl_device_id both[2] = {};
        ASSERT_EQ(cl.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 2, both, nullptr), CL_SUCCESS);
        ASSERT_EQ(both[0], device);
        other = both[1];
    }

    cl_device_id other = nullptr;
};

TEST_F(devices_test, all_are_listed_and_the_first_is_the_default) {
    cl_uint count = 0;
    EXPECT_EQ(cl.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count), CL_SUCCESS);
    EXPECT_EQ(count, 2u);
    EXPECT_EQ(cl.clGetDeviceIDs(platform, CL_DEVICE_TYPE_GPU, 0, nullptr, &count), CL_SUCCESS);
    EXPECT_EQ(count, 2u);
    cl_device_id list[4] = {};
    EXPECT_EQ(cl.clGetDeviceIDs(platform, CL_DEVICE_TYPE_DEFAULT, 4, list, &count), CL_SUCCESS);
    EXPECT_EQ(count, 1u);
    EXPECT_EQ(list[0], device);
    EXPECT_EQ(list[1], nullptr);
    EXPECT_EQ(cl.clGetDeviceIDs(platform, CL_DEVICE_TYPE_CPU, 4, list, &count), CL_DEVICE_NOT_FOUND);
    EXPECT_EQ(count, 0u);
    EXPECT_NE(other, device);
    for (cl_device_id one : {device, other}) {
        cl_platform_id of = nullptr;
        EXPECT_EQ(cl.clGetDeviceInfo(one, CL_DEVICE_PLATFORM, sizeof of, &of, nullptr), CL_SUCCESS);
        EXPECT_EQ(of, platform);
    }
}

TEST_F(devices_test, what_is_made_on_one_goes_to_that_one) {
    test_device& second = test_device::second();
    second.forget();
    cl_int error = CL_SUCCESS;
    cl_context there = cl.clCreateContext(nullptr, 1, &other, nullptr, nullptr, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    cl_command_queue queue_there = cl.clCreateCommandQueue(there, other, 0, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    int number = 7, back = 0;
    cl_mem buffer =
        cl.clCreateBuffer(there, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof number, &number, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    EXPECT_EQ(
        cl.clEnqueueReadBuffer(queue_there, buffer, CL_TRUE, 0, sizeof back, &back, 0, nullptr, nullptr),
        CL_SUCCESS);
    EXPECT_EQ(back, 7);
    EXPECT_EQ(second.commands(VGPU_CMD_READ_BUFFER).size(), 1u);
    EXPECT_TRUE(gpu->commands().empty()); // since SetUp, the first one was not touched

    // Nothing crosses over.
    EXPECT_EQ(cl.clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof back, &back, 0, nullptr, nullptr),
              CL_INVALID_CONTEXT);
    EXPECT_EQ(cl.clCreateCommandQueue(there, device, 0, &error), nullptr);
    EXPECT_EQ(error, CL_INVALID_DEVICE);
    cl_event event = nullptr;
    ASSERT_EQ(cl.clEnqueueMarkerWithWaitList(queue_there, 0, nullptr, &event), CL_SUCCESS);
    EXPECT_EQ(cl.clEnqueueMarkerWithWaitList(queue, 1, &event, nullptr), CL_INVALID_CONTEXT);
    EXPECT_EQ(cl.clWaitForEvents(1, &event), CL_SUCCESS);
    cl.clReleaseEvent(event);
    cl.clReleaseMemObject(buffer);
    cl.clReleaseCommandQueue(queue_there);
    cl.clReleaseContext(there);
}

TEST_F(devices_test, a_context_is_one_devices) {
    cl_int error = CL_SUCCESS;
    const cl_device_id both[2] = {device, other}, twice[2] = {other, other};
    EXPECT_EQ(cl.clCreateContext(nullptr, 2, both, nullptr, nullptr, &error), nullptr);
    EXPECT_EQ(error, CL_INVALID_DEVICE);
    cl_context one = cl.clCreateContext(nullptr, 2, twice, nullptr, nullptr, &error);
    EXPECT_EQ(error, CL_SUCCESS);
    cl_device_id in = nullptr;
    EXPECT_EQ(cl.clGetContextInfo(one, CL_CONTEXT_DEVICES, sizeof in, &in, nullptr), CL_SUCCESS);
    EXPECT_EQ(in, other);
    cl.clReleaseContext(one);
    // The standard lets this one choose among the devices of the type.
    one = cl.clCreateContextFromType(nullptr, CL_DEVICE_TYPE_GPU, nullptr, nullptr, &error);
    EXPECT_EQ(error, CL_SUCCESS);
    EXPECT_EQ(cl.clGetContextInfo(one, CL_CONTEXT_DEVICES, sizeof in, &in, nullptr), CL_SUCCESS);
    EXPECT_EQ(in, device);
    cl.clReleaseContext(one);
}

TEST_F(devices_test, losing_one_leaves_the_other) {
    cl_int error = CL_SUCCESS;
    cl_context there = cl.clCreateContext(nullptr, 1, &other, nullptr, nullptr, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    cl_command_queue queue_there = cl.clCreateCommandQueue(there, other, 0, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    gpu->lose();
    EXPECT_NE(cl.clFinish(queue), CL_SUCCESS);
    EXPECT_EQ(cl.clFinish(queue_there), CL_SUCCESS);
    cl.clReleaseCommandQueue(queue_there);
    cl.clReleaseContext(there);
}

} // namespace
} // namespace kagemusha::opencl
