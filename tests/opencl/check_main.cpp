// SPDX-License-Identifier: GPL-2.0-or-later
//
// The frame of kagemusha_cl_check: chooses the device, runs the groups, counts.
#include "check.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>

namespace check {
namespace {

std::mutex output;
int number = 0;
int failures = 0;
int deviations = 0;

} // namespace

bool ok(bool holds, const char* what, const char* file, int line) {
    const std::lock_guard held(output);
    ++number;
    if (holds) {
        std::printf("ok %d - %s\n", number, what);
    } else {
        ++failures;
        std::printf("not ok %d - %s\n# %s:%d\n", number, what, file, line);
    }
    return holds;
}

bool gives(cl_int expected, cl_int actual, const char* what, const char* file, int line) {
    const bool holds = ok(expected == actual, what, file, line);
    if (!holds) {
        const std::lock_guard held(output);
        std::printf("# gave %d, expected %d\n", actual, expected);
    }
    return holds;
}

bool ok_but_for(const setup& s, const char* vendor, bool holds, const char* what, const char* file,
                int line) {
    if (holds || text_of(s, CL_DEVICE_VENDOR).find(vendor) == std::string::npos)
        return ok(holds, what, file, line);
    const std::lock_guard held(output);
    ++deviations;
    std::printf("ok %d - %s # SKIP known deviation of %s from the standard\n", ++number, what, vendor);
    return false;
}

void skip(const char* what, const char* why) {
    const std::lock_guard held(output);
    std::printf("ok %d - %s # SKIP %s\n", ++number, what, why);
}

cl_program build(const setup& s, const std::string& source, const char* options) {
    const char* text = source.c_str();
    cl_int error = CL_SUCCESS;
    cl_program program = clCreateProgramWithSource(s.context, 1, &text, nullptr, &error);
    if (!CHECK_CL(error))
        return nullptr;
    if (!CHECK_CL(clBuildProgram(program, 1, &s.device, options, nullptr, nullptr))) {
        char log[4096] = "";
        clGetProgramBuildInfo(program, s.device, CL_PROGRAM_BUILD_LOG, sizeof log - 1, log, nullptr);
        std::printf("# %s\n", log);
        clReleaseProgram(program);
        return nullptr;
    }
    return program;
}

cl_kernel kernel_of(cl_program program, const char* name) {
    cl_int error = CL_SUCCESS;
    cl_kernel kernel = clCreateKernel(program, name, &error);
    CHECK_CL(error);
    return kernel;
}

cl_mem buffer_of(const setup& s, const std::vector<int>& content, cl_mem_flags flags) {
    cl_int error = CL_SUCCESS;
    cl_mem made = clCreateBuffer(s.context, flags | CL_MEM_COPY_HOST_PTR, content.size() * sizeof(int),
                                 const_cast<int*>(content.data()), &error);
    CHECK_CL(error);
    return made;
}

std::vector<int> content_of(const setup& s, cl_mem buffer, std::size_t count) {
    std::vector<int> result(count, -1);
    CHECK_CL(clEnqueueReadBuffer(s.queue, buffer, CL_TRUE, 0, count * sizeof(int), result.data(), 0, nullptr,
                                 nullptr));
    return result;
}

std::vector<int> counting(std::size_t count, int first) {
    std::vector<int> result(count);
    std::iota(result.begin(), result.end(), first);
    return result;
}

std::string text_of(const setup& s, cl_device_info name) {
    std::size_t size = 0;
    clGetDeviceInfo(s.device, name, 0, nullptr, &size);
    std::string text(size, 0);
    clGetDeviceInfo(s.device, name, size, text.data(), nullptr);
    return text.c_str();
}

namespace {

bool choose_device(setup& s) {
    cl_uint count = 0;
    if (clGetPlatformIDs(0, nullptr, &count) != CL_SUCCESS || count == 0)
        return false;
    std::vector<cl_platform_id> platforms(count);
    clGetPlatformIDs(count, platforms.data(), nullptr);
    const char* wanted = std::getenv("CL_CHECK_PLATFORM");
    const char* index = std::getenv("CL_CHECK_DEVICE"); // of the platform's; the first one
    const cl_uint number = index ? static_cast<cl_uint>(std::strtoul(index, nullptr, 10)) : 0;
    for (cl_platform_id platform : platforms) {
        char name[256] = "";
        clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof name, name, nullptr);
        if (wanted && !std::strstr(name, wanted))
            continue;
        cl_device_id devices[64] = {};
        cl_uint found = 0;
        if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 64, devices, &found) == CL_SUCCESS &&
            number < std::min<cl_uint>(found, 64)) {
            s.platform = platform;
            s.device = devices[number];
            return true;
        }
    }
    return false;
}

struct group {
    const char* name;
    void (*run)(const setup&);
};

constexpr group groups[] = {
    {"queries", queries},
    {"buffers", buffers},
    {"rectangles", rectangles},
    {"program-memory", through_program_memory},
    {"blocking-writes", blocking_writes},
    {"kept-maps", maps_of_what_kernels_read},
    {"maps", maps},
    {"images", images},
    {"programs", programs},
    {"binaries", binaries},
    {"kernels", kernels},
    {"events", events},
    {"queues", queues},
    {"held-queue", maps_beside_a_held_queue},
    {"errors", errors},
    {"threads", threads},
    {"printing", printing},
};

} // namespace
} // namespace check

int main(int argc, char** argv) {
    using namespace check;
    setup s;
    if (!choose_device(s)) {
        std::printf("Bail out! no OpenCL device\n");
        return 1;
    }
    std::printf("TAP version 13\n# %s, %s, %s\n", text_of(s, CL_DEVICE_NAME).c_str(),
                text_of(s, CL_DEVICE_VERSION).c_str(), text_of(s, CL_DRIVER_VERSION).c_str());
    cl_int error = CL_SUCCESS;
    s.context = clCreateContext(nullptr, 1, &s.device, nullptr, nullptr, &error);
    CHECK_CL(error);
    s.queue = clCreateCommandQueue(s.context, s.device, CL_QUEUE_PROFILING_ENABLE, &error);
    CHECK_CL(error);
    for (const group& one : groups) {
        bool wanted = argc < 2;
        for (int i = 1; i < argc; ++i)
            wanted = wanted || std::strcmp(argv[i], one.name) == 0;
        if (!wanted)
            continue;
        std::printf("# %s\n", one.name);
        one.run(s);
    }
    CHECK_CL(clReleaseCommandQueue(s.queue));
    CHECK_CL(clReleaseContext(s.context));
    if (deviations > 0)
        std::printf("# %d known deviations of this device's runtime from the standard\n", deviations);
    std::printf("1..%d\n", number);
    return failures == 0 ? 0 : 1;
}
