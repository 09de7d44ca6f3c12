// SPDX-License-Identifier: GPL-2.0-or-later
//
// The dispatch table is complete, what is not there says so, and no handle of a wrong kind gets through.
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
    EXPECT_EQ(cl.clGetExtensionFunctionAddress(nullptr), nullptr);
}

TEST_F(dispatch, device_tells_only_what_is_forwarded) {
    char extensions[256];
    ASSERT_EQ(cl.clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS, sizeof extensions, extensions, nullptr),
              CL_SUCCESS);
    EXPECT_NE(std::strstr(extensions, "cl_khr_fp64"), nullptr);
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
