// SPDX-License-Identifier: GPL-2.0-or-later
//
// A context and a queue over a fresh test device, used through the dispatch table as a program's calls are.
#pragma once

#include "connection.hpp"
#include "test_transport.hpp"

#include <gtest/gtest.h>

namespace kagemusha::opencl {

class driver_test : public testing::Test {
protected:
    void SetUp() override {
        if (const auto old = connection::current(test_device::first_name))
            old->close();
        gpu = &test_device::fresh();
        gpu->kernels["copy"] = {{CL_KERNEL_ARG_ADDRESS_GLOBAL, "int*"},
                                {CL_KERNEL_ARG_ADDRESS_GLOBAL, "int*"},
                                {CL_KERNEL_ARG_ADDRESS_PRIVATE, "int"},
                                {CL_KERNEL_ARG_ADDRESS_LOCAL, "float*"}};
        gpu->kernels["none"] = {};
        ASSERT_EQ(cl.clGetPlatformIDs(1, &platform, nullptr), CL_SUCCESS);
        ASSERT_EQ(cl.clGetDeviceIDs(platform, CL_DEVICE_TYPE_GPU, 1, &device, nullptr), CL_SUCCESS);
        cl_int error = CL_SUCCESS;
        context = cl.clCreateContext(nullptr, 1, &device, nullptr, nullptr, &error);
        ASSERT_EQ(error, CL_SUCCESS);
        queue = cl.clCreateCommandQueue(context, device, CL_QUEUE_PROFILING_ENABLE, &error);
        ASSERT_EQ(error, CL_SUCCESS);
        gpu->forget();
    }

    void TearDown() override {
        gpu->release_completions();
        cl.clReleaseCommandQueue(queue);
        cl.clReleaseContext(context);
    }

    cl_mem make_buffer(std::size_t bytes, cl_mem_flags flags = CL_MEM_READ_WRITE, void* host = nullptr) {
        cl_int error = CL_SUCCESS;
        cl_mem made = cl.clCreateBuffer(context, flags, bytes, host, &error);
        EXPECT_EQ(error, CL_SUCCESS);
        return made;
    }

    cl_program make_program() {
        const char* text = "source";
        cl_int error = CL_SUCCESS;
        cl_program made = cl.clCreateProgramWithSource(context, 1, &text, nullptr, &error);
        EXPECT_EQ(error, CL_SUCCESS);
        EXPECT_EQ(cl.clBuildProgram(made, 0, nullptr, "", nullptr, nullptr), CL_SUCCESS);
        return made;
    }

    cl_kernel make_kernel(const char* name) {
        cl_program program = make_program();
        cl_int error = CL_SUCCESS;
        cl_kernel made = cl.clCreateKernel(program, name, &error);
        EXPECT_EQ(error, CL_SUCCESS);
        cl.clReleaseProgram(program);
        return made;
    }

    cl_int launch(cl_kernel kernel, cl_event* event = nullptr) {
        const std::size_t one = 1;
        return cl.clEnqueueNDRangeKernel(queue, kernel, 1, nullptr, &one, nullptr, 0, nullptr, event);
    }

    cl_int status_of(cl_event event) {
        cl_int status = -999;
        EXPECT_EQ(
            cl.clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr),
            CL_SUCCESS);
        return status;
    }

    std::size_t destroyed(vgpu_object_kind kind) {
        std::size_t count = 0;
        for (const recorded_command& one : gpu->commands(VGPU_CMD_DESTROY))
            count += one.as<vgpu_cmd_destroy>().kind == static_cast<__u32>(kind);
        return count;
    }

    const cl_icd_dispatch& cl = dispatch_table;
    test_device* gpu = nullptr;
    cl_platform_id platform = nullptr;
    cl_device_id device = nullptr;
    cl_context context = nullptr;
    cl_command_queue queue = nullptr;
};

} // namespace kagemusha::opencl
