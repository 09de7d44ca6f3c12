// SPDX-License-Identifier: GPL-2.0-or-later
#include "loop/host/device_loop.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "loop/core/mailbox.hpp"
#include "loop_device_source.hpp" // made by CMake of device/

namespace kagemusha::loop {
namespace {

void need(cl_int error, const char* what) {
    if (error != CL_SUCCESS)
        throw failure(EIO, std::string(what) + " failed: OpenCL error " + std::to_string(error));
}

std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
}

// By a thread of OpenCL.
void CL_CALLBACK report_end(cl_event, cl_int, void* to) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written =
        write(static_cast<int>(reinterpret_cast<std::intptr_t>(to)), &one, sizeof one);
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

} // namespace

device_loop::device_loop(const kagemusha_loop_options& options) : lanes_(options.lanes) {
    ended_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ended_ < 0)
        throw failure(errno, "no eventfd");
    try {
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
        const std::size_t state = lanes_ * (sizeof(loop_lane_state) + options.state_bytes);
        inbox_ = buffer(CL_MEM_READ_ONLY, inbox_bytes(lanes_));
        outbox_ = buffer(CL_MEM_READ_WRITE, std::size_t{lanes_} * LOOP_OUTBOX_BYTES);
        state_ = buffer(CL_MEM_READ_WRITE, state);
        outbox_bytes_.resize(std::size_t{lanes_} * LOOP_OUTBOX_BYTES);
        const cl_ulong bytes = options.state_bytes, zero = 0;
        need(clEnqueueFillBuffer(queue_.get(), state_.get(), &zero, sizeof zero, 0, state, 0, nullptr,
                                 nullptr),
             "clEnqueueFillBuffer");
        cl_uint i = 0;
        for (const cl_mem memory : {inbox_.get(), outbox_.get(), state_.get()})
            need(clSetKernelArg(kernel_.get(), i++, sizeof memory, &memory), "clSetKernelArg");
        need(clSetKernelArg(kernel_.get(), i++, sizeof bytes, &bytes), "clSetKernelArg");
        token_argument_ = i;
    } catch (...) {
        close(ended_);
        throw;
    }
}

device_loop::~device_loop() {
    if (queue_)
        clFinish(queue_.get()); // no callback comes after it
    if (ended_ >= 0)
        close(ended_);
}

void device_loop::build(const kagemusha_loop_options& options) {
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

device_loop::owned<cl_mem> device_loop::buffer(cl_mem_flags flags, std::size_t bytes) {
    cl_int error = CL_SUCCESS;
    owned<cl_mem> made(clCreateBuffer(context_.get(), flags, bytes, nullptr, &error));
    need(error, "clCreateBuffer");
    return made;
}

void device_loop::start(std::uint32_t callbacks, std::vector<std::byte> inbox) {
    const cl_uint token = callbacks;
    need(clSetKernelArg(kernel_.get(), token_argument_, sizeof token, &token), "clSetKernelArg");
    inbox_bytes_ = std::move(inbox);
    started_ns_ = now_ns();
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
    need(clSetEventCallback(read, CL_COMPLETE, report_end, reinterpret_cast<void*>(std::intptr_t{ended_})),
         "clSetEventCallback");
    need(clFlush(queue_.get()), "clFlush");
    runs_ = true;
}

device_loop::times device_loop::finish() {
    std::uint64_t number;
    [[maybe_unused]] const auto got = read(ended_, &number, sizeof number);
    cl_event both[] = {launch_.get(), read_.get()};
    need(clWaitForEvents(2, both), "the device loop");
    runs_ = false;
    times out;
    out.elapsed_ns = now_ns() - started_ns_;
    cl_ulong begin = 0, end = 0;
    if (clGetEventProfilingInfo(launch_.get(), CL_PROFILING_COMMAND_START, sizeof begin, &begin, nullptr) ==
            CL_SUCCESS &&
        clGetEventProfilingInfo(launch_.get(), CL_PROFILING_COMMAND_END, sizeof end, &end, nullptr) ==
            CL_SUCCESS &&
        end > begin)
        out.device_ns = end - begin;
    launch_.reset();
    read_.reset();
    return out;
}

std::span<const std::byte> device_loop::outbox(std::uint32_t lane) const {
    return std::span(outbox_bytes_).subspan(std::size_t{lane} * LOOP_OUTBOX_BYTES, LOOP_OUTBOX_BYTES);
}

} // namespace kagemusha::loop
