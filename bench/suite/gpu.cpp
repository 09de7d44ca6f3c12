// SPDX-License-Identifier: GPL-2.0-or-later
#include "suite/gpu.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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
    constexpr std::size_t period = 65521;
    numbers random(seed);
    std::vector<float> all(count);
    const auto made = static_cast<std::ptrdiff_t>(std::min(count, period));
    std::generate(all.begin(), all.begin() + made, [&] { return random.unit(); });
    for (std::size_t at = period; at < count; at += period)
        std::copy_n(all.begin(), std::min(period, count - at), all.begin() + static_cast<std::ptrdiff_t>(at));
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

void gpu::choose() {
    unsigned platform = 0, device = 0;
    const char* named = std::getenv("SUITE_DEVICE");
    if (named) {
        const char* const end = named + std::strlen(named);
        const auto [dot, bad_platform] = std::from_chars(named, end, platform);
        const bool two = bad_platform == std::errc{} && dot != end && *dot == '.';
        if (!two || std::from_chars(dot + 1, end, device).ec != std::errc{})
            need(CL_INVALID_VALUE, "SUITE_DEVICE is not P.D");
    }
    cl_uint count = 0;
    need(clGetPlatformIDs(0, nullptr, &count), "clGetPlatformIDs");
    if (platform >= count)
        need(CL_INVALID_PLATFORM, "no such platform as SUITE_DEVICE names");
    std::vector<cl_platform_id> platforms(count);
    need(clGetPlatformIDs(count, platforms.data(), nullptr), "clGetPlatformIDs");
    platform_ = platforms[platform];
    need(clGetDeviceIDs(platform_, CL_DEVICE_TYPE_ALL, 0, nullptr, &count), "clGetDeviceIDs");
    if (device >= count)
        need(CL_DEVICE_NOT_FOUND, "no such device as SUITE_DEVICE names");
    std::vector<cl_device_id> devices(count);
    need(clGetDeviceIDs(platform_, CL_DEVICE_TYPE_ALL, count, devices.data(), nullptr), "clGetDeviceIDs");
    device_ = devices[device];
}

gpu::gpu() {
    cl_int error;
    choose();
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
