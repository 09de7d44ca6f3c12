// SPDX-License-Identifier: GPL-2.0-or-later
// opencl_loop: see device_loop.hpp.
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <algorithm>
#include <cerrno>
#include <type_traits>

#include "loop/core/mailbox.hpp"
#include "loop/host/device_loop.hpp"
#include "loop_device_source.hpp" // made by CMake of device/

namespace kagemusha::loop {
namespace {

void need(cl_int error, const char* what) {
    if (error != CL_SUCCESS)
        throw failure(EIO, std::string(what) + " failed: OpenCL error " + std::to_string(error));
}

cl_device_id first_device() {
    cl_platform_id platforms[16];
    cl_uint count = 0;
    need(clGetPlatformIDs(16, platforms, &count), "clGetPlatformIDs");
    for (cl_uint i = 0; i < std::min(count, 16u); ++i) {
        cl_device_id device;
        if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, 1, &device, nullptr) == CL_SUCCESS)
            return device;
    }
    throw failure(ENODEV, "OpenCL has no device here: is a driver installed (clinfo -l)?");
}

class opencl_loop final : public device_loop {
public:
    explicit opencl_loop(const kagemusha_loop_options& options);
    ~opencl_loop() override {
        if (queue_)
            clFinish(queue_.get()); // no callback comes after it
    }

private:
    struct released {
        void operator()(cl_context c) const { clReleaseContext(c); }
        void operator()(cl_command_queue q) const { clReleaseCommandQueue(q); }
        void operator()(cl_program p) const { clReleaseProgram(p); }
        void operator()(cl_kernel k) const { clReleaseKernel(k); }
        void operator()(cl_mem m) const { clReleaseMemObject(m); }
        void operator()(cl_event e) const { clReleaseEvent(e); }
    };
    template <typename T>
    using owned = std::unique_ptr<std::remove_pointer_t<T>, released>;

    void build(const kagemusha_loop_options& options);
    owned<cl_mem> buffer(cl_mem_flags flags, std::size_t bytes);
    void enqueue(std::uint32_t callbacks) override;
    std::uint64_t wait() override;
    static void CL_CALLBACK on_end(cl_event, cl_int, void* to) { report_end(to); }

    std::size_t items_ = 1;
    cl_device_id device_ = nullptr;
    owned<cl_context> context_;
    owned<cl_command_queue> queue_;
    owned<cl_program> program_;
    owned<cl_kernel> kernel_;
    std::uint32_t token_argument_ = 0;
    owned<cl_mem> inbox_, outbox_, state_;
    owned<cl_event> launch_, read_;
};

opencl_loop::opencl_loop(const kagemusha_loop_options& options) : device_loop(options) {
    cl_int error = CL_SUCCESS;
    device_ = options.device != nullptr ? static_cast<cl_device_id>(options.device) : first_device();
    if (options.context != nullptr) {
        context_.reset(static_cast<cl_context>(options.context));
        need(clRetainContext(context_.get()), "clRetainContext");
    } else {
        context_.reset(clCreateContext(nullptr, 1, &device_, nullptr, nullptr, &error));
        need(error, "clCreateContext");
    }
    queue_.reset(clCreateCommandQueue(context_.get(), device_, CL_QUEUE_PROFILING_ENABLE, &error));
    need(error, "clCreateCommandQueue");
    cl_device_type type = 0;
    need(clGetDeviceInfo(device_, CL_DEVICE_TYPE, sizeof type, &type, nullptr), "clGetDeviceInfo");
    items_ = options.items != 0 ? options.items : (type & CL_DEVICE_TYPE_CPU) != 0 ? 1 : 64;
    build(options);
    inbox_ = buffer(CL_MEM_READ_ONLY, inbox_bytes(lanes_));
    outbox_ = buffer(CL_MEM_READ_WRITE, outbox_bytes_.size());
    state_ = buffer(CL_MEM_READ_WRITE, state_bytes());
    const cl_ulong bytes = lane_state_bytes_, zero = 0;
    need(clEnqueueFillBuffer(queue_.get(), state_.get(), &zero, sizeof zero, 0, state_bytes(), 0, nullptr,
                             nullptr),
         "clEnqueueFillBuffer");
    cl_uint i = 0;
    for (const cl_mem memory : {inbox_.get(), outbox_.get(), state_.get()})
        need(clSetKernelArg(kernel_.get(), i++, sizeof memory, &memory), "clSetKernelArg");
    need(clSetKernelArg(kernel_.get(), i++, sizeof bytes, &bytes), "clSetKernelArg");
    token_argument_ = i;
}

void opencl_loop::build(const kagemusha_loop_options& options) {
    const char* sources[] = {device_source, options.source};
    cl_int error = CL_SUCCESS;
    program_.reset(clCreateProgramWithSource(context_.get(), 2, sources, nullptr, &error));
    need(error, "clCreateProgramWithSource");
    std::string text = options.build_options != nullptr ? options.build_options : "";
    if ((options.flags & KAGEMUSHA_LOOP_NEVER_LOOKS) != 0)
        text += " -DKAGEMUSHA_LOOP_NEVER_LOOKS -w"; // a condition that is always true
    error = clBuildProgram(program_.get(), 1, &device_, text.c_str(), nullptr, nullptr);
    if (error == CL_BUILD_PROGRAM_FAILURE) {
        std::string log(16384, '\0');
        std::size_t bytes = 0;
        if (clGetProgramBuildInfo(program_.get(), device_, CL_PROGRAM_BUILD_LOG, log.size(), log.data(),
                                  &bytes) != CL_SUCCESS)
            bytes = 0;
        log.resize(bytes);
        throw failure(EINVAL, "the program does not compile:\n" + log);
    }
    need(error, "clBuildProgram");
    kernel_.reset(clCreateKernel(program_.get(), "kagemusha_loop", &error));
    need(error, "clCreateKernel");
}

opencl_loop::owned<cl_mem> opencl_loop::buffer(cl_mem_flags flags, std::size_t bytes) {
    cl_int error = CL_SUCCESS;
    owned<cl_mem> made(clCreateBuffer(context_.get(), flags, bytes, nullptr, &error));
    need(error, "clCreateBuffer");
    return made;
}

void opencl_loop::enqueue(std::uint32_t callbacks) {
    const cl_uint token = callbacks;
    need(clSetKernelArg(kernel_.get(), token_argument_, sizeof token, &token), "clSetKernelArg");
    need(clEnqueueWriteBuffer(queue_.get(), inbox_.get(), CL_FALSE, 0, inbox_bytes_.size(),
                              inbox_bytes_.data(), 0, nullptr, nullptr),
         "clEnqueueWriteBuffer");
    const std::size_t all = lanes_ * items_;
    cl_event launch = nullptr, read = nullptr;
    need(clEnqueueNDRangeKernel(queue_.get(), kernel_.get(), 1, nullptr, &all, &items_, 0, nullptr, &launch),
         "clEnqueueNDRangeKernel");
    launch_.reset(launch);
    need(clEnqueueReadBuffer(queue_.get(), outbox_.get(), CL_FALSE, 0, outbox_bytes_.size(),
                             outbox_bytes_.data(), 0, nullptr, &read),
         "clEnqueueReadBuffer");
    read_.reset(read);
    need(clSetEventCallback(read, CL_COMPLETE, on_end, ended_pointer()), "clSetEventCallback");
    need(clFlush(queue_.get()), "clFlush");
}

std::uint64_t opencl_loop::wait() {
    cl_event both[] = {launch_.get(), read_.get()};
    need(clWaitForEvents(2, both), "the device loop");
    cl_ulong begin = 0, end = 0;
    if (clGetEventProfilingInfo(launch_.get(), CL_PROFILING_COMMAND_START, sizeof begin, &begin, nullptr) !=
            CL_SUCCESS ||
        clGetEventProfilingInfo(launch_.get(), CL_PROFILING_COMMAND_END, sizeof end, &end, nullptr) !=
            CL_SUCCESS)
        begin = end = 0;
    launch_.reset();
    read_.reset();
    return end > begin ? end - begin : 0;
}

} // namespace

std::unique_ptr<device_loop> make_opencl_loop(const kagemusha_loop_options& options) {
    return std::make_unique<opencl_loop>(options);
}

} // namespace kagemusha::loop
