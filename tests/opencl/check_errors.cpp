// SPDX-License-Identifier: GPL-2.0-or-later
//
// Queries and their sizes, and calls that must fail with the standard's error.
#include "check.hpp"

#include <cstdio>

#include <cstring>

namespace check {

void queries(const setup& s) {
    std::size_t size = 0;
    CHECK_CL(clGetPlatformInfo(s.platform, CL_PLATFORM_NAME, 0, nullptr, &size));
    std::string name(size, 0);
    CHECK_CL(clGetPlatformInfo(s.platform, CL_PLATFORM_NAME, size, name.data(), nullptr));
    CHECK(size > 1 && std::strlen(name.c_str()) == size - 1);
    CHECK_ERROR(CL_INVALID_VALUE,
                clGetPlatformInfo(s.platform, CL_PLATFORM_NAME, size - 1, name.data(), nullptr));
    CHECK(text_of(s, CL_DEVICE_VERSION).rfind("OpenCL ", 0) == 0);
    CHECK(device_number<cl_uint>(s, CL_DEVICE_MAX_COMPUTE_UNITS) > 0);
    CHECK(device_number<cl_ulong>(s, CL_DEVICE_GLOBAL_MEM_SIZE) > 0);
    CHECK(device_number<std::size_t>(s, CL_DEVICE_MAX_WORK_GROUP_SIZE) > 0);
    CHECK(device_number<cl_platform_id>(s, CL_DEVICE_PLATFORM) == s.platform);
    CHECK_ERROR(CL_INVALID_VALUE, clGetDeviceInfo(s.device, 0x7777, 0, nullptr, &size));
    cl_uint count = 0;
    CHECK_CL(clGetDeviceIDs(s.platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count));
    CHECK(count >= 1);
    CHECK_CL(clRetainDevice(s.device));
    CHECK_CL(clReleaseDevice(s.device));
    cl_device_id device = nullptr;
    CHECK_CL(clGetContextInfo(s.context, CL_CONTEXT_DEVICES, sizeof device, &device, nullptr));
    CHECK(device == s.device);
    cl_uint references = 0;
    CHECK_CL(clRetainContext(s.context));
    CHECK_CL(
        clGetContextInfo(s.context, CL_CONTEXT_REFERENCE_COUNT, sizeof references, &references, nullptr));
    CHECK(references >= 2);
    CHECK_CL(clReleaseContext(s.context));
    cl_int error = CL_SUCCESS;
    const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM,
                                                reinterpret_cast<cl_context_properties>(s.platform), 0};
    cl_context from_type = clCreateContextFromType(properties, CL_DEVICE_TYPE_ALL, nullptr, nullptr, &error);
    CHECK_CL(error);
    CHECK_CL(clReleaseContext(from_type));
    // Without a platform the choice is the implementation's, and it may have none (NVIDIA's).
    from_type = clCreateContextFromType(nullptr, CL_DEVICE_TYPE_ALL, nullptr, nullptr, &error);
    CHECK(from_type ? error == CL_SUCCESS : error == CL_INVALID_PLATFORM);
    CHECK(!from_type || clReleaseContext(from_type) == CL_SUCCESS);
}

void errors(const setup& s) {
    cl_int error = CL_SUCCESS;
    std::vector<char> memory(64);
    CHECK(!clCreateContext(nullptr, 0, nullptr, nullptr, nullptr, &error) && error == CL_INVALID_VALUE);
    CHECK(!clCreateBuffer(nullptr, CL_MEM_READ_WRITE, 64, nullptr, &error) && error == CL_INVALID_CONTEXT);
    CHECK(!clCreateBuffer(s.context, CL_MEM_READ_WRITE, 0, nullptr, &error) &&
          error == CL_INVALID_BUFFER_SIZE);
    CHECK(!clCreateBuffer(s.context, CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY, 64, nullptr, &error) &&
          error == CL_INVALID_VALUE);
    CHECK(!clCreateBuffer(s.context, CL_MEM_COPY_HOST_PTR, 64, nullptr, &error) &&
          error == CL_INVALID_HOST_PTR);
    CHECK(!clCreateBuffer(s.context, CL_MEM_READ_WRITE, 64, memory.data(), &error) &&
          error == CL_INVALID_HOST_PTR);
    // Beyond the device's limit CL_INVALID_BUFFER_SIZE may be given, or what an allocation fails with.
    cl_mem giant = clCreateBuffer(s.context, CL_MEM_READ_WRITE, std::size_t{1} << 62, nullptr, &error);
    CHECK(giant ? error == CL_SUCCESS : error < 0);
    std::printf("# a buffer of 4 EiB: %s, %d\n", giant ? "made" : "refused", error);
    CHECK_BUT_FOR(s, "NVIDIA",
                  !giant && (error == CL_INVALID_BUFFER_SIZE || error == CL_OUT_OF_RESOURCES ||
                             error == CL_MEM_OBJECT_ALLOCATION_FAILURE || error == CL_OUT_OF_HOST_MEMORY));
    CHECK(!giant || clReleaseMemObject(giant) == CL_SUCCESS);
    CHECK(!clCreateCommandQueue(s.context, nullptr, 0, &error) && error == CL_INVALID_DEVICE);
    CHECK(!clCreateProgramWithSource(s.context, 0, nullptr, nullptr, &error) && error == CL_INVALID_VALUE);

    cl_mem buffer = clCreateBuffer(s.context, CL_MEM_READ_WRITE, 64, nullptr, &error);
    CHECK_CL(error);
    CHECK_ERROR(CL_INVALID_VALUE,
                clEnqueueReadBuffer(s.queue, buffer, CL_TRUE, 32, 64, memory.data(), 0, nullptr, nullptr));
    CHECK_ERROR(CL_INVALID_VALUE,
                clEnqueueReadBuffer(s.queue, buffer, CL_TRUE, 0, 64, nullptr, 0, nullptr, nullptr));
    CHECK_ERROR(CL_INVALID_MEM_OBJECT,
                clEnqueueReadBuffer(s.queue, nullptr, CL_TRUE, 0, 64, memory.data(), 0, nullptr, nullptr));
    CHECK_ERROR(CL_INVALID_EVENT_WAIT_LIST,
                clEnqueueReadBuffer(s.queue, buffer, CL_TRUE, 0, 64, memory.data(), 1, nullptr, nullptr));
    const cl_event nothing = nullptr;
    // NVIDIA: CL_INVALID_EVENT.
    const cl_int null_event =
        clEnqueueReadBuffer(s.queue, buffer, CL_TRUE, 0, 64, memory.data(), 1, &nothing, nullptr);
    CHECK(null_event < 0);
    CHECK_BUT_FOR(s, "NVIDIA", null_event == CL_INVALID_EVENT_WAIT_LIST);
    CHECK_ERROR(CL_INVALID_VALUE, clWaitForEvents(0, nullptr));

    cl_mem write_only_by_host = clCreateBuffer(s.context, CL_MEM_HOST_WRITE_ONLY, 64, nullptr, &error);
    CHECK_ERROR(CL_INVALID_OPERATION, clEnqueueReadBuffer(s.queue, write_only_by_host, CL_TRUE, 0, 64,
                                                          memory.data(), 0, nullptr, nullptr));
    CHECK(!clEnqueueMapBuffer(s.queue, write_only_by_host, CL_TRUE, CL_MAP_READ, 0, 64, 0, nullptr, nullptr,
                              &error) &&
          error == CL_INVALID_OPERATION);
    CHECK_CL(clReleaseMemObject(write_only_by_host));

    cl_context other = clCreateContext(nullptr, 1, &s.device, nullptr, nullptr, &error);
    CHECK_CL(error);
    cl_mem foreign = clCreateBuffer(other, CL_MEM_READ_WRITE, 64, nullptr, &error);
    CHECK_ERROR(CL_INVALID_CONTEXT,
                clEnqueueReadBuffer(s.queue, foreign, CL_TRUE, 0, 64, memory.data(), 0, nullptr, nullptr));
    CHECK_CL(clReleaseMemObject(foreign));
    CHECK_CL(clReleaseContext(other));

    cl_program program = build(s, "kernel void nothing(global int* out) { out[0] = 1; }");
    if (program) {
        cl_kernel kernel = kernel_of(program, "nothing");
        CHECK_CL(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
        const std::size_t four[4] = {4, 4, 4, 4}, three = 3, huge = std::size_t{1} << 40;
        CHECK_ERROR(CL_INVALID_WORK_DIMENSION,
                    clEnqueueNDRangeKernel(s.queue, kernel, 0, nullptr, four, nullptr, 0, nullptr, nullptr));
        CHECK_ERROR(CL_INVALID_WORK_DIMENSION,
                    clEnqueueNDRangeKernel(s.queue, kernel, 4, nullptr, four, nullptr, 0, nullptr, nullptr));
        CHECK_ERROR(CL_INVALID_WORK_GROUP_SIZE,
                    clEnqueueNDRangeKernel(s.queue, kernel, 1, nullptr, four, &three, 0, nullptr, nullptr));
        error = clEnqueueNDRangeKernel(s.queue, kernel, 1, nullptr, &huge, &huge, 0, nullptr, nullptr);
        CHECK(error == CL_INVALID_WORK_ITEM_SIZE || error == CL_INVALID_WORK_GROUP_SIZE);
        CHECK_ERROR(CL_INVALID_ARG_SIZE, clSetKernelArg(kernel, 0, 4, &buffer));
        CHECK_CL(clReleaseKernel(kernel));
        CHECK_CL(clReleaseProgram(program));
    }
    CHECK_CL(clReleaseMemObject(buffer));
}

} // namespace check
