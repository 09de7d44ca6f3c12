// SPDX-License-Identifier: GPL-2.0-or-later
// opencl_api: the host's ICD loader, opened at run time, so that a host without OpenCL gets a sentence
// instead of a program that does not start, and so that one binary runs with any vendor's loader.
#pragma once

#include <CL/cl.h>

#include <string>
#include <utility>

namespace kagemusha::gpu {

// Functions of OpenCL 1.2: every loader has them.
#define KAGEMUSHA_OPENCL_REQUIRED(X)                                                                         \
    X(clGetPlatformIDs)                                                                                      \
    X(clGetPlatformInfo)                                                                                     \
    X(clGetDeviceIDs)                                                                                        \
    X(clGetDeviceInfo)                                                                                       \
    X(clCreateContext)                                                                                       \
    X(clReleaseContext)                                                                                      \
    X(clCreateCommandQueue)                                                                                  \
    X(clReleaseCommandQueue)                                                                                 \
    X(clFlush)                                                                                               \
    X(clFinish)                                                                                              \
    X(clCreateBuffer)                                                                                        \
    X(clCreateSubBuffer)                                                                                     \
    X(clCreateImage)                                                                                         \
    X(clReleaseMemObject)                                                                                    \
    X(clRetainMemObject)                                                                                     \
    X(clGetSupportedImageFormats)                                                                            \
    X(clGetMemObjectInfo)                                                                                    \
    X(clGetImageInfo)                                                                                        \
    X(clCreateSampler)                                                                                       \
    X(clReleaseSampler)                                                                                      \
    X(clCreateProgramWithSource)                                                                             \
    X(clCreateProgramWithBinary)                                                                             \
    X(clCreateProgramWithBuiltInKernels)                                                                     \
    X(clReleaseProgram)                                                                                      \
    X(clBuildProgram)                                                                                        \
    X(clCompileProgram)                                                                                      \
    X(clLinkProgram)                                                                                         \
    X(clGetProgramInfo)                                                                                      \
    X(clGetProgramBuildInfo)                                                                                 \
    X(clCreateKernel)                                                                                        \
    X(clReleaseKernel)                                                                                       \
    X(clSetKernelArg)                                                                                        \
    X(clGetKernelInfo)                                                                                       \
    X(clGetKernelArgInfo)                                                                                    \
    X(clGetKernelWorkGroupInfo)                                                                              \
    X(clCreateUserEvent)                                                                                     \
    X(clSetUserEventStatus)                                                                                  \
    X(clSetEventCallback)                                                                                    \
    X(clReleaseEvent)                                                                                        \
    X(clRetainEvent)                                                                                         \
    X(clGetEventInfo)                                                                                        \
    X(clGetEventProfilingInfo)                                                                               \
    X(clEnqueueReadBuffer)                                                                                   \
    X(clEnqueueReadBufferRect)                                                                               \
    X(clEnqueueWriteBuffer)                                                                                  \
    X(clEnqueueWriteBufferRect)                                                                              \
    X(clEnqueueFillBuffer)                                                                                   \
    X(clEnqueueCopyBuffer)                                                                                   \
    X(clEnqueueCopyBufferRect)                                                                               \
    X(clEnqueueMapBuffer)                                                                                    \
    X(clEnqueueUnmapMemObject)                                                                               \
    X(clEnqueueReadImage)                                                                                    \
    X(clEnqueueWriteImage)                                                                                   \
    X(clEnqueueFillImage)                                                                                    \
    X(clEnqueueCopyImage)                                                                                    \
    X(clEnqueueCopyImageToBuffer)                                                                            \
    X(clEnqueueCopyBufferToImage)                                                                            \
    X(clEnqueueMigrateMemObjects)                                                                            \
    X(clEnqueueNDRangeKernel)                                                                                \
    X(clEnqueueNativeKernel)                                                                                 \
    X(clEnqueueMarkerWithWaitList)                                                                           \
    X(clEnqueueBarrierWithWaitList)                                                                          \
    X(clGetExtensionFunctionAddressForPlatform)

// Functions of OpenCL 2.1 and 2.2: nullptr where the loader is older. Whether the platform behind it has them
// is told by its version (opencl_device.hpp).
#define KAGEMUSHA_OPENCL_OPTIONAL(X)                                                                         \
    X(clCreateProgramWithIL)                                                                                 \
    X(clSetProgramSpecializationConstant)                                                                    \
    X(clGetKernelSubGroupInfo)                                                                               \
    X(clGetDeviceAndHostTimer)

struct opencl_api {
#define KAGEMUSHA_OPENCL_MEMBER(name) decltype(&::name) name = nullptr;
    KAGEMUSHA_OPENCL_REQUIRED(KAGEMUSHA_OPENCL_MEMBER)
    KAGEMUSHA_OPENCL_OPTIONAL(KAGEMUSHA_OPENCL_MEMBER)
#undef KAGEMUSHA_OPENCL_MEMBER

    // Opened once and never closed: vendors' libraries do not survive that. nullptr with a sentence.
    static const opencl_api* get(std::string& error);
};

// Owns one reference. The loader is never closed, so the pointer to the table stays valid.
template <class Handle, cl_int (CL_API_CALL* opencl_api::*Release)(Handle)>
class opencl_handle {
public:
    opencl_handle() = default;
    opencl_handle(const opencl_api& api, Handle handle) : api_(&api), handle_(handle) {}
    opencl_handle(opencl_handle&& other) noexcept
        : api_(other.api_), handle_(std::exchange(other.handle_, nullptr)) {}
    opencl_handle& operator=(opencl_handle&& other) noexcept {
        std::swap(api_, other.api_);
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~opencl_handle() {
        if (handle_)
            (api_->*Release)(handle_);
    }
    Handle get() const { return handle_; }
    explicit operator bool() const { return handle_ != nullptr; }

private:
    const opencl_api* api_ = nullptr;
    Handle handle_ = nullptr;
};

using context_handle = opencl_handle<cl_context, &opencl_api::clReleaseContext>;
using queue_handle = opencl_handle<cl_command_queue, &opencl_api::clReleaseCommandQueue>;
using memory_handle = opencl_handle<cl_mem, &opencl_api::clReleaseMemObject>;
using sampler_handle = opencl_handle<cl_sampler, &opencl_api::clReleaseSampler>;
using program_handle = opencl_handle<cl_program, &opencl_api::clReleaseProgram>;
using kernel_handle = opencl_handle<cl_kernel, &opencl_api::clReleaseKernel>;
using event_handle = opencl_handle<cl_event, &opencl_api::clReleaseEvent>;

} // namespace kagemusha::gpu
