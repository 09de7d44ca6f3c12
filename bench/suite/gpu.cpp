// SPDX-License-Identifier: GPL-2.0-or-later
#include "suite/gpu.hpp"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace suite {

void need(cl_int error, const char* what) {
    if (error == CL_SUCCESS)
        return;
    std::printf("{\"error\": \"%s: OpenCL error %d\"}\n", what, error);
    std::fflush(stdout);
    std::_Exit(1); // no destructor: they would call the same device again
}

std::uint32_t numbers::next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state_ >> 33);
}

std::vector<float> floats(std::size_t count, std::uint64_t seed) {
    numbers random(seed);
    std::vector<float> all(count);
    for (float& one : all)
        one = random.unit();
    return all;
}

buffer::buffer(cl_context context, std::size_t bytes, cl_mem_flags flags) : bytes_(bytes) {
    cl_int error;
    memory_ = clCreateBuffer(context, flags, bytes, nullptr, &error);
    need(error, "clCreateBuffer");
}

buffer::buffer(buffer&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_) {}

buffer::~buffer() {
    if (memory_)
        clReleaseMemObject(memory_);
}

kernel::kernel(cl_program program, const char* name) {
    cl_int error;
    kernel_ = clCreateKernel(program, name, &error);
    need(error, name);
}

kernel::kernel(kernel&& other) noexcept : kernel_(std::exchange(other.kernel_, nullptr)) {}

kernel::~kernel() {
    if (kernel_)
        clReleaseKernel(kernel_);
}

void kernel::set(cl_uint index, const buffer& memory) {
    cl_mem handle = memory.get();
    need(clSetKernelArg(kernel_, index, sizeof handle, &handle), "clSetKernelArg");
}

void kernel::set(cl_uint index, cl_uint value) {
    need(clSetKernelArg(kernel_, index, sizeof value, &value), "clSetKernelArg");
}

void kernel::set(cl_uint index, float value) {
    need(clSetKernelArg(kernel_, index, sizeof value, &value), "clSetKernelArg");
}

gpu::gpu() {
    cl_int error;
    need(clGetPlatformIDs(1, &platform_, nullptr), "clGetPlatformIDs");
    need(clGetDeviceIDs(platform_, CL_DEVICE_TYPE_ALL, 1, &device_, nullptr), "clGetDeviceIDs");
    context_ = clCreateContext(nullptr, 1, &device_, nullptr, nullptr, &error);
    need(error, "clCreateContext");
    queue_ = clCreateCommandQueueWithProperties(context_, device_, nullptr, &error);
    need(error, "clCreateCommandQueueWithProperties");
}

gpu::~gpu() {
    clReleaseCommandQueue(queue_);
    clReleaseContext(context_);
}

std::string gpu::text(cl_device_info what) const {
    char text[256] = "";
    need(clGetDeviceInfo(device_, what, sizeof text - 1, text, nullptr), "clGetDeviceInfo");
    return text;
}

std::string gpu::name() const {
    return text(CL_DEVICE_NAME);
}

std::string gpu::driver() const {
    return text(CL_DRIVER_VERSION);
}

std::string gpu::platform() const {
    char text[256] = "";
    need(clGetPlatformInfo(platform_, CL_PLATFORM_NAME, sizeof text - 1, text, nullptr), "clGetPlatformInfo");
    return text;
}

std::vector<kernel> gpu::build(const char* source, std::initializer_list<const char*> names) const {
    cl_int error;
    cl_program program = clCreateProgramWithSource(context_, 1, &source, nullptr, &error);
    need(error, "clCreateProgramWithSource");
    need(clBuildProgram(program, 1, &device_, "", nullptr, nullptr), "clBuildProgram");
    std::vector<kernel> made;
    made.reserve(names.size());
    for (const char* name : names)
        made.emplace_back(program, name);
    clReleaseProgram(program);
    return made;
}

void gpu::write(const buffer& to, const void* data) const {
    need(clEnqueueWriteBuffer(queue_, to.get(), CL_TRUE, 0, to.bytes(), data, 0, nullptr, nullptr),
         "clEnqueueWriteBuffer");
}

void gpu::read(const buffer& from, void* data) const {
    need(clEnqueueReadBuffer(queue_, from.get(), CL_TRUE, 0, from.bytes(), data, 0, nullptr, nullptr),
         "clEnqueueReadBuffer");
}

void gpu::copy(const buffer& from, const buffer& to) const {
    need(clEnqueueCopyBuffer(queue_, from.get(), to.get(), 0, 0, from.bytes(), 0, nullptr, nullptr),
         "clEnqueueCopyBuffer");
}

void gpu::launch(const kernel& what, std::size_t x, std::size_t group) const {
    need(clEnqueueNDRangeKernel(queue_, what.get(), 1, nullptr, &x, group ? &group : nullptr, 0, nullptr,
                                nullptr),
         "clEnqueueNDRangeKernel");
}

void gpu::launch(const kernel& what, std::size_t x, std::size_t y, std::size_t group) const {
    const std::size_t global[] = {x, y}, local[] = {group, group};
    need(clEnqueueNDRangeKernel(queue_, what.get(), 2, nullptr, global, local, 0, nullptr, nullptr),
         "clEnqueueNDRangeKernel");
}

void gpu::finish() const {
    need(clFinish(queue_), "clFinish");
}

} // namespace suite
