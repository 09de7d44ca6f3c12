// SPDX-License-Identifier: GPL-2.0-or-later
// gpu_rates: how fast one program computes, copies within the GPU's memory, or copies from the host to it, during
// given seconds that several of them may have together (bench/share/rates). Plain OpenCL, so it is the same program
// natively and over the loopback.
//
//     gpu_rates arithmetic|memory|copy BEGIN SECONDS      BEGIN: seconds since 1970
//
// Prints one figure: GFLOP/s in FP32 (a multiply-add counts two), GB/s read and written in the GPU's memory, or GB/s
// to it. The first OpenCL device counts, or SUITE_DEVICE as in bench/suite (PLATFORM.DEVICE).
#include <CL/cl.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

namespace {

constexpr char source[] = R"(
kernel void arithmetic(global float* out, int rounds) {
    float a = get_global_id(0), b = a + 1, c = a + 2, d = a + 3;
    for (int i = 0; i < rounds; ++i) {
        a = mad(a, 0.999f, 0.5f);
        b = mad(b, 0.999f, 0.5f);
        c = mad(c, 0.999f, 0.5f);
        d = mad(d, 0.999f, 0.5f);
    }
    out[get_global_id(0)] = a + b + c + d;
}
kernel void memory(global const float4* from, global float4* to) {
    to[get_global_id(0)] = from[get_global_id(0)];
}
)";
constexpr double flops_of_round = 8;
constexpr std::size_t copy_bytes = std::size_t{64} << 20;
// Some 2 ms of an H200, 20 ms of a processor: short beside the seconds that count, long beside what a launch costs. Not
// measured: others may compute meanwhile.
constexpr cl_int gpu_rounds = 16384, processor_rounds = 512;
constexpr std::size_t under_way = 4;

using system_clock = std::chrono::system_clock;

void need(cl_int result, const char* what) {
    if (result == CL_SUCCESS)
        return;
    std::fprintf(stderr, "gpu_rates: %s: error %d\n", what, result);
    std::exit(1);
}

cl_device_id find_device() {
    unsigned platform = 0, device = 0;
    if (const char* chosen = std::getenv("SUITE_DEVICE")) {
        const char* const end = chosen + std::strlen(chosen);
        const auto [dot, error] = std::from_chars(chosen, end, platform);
        const bool good = error == std::errc{} && dot != end && *dot == '.' &&
                          std::from_chars(dot + 1, end, device).ec == std::errc{};
        need(good ? CL_SUCCESS : CL_INVALID_VALUE, "SUITE_DEVICE, which is PLATFORM.DEVICE");
    }
    std::array<cl_platform_id, 16> platforms{};
    std::array<cl_device_id, 64> devices{};
    cl_uint count = 0;
    need(clGetPlatformIDs(platforms.size(), platforms.data(), &count), "clGetPlatformIDs");
    need(platform < count ? CL_SUCCESS : CL_DEVICE_NOT_FOUND, "the platform");
    need(clGetDeviceIDs(platforms[platform], CL_DEVICE_TYPE_ALL, devices.size(), devices.data(), &count),
         "clGetDeviceIDs");
    need(device < count ? CL_SUCCESS : CL_DEVICE_NOT_FOUND, "the device");
    return devices[device];
}

class work {
public:
    explicit work(std::string_view what) : what_(what) {
        cl_int result = 0;
        device_ = find_device();
        rounds_ = is_gpu() ? gpu_rounds : processor_rounds;
        context_ = clCreateContext(nullptr, 1, &device_, nullptr, nullptr, &result);
        need(result, "clCreateContext");
        queue_ = clCreateCommandQueue(context_, device_, 0, &result);
        need(result, "clCreateCommandQueue");
        cl_uint units = 1;
        need(clGetDeviceInfo(device_, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, nullptr),
             "clGetDeviceInfo");
        items_ = what == "memory" ? memory_bytes() / 16 : std::size_t{units} * 8192;
        for (cl_mem& one : memory_) {
            one = clCreateBuffer(context_, CL_MEM_READ_WRITE, what == "copy" ? copy_bytes : items_ * 16,
                                 nullptr, &result);
            need(result, "clCreateBuffer");
        }
        if (what == "copy") {
            host_.assign(copy_bytes, 'x');
            return;
        }
        const char* text = source;
        const cl_program program = clCreateProgramWithSource(context_, 1, &text, nullptr, &result);
        need(result, "clCreateProgramWithSource");
        need(clBuildProgram(program, 1, &device_, "", nullptr, nullptr), "clBuildProgram");
        kernel_ = clCreateKernel(program, what == "memory" ? "memory" : "arithmetic", &result);
        need(result, "clCreateKernel");
        need(clSetKernelArg(kernel_, 0, sizeof(cl_mem), &memory_[0]), "clSetKernelArg");
        if (what == "memory")
            need(clSetKernelArg(kernel_, 1, sizeof(cl_mem), &memory_[1]), "clSetKernelArg");
        else
            need(clSetKernelArg(kernel_, 1, sizeof rounds_, &rounds_), "clSetKernelArg");
    }

    ~work() { clFinish(queue_); } // what is under way reads host_
    work(const work&) = delete;
    work& operator=(const work&) = delete;

    // Gives how much it does: FLOP or bytes.
    double once(cl_event& end) {
        if (what_ == "copy") {
            need(clEnqueueWriteBuffer(queue_, memory_[0], CL_FALSE, 0, copy_bytes, host_.data(), 0, nullptr,
                                      &end),
                 "clEnqueueWriteBuffer");
            need(clFlush(queue_), "clFlush");
            return copy_bytes;
        }
        const std::size_t group = 256;
        need(clEnqueueNDRangeKernel(queue_, kernel_, 1, nullptr, &items_, &group, 0, nullptr, &end),
             "clEnqueueNDRangeKernel");
        need(clFlush(queue_), "clFlush");
        return what_ == "memory" ? static_cast<double>(items_) * 32
                                 : static_cast<double>(items_) * rounds_ * flops_of_round;
    }

private:
    bool is_gpu() const {
        cl_device_type type = 0;
        need(clGetDeviceInfo(device_, CL_DEVICE_TYPE, sizeof type, &type, nullptr), "clGetDeviceInfo");
        return (type & CL_DEVICE_TYPE_GPU) != 0;
    }

    std::size_t memory_bytes() const {
        cl_ulong most = 0;
        need(clGetDeviceInfo(device_, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof most, &most, nullptr),
             "clGetDeviceInfo");
        return std::size_t{is_gpu() && most >= cl_ulong{2} << 30 ? 2048u : 64u} << 20;
    }

    const std::string_view what_;
    cl_device_id device_ = nullptr;
    cl_context context_ = nullptr;
    cl_command_queue queue_ = nullptr;
    cl_kernel kernel_ = nullptr;
    std::array<cl_mem, 2> memory_{};
    std::vector<char> host_;
    std::size_t items_ = 0;
    cl_int rounds_ = 0;
};

bool number(const char* text, double& value) {
    return std::from_chars(text, text + std::strlen(text), value).ec == std::errc{};
}

} // namespace

int main(int count, char** arguments) {
    double begin = 0, seconds = 0;
    const std::string_view what = count > 1 ? arguments[1] : "";
    if (count != 4 || (what != "arithmetic" && what != "memory" && what != "copy") ||
        !number(arguments[2], begin) || !number(arguments[3], seconds)) {
        std::fputs("usage: gpu_rates arithmetic|memory|copy BEGIN SECONDS\n", stderr);
        return 2;
    }
    work program(what);
    const auto from = system_clock::time_point(
        std::chrono::duration_cast<system_clock::duration>(std::chrono::duration<double>(begin)));
    const auto to =
        from + std::chrono::duration_cast<system_clock::duration>(std::chrono::duration<double>(seconds));
    if (system_clock::now() > from) {
        std::fputs("gpu_rates: not ready at BEGIN: begin later\n", stderr);
        return 1;
    }
    // Busy before, too: what counts is the middle of a longer time, in which all of them compute.
    std::array<cl_event, under_way> ends{};
    std::array<double, under_way> units{};
    double done = 0;
    for (std::size_t i = 0;; ++i) {
        cl_event& end = ends[i % under_way];
        if (end) {
            need(clWaitForEvents(1, &end), "clWaitForEvents");
            clReleaseEvent(end);
            const auto now = system_clock::now();
            if (now > to + std::chrono::milliseconds(300))
                break;
            if (now >= from && now < to)
                done += units[i % under_way];
        }
        units[i % under_way] = program.once(end);
    }
    std::printf("%.2f\n", done / seconds / 1e9);
    return 0;
}
