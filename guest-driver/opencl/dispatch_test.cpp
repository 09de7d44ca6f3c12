// SPDX-License-Identifier: GPL-2.0-or-later
//
// The dispatch table is complete, what is not there says so, and no handle of a wrong kind gets through.
#include "extension_functions.hpp"
#include "test_fixture.hpp"

namespace kagemusha::opencl {
namespace {

using dispatch = driver_test;

TEST_F(dispatch, every_slot_is_filled) {
    constexpr std::size_t slots = sizeof(cl_icd_dispatch) / sizeof(void*);
    static_assert(slots >= 149);
    void* addresses[slots];
    std::memcpy(addresses, &dispatch_table, sizeof addresses);
    for (std::size_t i = 0; i < slots; ++i)
        EXPECT_NE(addresses[i], nullptr) << "slot " << i;
}

TEST_F(dispatch, objects_begin_with_the_table) {
    for (void* handle : {static_cast<void*>(platform), static_cast<void*>(device),
                         static_cast<void*>(context), static_cast<void*>(queue)})
        EXPECT_EQ(*static_cast<const cl_icd_dispatch**>(handle), &dispatch_table);
}

TEST_F(dispatch, what_is_not_there_returns_an_error) {
    cl_int error = CL_SUCCESS;
    cl_mem buffer = make_buffer(64);
    EXPECT_EQ(cl.clSVMAlloc(context, CL_MEM_READ_WRITE, 64, 0), nullptr);
    cl.clSVMFree(context, nullptr);
    EXPECT_EQ(cl.clEnqueueSVMFree(queue, 0, nullptr, nullptr, nullptr, 0, nullptr, nullptr),
              CL_INVALID_OPERATION);
    EXPECT_EQ(cl.clEnqueueSVMMemcpy(queue, CL_TRUE, nullptr, nullptr, 0, 0, nullptr, nullptr),
              CL_INVALID_OPERATION);
    EXPECT_EQ(cl.clEnqueueSVMMemFill(queue, nullptr, nullptr, 0, 0, 0, nullptr, nullptr),
              CL_INVALID_OPERATION);
    EXPECT_EQ(cl.clEnqueueSVMMap(queue, CL_TRUE, 0, nullptr, 0, 0, nullptr, nullptr), CL_INVALID_OPERATION);
    EXPECT_EQ(cl.clEnqueueSVMUnmap(queue, nullptr, 0, nullptr, nullptr), CL_INVALID_OPERATION);
    EXPECT_EQ(cl.clEnqueueSVMMigrateMem(queue, 0, nullptr, nullptr, 0, 0, nullptr, nullptr),
              CL_INVALID_OPERATION);
    EXPECT_EQ(cl.clCreatePipe(context, 0, 4, 4, nullptr, &error), nullptr);
    EXPECT_EQ(error, CL_INVALID_OPERATION);
    EXPECT_EQ(cl.clGetPipeInfo(buffer, 0, 0, nullptr, nullptr), CL_INVALID_MEM_OBJECT);
    EXPECT_EQ(cl.clEnqueueNativeKernel(queue, nullptr, nullptr, 0, 0, nullptr, nullptr, 0, nullptr, nullptr),
              CL_INVALID_OPERATION);
    EXPECT_EQ(cl.clSetCommandQueueProperty(queue, 0, CL_TRUE, nullptr), CL_INVALID_OPERATION);
    EXPECT_EQ(cl.clSetDefaultDeviceCommandQueue(context, device, queue), CL_INVALID_OPERATION);
    EXPECT_EQ(cl.clCreateSubDevices(device, nullptr, 0, nullptr, nullptr), CL_INVALID_VALUE);
    EXPECT_EQ(cl.clCreateSubDevicesEXT(device, nullptr, 0, nullptr, nullptr), CL_INVALID_VALUE);
    error = CL_SUCCESS;
    EXPECT_EQ(cl.clCreateFromGLBuffer(context, 0, 1, &error), nullptr);
    EXPECT_EQ(error, CL_INVALID_OPERATION);
    EXPECT_EQ(cl.clCreateFromGLTexture(context, 0, 0, 0, 1, nullptr), nullptr);
    EXPECT_EQ(cl.clCreateFromGLTexture2D(context, 0, 0, 0, 1, nullptr), nullptr);
    EXPECT_EQ(cl.clCreateFromGLTexture3D(context, 0, 0, 0, 1, nullptr), nullptr);
    EXPECT_EQ(cl.clCreateFromGLRenderbuffer(context, 0, 1, nullptr), nullptr);
    EXPECT_EQ(cl.clGetGLObjectInfo(buffer, nullptr, nullptr), CL_INVALID_GL_OBJECT);
    EXPECT_EQ(cl.clGetGLTextureInfo(buffer, 0, 0, nullptr, nullptr), CL_INVALID_GL_OBJECT);
    EXPECT_EQ(cl.clEnqueueAcquireGLObjects(queue, 0, nullptr, 0, nullptr, nullptr), CL_INVALID_OPERATION);
    EXPECT_EQ(cl.clEnqueueReleaseGLObjects(queue, 0, nullptr, 0, nullptr, nullptr), CL_INVALID_OPERATION);
    EXPECT_EQ(cl.clGetGLContextInfoKHR(nullptr, 0, 0, nullptr, nullptr), CL_INVALID_OPERATION);
    EXPECT_EQ(cl.clCreateEventFromGLsyncKHR(context, nullptr, nullptr), nullptr);
    EXPECT_EQ(cl.clCreateFromEGLImageKHR(context, nullptr, nullptr, 0, nullptr, nullptr), nullptr);
    EXPECT_EQ(cl.clEnqueueAcquireEGLObjectsKHR(queue, 0, nullptr, 0, nullptr, nullptr), CL_INVALID_OPERATION);
    EXPECT_EQ(cl.clEnqueueReleaseEGLObjectsKHR(queue, 0, nullptr, 0, nullptr, nullptr), CL_INVALID_OPERATION);
    EXPECT_EQ(cl.clCreateEventFromEGLSyncKHR(context, nullptr, nullptr, nullptr), nullptr);
    // Direct3D: untyped slots; the ones without arguments that matter all share one function.
    EXPECT_EQ(reinterpret_cast<cl_int (*)()>(cl.clGetDeviceIDsFromD3D10KHR)(), CL_INVALID_OPERATION);
    EXPECT_EQ(reinterpret_cast<cl_int (*)()>(cl.clEnqueueAcquireDX9MediaSurfacesKHR)(), CL_INVALID_OPERATION);
    using create_buffer = cl_mem (*)(cl_context, cl_mem_flags, void*, cl_int*);
    error = CL_SUCCESS;
    EXPECT_EQ(reinterpret_cast<create_buffer>(cl.clCreateFromD3D11BufferKHR)(context, 0, nullptr, &error),
              nullptr);
    EXPECT_EQ(error, CL_INVALID_OPERATION);
    cl.clReleaseMemObject(buffer);
}

TEST_F(dispatch, wrong_handles_are_refused) {
    int anything[64] = {};
    const auto garbage = reinterpret_cast<cl_mem>(anything);
    EXPECT_EQ(cl.clRetainMemObject(nullptr), CL_INVALID_MEM_OBJECT);
    EXPECT_EQ(cl.clRetainMemObject(garbage), CL_INVALID_MEM_OBJECT);
    EXPECT_EQ(cl.clRetainMemObject(reinterpret_cast<cl_mem>(queue)), CL_INVALID_MEM_OBJECT);
    EXPECT_EQ(cl.clRetainContext(reinterpret_cast<cl_context>(queue)), CL_INVALID_CONTEXT);
    EXPECT_EQ(cl.clFinish(reinterpret_cast<cl_command_queue>(context)), CL_INVALID_COMMAND_QUEUE);
    EXPECT_EQ(cl.clRetainMemObject(reinterpret_cast<cl_mem>(reinterpret_cast<char*>(queue) + 8)),
              CL_INVALID_MEM_OBJECT);
    cl_mem buffer = make_buffer(64);
    EXPECT_EQ(cl.clReleaseMemObject(buffer), CL_SUCCESS);
    EXPECT_EQ(cl.clReleaseMemObject(buffer), CL_INVALID_MEM_OBJECT); // released: not a live object any more
}

TEST_F(dispatch, functions_by_name) {
    EXPECT_NE(cl.clGetExtensionFunctionAddress("clIcdGetPlatformIDsKHR"), nullptr);
    EXPECT_NE(cl.clGetExtensionFunctionAddressForPlatform(platform, "clCreateCommandQueueWithPropertiesKHR"),
              nullptr);
    EXPECT_EQ(cl.clGetExtensionFunctionAddress("clNoSuchFunctionKHR"), nullptr);
    EXPECT_NE(cl.clGetExtensionFunctionAddress("clGetKernelSuggestedLocalWorkSizeKHR"), nullptr);
    EXPECT_EQ(cl.clGetExtensionFunctionAddress(nullptr), nullptr);
}

TEST_F(dispatch, an_extension_with_functions_needs_a_device_that_knows_its_commands) {
    EXPECT_TRUE(has_functions_of("cl_khr_suggested_local_work_size", ~std::uint64_t{0}));
    EXPECT_FALSE(has_functions_of("cl_khr_suggested_local_work_size", 0));
    EXPECT_FALSE(has_functions_of("cl_khr_gl_sharing", ~std::uint64_t{0}));
}

TEST_F(dispatch, suggested_group_size) {
    const auto ask = reinterpret_cast<clGetKernelSuggestedLocalWorkSizeKHR_fn>(
        cl.clGetExtensionFunctionAddressForPlatform(platform, "clGetKernelSuggestedLocalWorkSizeKHR"));
    ASSERT_NE(ask, nullptr);
    gpu->kernels["k"] = {{CL_KERNEL_ARG_ADDRESS_PRIVATE, "int"}};
    cl_kernel kernel = make_kernel("k");
    const std::size_t global[2] = {64, 8}, empty[2] = {64, 0}, offset[2] = {1, SIZE_MAX};
    std::size_t local[3] = {77, 77, 77};
    EXPECT_EQ(ask(queue, kernel, 2, nullptr, global, local), CL_INVALID_KERNEL_ARGS);
    const cl_int value = 7;
    ASSERT_EQ(cl.clSetKernelArg(kernel, 0, sizeof value, &value), CL_SUCCESS);
    gpu->forget();
    ASSERT_EQ(ask(queue, kernel, 2, nullptr, global, local), CL_SUCCESS);
    EXPECT_EQ(local[0], 32u);
    EXPECT_EQ(local[1], 2u);
    EXPECT_EQ(local[2], 77u); // not a dimension of this launch
    const auto sent = gpu->commands(VGPU_CMD_SUGGESTED_GROUP_SIZE);
    ASSERT_EQ(sent.size(), 1u);
    const auto command = sent[0].as<vgpu_cmd_suggested_group_size>();
    EXPECT_EQ(command.argument_count, 1u);
    EXPECT_EQ(command.global[1], 8u);
    EXPECT_EQ(command.global[2], 1u);

    EXPECT_EQ(ask(nullptr, kernel, 2, nullptr, global, local), CL_INVALID_COMMAND_QUEUE);
    EXPECT_EQ(ask(queue, nullptr, 2, nullptr, global, local), CL_INVALID_KERNEL);
    EXPECT_EQ(ask(queue, kernel, 4, nullptr, global, local), CL_INVALID_WORK_DIMENSION);
    EXPECT_EQ(ask(queue, kernel, 2, nullptr, nullptr, local), CL_INVALID_GLOBAL_WORK_SIZE);
    EXPECT_EQ(ask(queue, kernel, 2, nullptr, empty, local), CL_INVALID_GLOBAL_WORK_SIZE);
    EXPECT_EQ(ask(queue, kernel, 2, offset, global, local), CL_INVALID_GLOBAL_OFFSET);
    EXPECT_EQ(ask(queue, kernel, 2, nullptr, global, nullptr), CL_INVALID_VALUE);
    gpu->tells_commands = false; // as after a takeover by an older host: nothing that it does not know
    gpu->forget();
    EXPECT_EQ(ask(queue, kernel, 2, nullptr, global, local), CL_INVALID_OPERATION);
    EXPECT_TRUE(gpu->commands(VGPU_CMD_SUGGESTED_GROUP_SIZE).empty());
    cl.clReleaseKernel(kernel);
}

TEST_F(dispatch, device_tells_only_what_is_forwarded) {
    char extensions[256];
    ASSERT_EQ(cl.clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS, sizeof extensions, extensions, nullptr),
              CL_SUCCESS);
    EXPECT_NE(std::strstr(extensions, "cl_khr_fp64"), nullptr);
    EXPECT_NE(std::strstr(extensions, "cl_khr_suggested_local_work_size"), nullptr);
    EXPECT_EQ(std::strstr(extensions, "cl_khr_gl_sharing"), nullptr);
    EXPECT_EQ(std::strstr(extensions, "cl_khr_command_buffer"), nullptr);
    cl_device_svm_capabilities shared = 77;
    ASSERT_EQ(cl.clGetDeviceInfo(device, CL_DEVICE_SVM_CAPABILITIES, sizeof shared, &shared, nullptr),
              CL_SUCCESS);
    EXPECT_EQ(shared, 0u);
    std::size_t size = 0;
    ASSERT_EQ(cl.clGetDeviceInfo(device, CL_DEVICE_VERSION, 0, nullptr, &size), CL_SUCCESS);
    EXPECT_EQ(size, sizeof "OpenCL 3.0 test");
    char small[4];
    EXPECT_EQ(cl.clGetDeviceInfo(device, CL_DEVICE_VERSION, sizeof small, small, nullptr), CL_INVALID_VALUE);
}

} // namespace
} // namespace kagemusha::opencl
