// SPDX-License-Identifier: GPL-2.0-or-later
// gpu_rates: how fast one program computes, copies within the GPU's memory, or copies from the host to it, during
// given seconds that several of them may have together (bench/share/rates). Plain OpenCL, so it is the same program
// natively and over the loopback.
//
//     gpu_rates arithmetic|memory|copy BEGIN SECONDS      BEGIN: seconds since 1970
//
// Prints one figure: GFLOP/s in FP32 (a multiply-add counts two), GB/s read and written in the GPU's memory, or GB/s
// to it. The first OpenCL device counts, or SUITE_DEVICE as in bench/suite (PLATFORM.DEVICE).
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "suite/gpu.hpp"

namespace {

using suite::need;

constexpr char source[] = R"(
kernel void arithmetic(global float* out, uint rounds) {
    float a = get_global_id(0), b = a + 1, c = a + 2, d = a + 3;
    for (uint i = 0; i < rounds; ++i) {
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
constexpr cl_uint gpu_rounds = 16384, processor_rounds = 512;
constexpr std::size_t under_way = 4;

using system_clock = std::chrono::system_clock;

class work {
public:
    explicit work(std::string_view what) : what_(what) {
        const bool on_gpu = (told<cl_device_type>(CL_DEVICE_TYPE) & CL_DEVICE_TYPE_GPU) != 0;
        const bool large = on_gpu && told<cl_ulong>(CL_DEVICE_MAX_MEM_ALLOC_SIZE) >= cl_ulong{2} << 30;
        rounds_ = on_gpu ? gpu_rounds : processor_rounds;
        items_ = what == "memory" ? (std::size_t{large ? 2048u : 64u} << 20) / 16
                                  : std::size_t{told<cl_uint>(CL_DEVICE_MAX_COMPUTE_UNITS)} * 8192;
        for (int i = 0; i < 2; ++i)
            memory_.push_back(gpu_.make(what == "copy" ? copy_bytes : items_ * 16));
        if (what == "copy") {
            host_.assign(copy_bytes, 'x');
            return;
        }
        kernel_ = gpu_.build(source, {what == "memory" ? "memory" : "arithmetic"});
        if (what == "memory")
            kernel_[0].with(memory_[0], memory_[1]);
        else
            kernel_[0].with(memory_[0], rounds_);
    }

    ~work() { gpu_.finish(); } // what is under way reads host_
    work(const work&) = delete;
    work& operator=(const work&) = delete;

    // Gives how much it does: FLOP or bytes.
    double once(cl_event& end) {
        if (what_ == "copy") {
            need(clEnqueueWriteBuffer(gpu_.queue(), memory_[0].get(), CL_FALSE, 0, copy_bytes, host_.data(),
                                      0, nullptr, &end),
                 "clEnqueueWriteBuffer");
            need(clFlush(gpu_.queue()), "clFlush");
            return copy_bytes;
        }
        const std::size_t group = 256;
        need(clEnqueueNDRangeKernel(gpu_.queue(), kernel_[0].get(), 1, nullptr, &items_, &group, 0, nullptr,
                                    &end),
             "clEnqueueNDRangeKernel");
        need(clFlush(gpu_.queue()), "clFlush");
        return what_ == "memory" ? static_cast<double>(items_) * 32
                                 : static_cast<double>(items_) * rounds_ * flops_of_round;
    }

private:
    template <typename T>
    T told(cl_device_info what) const {
        cl_device_id device = nullptr;
        T value{};
        need(clGetCommandQueueInfo(gpu_.queue(), CL_QUEUE_DEVICE, sizeof device, &device, nullptr),
             "clGetCommandQueueInfo");
        need(clGetDeviceInfo(device, what, sizeof value, &value, nullptr), "clGetDeviceInfo");
        return value;
    }

    const std::string_view what_;
    const suite::gpu gpu_;
    std::vector<suite::buffer> memory_;
    std::vector<suite::kernel> kernel_;
    std::vector<char> host_;
    std::size_t items_ = 0;
    cl_uint rounds_ = 0;
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
