// SPDX-License-Identifier: GPL-2.0-or-later
//
// A small OpenCL benchmark: an ordinary program, run natively on the host and in a guest by bench/vm, which
// compares the two. Each job prints one line of JSON. Nothing is judged here.
//
//   cl_bench calibrate MILLISECONDS     how many rounds make a launch of about that length
//   cl_bench gpu-bound ROUNDS LAUNCHES  launches of one kernel, one after the other: wall, kernel and own CPU
//                                       time, and what a launch took beyond its kernel
//   cl_bench transfer BYTES REPEATS     write, read and memcpy of that size, bytes per second (the median)
//   cl_bench launches COUNT             launches that nothing waits for: seconds to enqueue and to finish
//   cl_bench objects COUNT LAUNCHES     the same with so many live buffers in the context
//   cl_bench launch-cpu COUNT           what a launch costs the thread that asks for it: its processor time, with
//                                       the arguments of the one before and with one that changed
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/resource.h>
#include <time.h>
#include <vector>

namespace {

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// User and system time of this process.
double cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

void need(cl_int error, const char* what) {
    if (error != CL_SUCCESS) {
        std::fprintf(stderr, "cl_bench: %s: OpenCL error %d\n", what, error);
        std::exit(1);
    }
}

const char* source = R"(
kernel void busy(global uint* values, uint rounds)
{
    uint x = values[get_global_id(0)];
    for (uint i = 0; i < rounds; ++i)
        x = x * 1664525u + 1013904223u;
    values[get_global_id(0)] = x;
}
)";

struct gpu {
    cl_device_id device{};
    cl_context context{};
    cl_command_queue queue{};
    cl_kernel busy{};

    gpu() {
        cl_platform_id platform;
        cl_int error;
        need(clGetPlatformIDs(1, &platform, nullptr), "clGetPlatformIDs");
        need(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, nullptr), "clGetDeviceIDs");
        context = clCreateContext(nullptr, 1, &device, nullptr, nullptr, &error);
        need(error, "clCreateContext");
        const cl_queue_properties properties[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
        queue = clCreateCommandQueueWithProperties(context, device, properties, &error);
        need(error, "clCreateCommandQueueWithProperties");
        cl_program program = clCreateProgramWithSource(context, 1, &source, nullptr, &error);
        need(error, "clCreateProgramWithSource");
        need(clBuildProgram(program, 1, &device, "", nullptr, nullptr), "clBuildProgram");
        busy = clCreateKernel(program, "busy", &error);
        need(error, "clCreateKernel");
    }

    cl_mem buffer(std::size_t bytes) const {
        cl_int error;
        cl_mem made = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, nullptr, &error);
        need(error, "clCreateBuffer");
        return made;
    }

    void arguments(cl_mem values, cl_uint rounds) const {
        need(clSetKernelArg(busy, 0, sizeof values, &values), "clSetKernelArg");
        need(clSetKernelArg(busy, 1, sizeof rounds, &rounds), "clSetKernelArg");
    }

    // Returns the kernel's own time if it is waited for.
    double launch(std::size_t items, bool wait) const {
        cl_event event{};
        need(clEnqueueNDRangeKernel(queue, busy, 1, nullptr, &items, nullptr, 0, nullptr,
                                    wait ? &event : nullptr),
             "clEnqueueNDRangeKernel");
        if (!wait)
            return 0;
        need(clWaitForEvents(1, &event), "clWaitForEvents");
        cl_ulong start = 0, end = 0;
        need(clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_START, sizeof start, &start, nullptr),
             "profiling");
        need(clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof end, &end, nullptr),
             "profiling");
        clReleaseEvent(event);
        return static_cast<double>(end - start) * 1e-9;
    }
};

constexpr std::size_t items = 1 << 16;

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

void calibrate(double wanted_ms) {
    gpu g;
    cl_mem values = g.buffer(items * sizeof(cl_uint));
    cl_uint rounds = 64;
    for (double took = 0; took < wanted_ms * 0.5e-3 && rounds < (1u << 30); rounds *= 2) {
        g.arguments(values, rounds);
        g.launch(items, true);
        took = g.launch(items, true);
    }
    std::printf("{\"rounds\": %u}\n", rounds);
}

void gpu_bound(cl_uint rounds, int launches) {
    gpu g;
    cl_mem values = g.buffer(items * sizeof(cl_uint));
    g.arguments(values, rounds);
    g.launch(items, true); // the first compiles
    const double cpu = cpu_seconds(), start = now();
    double kernels = 0;
    std::vector<double> late; // what a launch took beyond its kernel
    for (int i = 0; i < launches; ++i) {
        const double began = now();
        const double kernel = g.launch(items, true);
        late.push_back(now() - began - kernel);
        kernels += kernel;
    }
    const double wall = now() - start;
    std::printf("{\"wall_s\": %.6f, \"kernel_s\": %.6f, \"cpu_s\": %.6f, \"launches\": %d, "
                "\"late_median_s\": %.6f, \"late_max_s\": %.6f}\n",
                wall, kernels, cpu_seconds() - cpu, launches, median(late),
                *std::max_element(late.begin(), late.end()));
}

void transfer(std::size_t bytes, int repeats) {
    gpu g;
    cl_mem values = g.buffer(bytes);
    std::vector<char> a(bytes, 1), b(bytes, 2);
    std::vector<double> write, read, copy;
    for (int i = -1; i < repeats; ++i) { // the first is not counted
        double start = now();
        need(clEnqueueWriteBuffer(g.queue, values, CL_TRUE, 0, bytes, a.data(), 0, nullptr, nullptr),
             "write");
        const double written = now() - start;
        start = now();
        need(clEnqueueReadBuffer(g.queue, values, CL_TRUE, 0, bytes, b.data(), 0, nullptr, nullptr), "read");
        const double red = now() - start;
        start = now();
        std::memcpy(b.data(), a.data(), bytes);
        asm volatile("" ::"r"(b.data()) : "memory"); // the copy is not left out
        const double copied = now() - start;
        if (i < 0)
            continue;
        write.push_back(written);
        read.push_back(red);
        copy.push_back(copied);
    }
    const auto rate = [&](const std::vector<double>& seconds) {
        return static_cast<double>(bytes) / median(seconds);
    };
    std::printf("{\"bytes\": %zu, \"write_Bps\": %.0f, \"read_Bps\": %.0f, \"memcpy_Bps\": %.0f}\n", bytes,
                rate(write), rate(read), rate(copy));
}

void many_launches(const gpu& g, cl_mem values, int count, std::size_t objects) {
    g.arguments(values, 1);
    g.launch(64, false);
    need(clFinish(g.queue), "clFinish");
    const double start = now();
    for (int i = 0; i < count; ++i)
        g.launch(64, false);
    const double enqueued = now() - start;
    need(clFinish(g.queue), "clFinish");
    std::printf("{\"launches\": %d, \"objects\": %zu, \"enqueue_s\": %.6f, \"finish_s\": %.6f}\n", count,
                objects, enqueued, now() - start);
}

void launches(int count) {
    gpu g;
    many_launches(g, g.buffer(4096), count, 1);
}

void objects(std::size_t live, int count) {
    gpu g;
    std::vector<cl_mem> all;
    for (std::size_t i = 0; i < live; ++i)
        all.push_back(g.buffer(4096));
    many_launches(g, all[live / 2], count, live);
    for (cl_mem one : all)
        clReleaseMemObject(one);
}

double thread_seconds() {
    timespec at{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return static_cast<double>(at.tv_sec) + static_cast<double>(at.tv_nsec) * 1e-9;
}

// Launches in rows as long as a queue takes without waiting; the median row counts. Nothing else is in them.
void launch_cpu(int count) {
    constexpr int row = 256;
    gpu g;
    g.arguments(g.buffer(4096), 1);
    const size_t items = 64;
    const auto rows = [&](bool changes) {
        std::vector<double> seconds;
        for (int done = 0; done < count; done += row) {
            const double start = thread_seconds();
            for (cl_uint i = 0; i < row; ++i) {
                if (changes)
                    clSetKernelArg(g.busy, 1, sizeof i, &i);
                clEnqueueNDRangeKernel(g.queue, g.busy, 1, nullptr, &items, nullptr, 0, nullptr, nullptr);
            }
            seconds.push_back((thread_seconds() - start) / row);
            need(clFinish(g.queue), "clFinish");
        }
        return median(seconds) * 1e9;
    };
    rows(false); // warm
    const double same = rows(false), changed = rows(true);
    std::printf("{\"launches\": %d, \"same_ns\": %.0f, \"changed_ns\": %.0f}\n", count, same, changed);
}

} // namespace

int main(int argc, char** argv) {
    const std::string what = argc > 1 ? argv[1] : "";
    const long long first = argc > 2 ? std::strtoll(argv[2], nullptr, 10) : 0,
                    second = argc > 3 ? std::strtoll(argv[3], nullptr, 10) : 0;
    if (what == "calibrate" && first > 0)
        calibrate(static_cast<double>(first));
    else if (what == "gpu-bound" && first > 0 && second > 0)
        gpu_bound(static_cast<cl_uint>(first), static_cast<int>(second));
    else if (what == "transfer" && first > 0 && second > 0)
        transfer(static_cast<std::size_t>(first), static_cast<int>(second));
    else if (what == "launches" && first > 0)
        launches(static_cast<int>(first));
    else if (what == "launch-cpu" && first > 0)
        launch_cpu(static_cast<int>(first));
    else if (what == "objects" && first > 0 && second > 0)
        objects(static_cast<std::size_t>(first), static_cast<int>(second));
    else {
        std::fprintf(
            stderr,
            "usage: cl_bench calibrate MS | gpu-bound ROUNDS LAUNCHES | transfer BYTES REPEATS | launches "
            "COUNT | objects COUNT LAUNCHES | launch-cpu COUNT\n");
        return 2;
    }
    return 0;
}
