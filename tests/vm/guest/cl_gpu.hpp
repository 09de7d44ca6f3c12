// SPDX-License-Identifier: GPL-2.0-or-later
//
// What cl_job's jobs have in common: the first GPU with a context and a queue, and calls that end the program
// with a line when they fail. One thread.
#pragma once

#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

using clock_type = std::chrono::steady_clock;

[[noreturn]] inline void fail(const char* what, cl_int error = 0) {
    std::printf("FAILED: %s (OpenCL error %d)\n", what, error);
    std::fflush(stdout);
    std::exit(1);
}

inline void need(cl_int error, const char* what) {
    if (error != CL_SUCCESS)
        fail(what, error);
}

// A kernel `busy` that takes long: so many steps of a generator of random numbers for each value.
inline const char* const busy_source = R"(
kernel void busy(global uint* values, uint rounds)
{
    uint x = values[get_global_id(0)];
    for (uint i = 0; i < rounds; ++i)
        x = x * 1664525u + 1013904223u;
    values[get_global_id(0)] = x;
}
)";

struct gpu {
    cl_platform_id platform{};
    cl_device_id device{};
    cl_context context{};
    cl_command_queue queue{};

    gpu() {
        cl_int error;
        need(clGetPlatformIDs(1, &platform, nullptr), "clGetPlatformIDs");
        need(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, nullptr), "clGetDeviceIDs");
        context = clCreateContext(nullptr, 1, &device, nullptr, nullptr, &error);
        need(error, "clCreateContext");
        queue = clCreateCommandQueueWithProperties(context, device, nullptr, &error);
        need(error, "clCreateCommandQueueWithProperties");
    }

    cl_program build(const char* text) const {
        cl_int error;
        cl_program program = clCreateProgramWithSource(context, 1, &text, nullptr, &error);
        need(error, "clCreateProgramWithSource");
        need(clBuildProgram(program, 1, &device, "", nullptr, nullptr), "clBuildProgram");
        return program;
    }

    cl_kernel kernel(cl_program program, const char* name) const {
        cl_int error;
        cl_kernel made = clCreateKernel(program, name, &error);
        need(error, name);
        return made;
    }

    cl_mem buffer(std::size_t bytes) const {
        cl_int error;
        cl_mem made = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, nullptr, &error);
        need(error, "clCreateBuffer");
        return made;
    }
};

template <typename T>
void argument(cl_kernel kernel, cl_uint index, const T& value) {
    need(clSetKernelArg(kernel, index, sizeof value, &value), "clSetKernelArg");
}

// What lasts for some time may be ended early by a file that somebody makes.
using deadline = std::chrono::time_point<clock_type, std::chrono::duration<double>>;
inline bool may_go_on(deadline end, const char* stop_file) {
    return clock_type::now() < end && (!stop_file || ::access(stop_file, F_OK) != 0);
}
