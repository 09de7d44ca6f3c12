// SPDX-License-Identifier: GPL-2.0-or-later
#include "cl_pulse.hpp"

#include <algorithm>
#include <thread>
#include <vector>

#include "cl_gpu.hpp"

namespace {

// x → x * factor + term modulo 2^32: what so many rounds of the kernel do.
struct step {
    cl_uint factor = 1, term = 0;

    explicit step(cl_uint rounds) {
        for (cl_uint i = 0; i < rounds; ++i) {
            factor *= 1664525u;
            term = term * 1664525u + 1013904223u;
        }
    }
};

// How long the kernel is on the GPU: the shortest of five times.
std::chrono::duration<double> time_on_gpu(const gpu& g, cl_kernel busy, cl_uint rounds, std::size_t count) {
    cl_int error;
    const cl_queue_properties properties[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
    cl_command_queue queue = clCreateCommandQueueWithProperties(g.context, g.device, properties, &error);
    need(error, "clCreateCommandQueueWithProperties, with profiling");
    argument(busy, 1, rounds);
    cl_ulong shortest_ns = ~cl_ulong{0};
    for (int i = 0; i < 5; ++i) {
        cl_event done = nullptr;
        need(clEnqueueNDRangeKernel(queue, busy, 1, nullptr, &count, nullptr, 0, nullptr, &done), "launch");
        need(clWaitForEvents(1, &done), "wait");
        cl_ulong begin = 0, end = 0;
        need(clGetEventProfilingInfo(done, CL_PROFILING_COMMAND_START, sizeof begin, &begin, nullptr),
             "start");
        need(clGetEventProfilingInfo(done, CL_PROFILING_COMMAND_END, sizeof end, &end, nullptr), "end");
        shortest_ns = std::min(shortest_ns, end - begin);
        clReleaseEvent(done);
    }
    clReleaseCommandQueue(queue);
    return std::chrono::nanoseconds(shortest_ns);
}

// How many rounds last about so long on this GPU.
cl_uint rounds_of(std::chrono::duration<double> wanted, const gpu& g, cl_kernel busy, std::size_t count) {
    const cl_uint most = 1u << 24; // the CPU does them once
    cl_uint rounds = 4096;
    auto took = time_on_gpu(g, busy, rounds, count);
    while (took < wanted / 2 && rounds < most) {
        rounds *= 2;
        took = time_on_gpu(g, busy, rounds, count);
    }
    return static_cast<cl_uint>(std::min<double>(most, rounds * (wanted / took)));
}

} // namespace

void pulse(double seconds, const char* stop_file, std::size_t mib) {
    gpu g;
    cl_kernel busy = g.kernel(g.build(busy_source), "busy");
    const std::size_t count = 256, chunk = std::size_t{64} << 20;
    const cl_uint pattern = 0x5eed;
    std::vector<cl_mem> still;
    for (std::size_t left = mib << 20; left != 0;) {
        const auto bytes = std::min(left, chunk);
        left -= bytes;
        still.push_back(g.buffer(bytes));
        need(clEnqueueFillBuffer(g.queue, still.back(), &pattern, sizeof pattern, 0, bytes, 0, nullptr,
                                 nullptr),
             "fill");
    }
    cl_mem values = g.buffer(count * sizeof(cl_uint));
    std::vector<cl_uint> got(count);
    argument(busy, 0, values);
    const cl_uint rounds = rounds_of(std::chrono::milliseconds(4), g, busy, count);
    const auto kernel_time = time_on_gpu(g, busy, rounds, count);
    const step all_rounds(rounds);
    cl_uint value = 0; // of each element
    need(clEnqueueFillBuffer(g.queue, values, &value, sizeof value, 0, count * sizeof value, 0, nullptr,
                             nullptr),
         "fill");
    need(clFinish(g.queue), "finish");
    std::printf("computing\n");
    const auto started = clock_type::now();
    const auto end = clock_type::now() + std::chrono::duration<double>(seconds);
    unsigned checked = 0;
    do {
        const auto begin = clock_type::now();
        need(clEnqueueNDRangeKernel(g.queue, busy, 1, nullptr, &count, nullptr, 0, nullptr, nullptr),
             "launch");
        need(clEnqueueReadBuffer(g.queue, values, CL_TRUE, 0, count * sizeof(cl_uint), got.data(), 0, nullptr,
                                 nullptr),
             "read");
        value = value * all_rounds.factor + all_rounds.term;
        if (got != std::vector<cl_uint>(count, value))
            fail("a wrong value");
        ++checked;
        std::this_thread::sleep_until(begin +
                                      std::chrono::duration_cast<clock_type::duration>(2 * kernel_time));
    } while (may_go_on(end, stop_file));
    const std::chrono::duration<double> took = clock_type::now() - started;
    for (cl_mem each : still) {
        std::vector<cl_uint> rest(1024);
        need(clEnqueueReadBuffer(g.queue, each, CL_TRUE, 0, rest.size() * sizeof(cl_uint), rest.data(), 0,
                                 nullptr, nullptr),
             "read what was written once");
        if (rest != std::vector<cl_uint>(rest.size(), pattern))
            fail("memory changed that nothing writes");
    }
    std::printf("%u pulses are right; kernels of %.1f ms kept the GPU busy for %.0f %% of the time\n",
                checked, kernel_time.count() * 1e3, 100 * checked * kernel_time.count() / took.count());
}

void keep_busy(double seconds, const char* stop_file, double kernel_ms) {
    gpu g;
    cl_kernel busy = g.kernel(g.build(busy_source), "busy");
    const std::size_t count = 256;
    cl_mem values = g.buffer(count * sizeof(cl_uint));
    argument(busy, 0, values);
    const cl_uint rounds = rounds_of(std::chrono::duration<double>(kernel_ms * 1e-3), g, busy, count);
    argument(busy, 1, rounds);
    const step all_rounds(rounds);
    cl_uint value = 0;
    need(clEnqueueFillBuffer(g.queue, values, &value, sizeof value, 0, count * sizeof value, 0, nullptr,
                             nullptr),
         "fill");
    std::printf("busy\n");
    const auto end = clock_type::now() + std::chrono::duration<double>(seconds);
    std::vector<cl_event> flying;
    do {
        cl_event done = nullptr;
        need(clEnqueueNDRangeKernel(g.queue, busy, 1, nullptr, &count, nullptr, 0, nullptr, &done), "launch");
        need(clFlush(g.queue), "flush"); // a request for each
        value = value * all_rounds.factor + all_rounds.term;
        flying.push_back(done);
        if (flying.size() < 24)
            continue;
        need(clWaitForEvents(1, &flying.front()), "wait");
        clReleaseEvent(flying.front());
        flying.erase(flying.begin());
    } while (may_go_on(end, stop_file));
    std::vector<cl_uint> got(count);
    need(clEnqueueReadBuffer(g.queue, values, CL_TRUE, 0, count * sizeof(cl_uint), got.data(), 0, nullptr,
                             nullptr),
         "read");
    if (got != std::vector<cl_uint>(count, value))
        fail("a wrong value");
    std::printf("busy all the time, and right\n");
}
