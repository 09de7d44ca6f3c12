// SPDX-License-Identifier: GPL-2.0-or-later
//
// Runs in the guest (or on the host, for comparison): small OpenCL jobs that the whole-VM tests put together,
// one per word of the command line. It links nothing but the standard OpenCL loader. Exit status 0: what the
// job is about happened and every result was right; 1: it was not; a line says what.
#include "cl_gpu.hpp"
#include "cl_pulse.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

const char* source = R"(
kernel void add(global const int* a, global const int* b, global int* sum)
{
    size_t i = get_global_id(0);
    sum[i] = a[i] + b[i];
}
kernel void advance(global uint* values, uint add)
{
    size_t i = get_global_id(0);
    values[i] = values[i] * 1664525u + add;
}
kernel void where(global ulong* values)
{
    values[get_global_id(0)] = (ulong)values;
}
kernel void speak(int answer)
{
    printf("work item %d says %d\n", (int)get_global_id(0), answer);
}
kernel void endless(global volatile uint* values)
{
    while (values[0] == 0)
        values[1]++;
}
kernel void await_store(global volatile uint* from, global uint* seen)
{
    for (ulong i = 0; i < 20000000000ul && from[0] == 0; ++i) {
    }
    seen[0] = from[0];
}
kernel void wild_write(global uint* values, ulong address)
{
    *(global volatile uint*)address = values[0];
}
kernel void wild_read(global uint* values, ulong address)
{
    values[0] = *(global volatile uint*)address;
}
)";

// The trap is not portable OpenCL C: a source of its own, because a compiler may refuse it.
const char* trap_source = "kernel void trap(global uint* values) { values[0] = 1; __builtin_trap(); }";

// a + b, compared with the CPU's sums.
void add_vectors(std::size_t count) {
    gpu g;
    cl_kernel add = g.kernel(g.build(source), "add");
    std::vector<int> a(count), b(count), sum(count);
    for (std::size_t i = 0; i < count; ++i) {
        a[i] = static_cast<int>(i * 7);
        b[i] = static_cast<int>(i) - 1000;
    }
    const auto bytes = count * sizeof(int);
    cl_mem buffers[] = {g.buffer(bytes), g.buffer(bytes), g.buffer(bytes)};
    for (cl_uint i = 0; i < 3; ++i)
        argument(add, i, buffers[i]);
    need(clEnqueueWriteBuffer(g.queue, buffers[0], CL_FALSE, 0, bytes, a.data(), 0, nullptr, nullptr),
         "write a");
    need(clEnqueueWriteBuffer(g.queue, buffers[1], CL_FALSE, 0, bytes, b.data(), 0, nullptr, nullptr),
         "write b");
    need(clEnqueueNDRangeKernel(g.queue, add, 1, nullptr, &count, nullptr, 0, nullptr, nullptr), "launch");
    need(clEnqueueReadBuffer(g.queue, buffers[2], CL_TRUE, 0, bytes, sum.data(), 0, nullptr, nullptr),
         "read");
    for (std::size_t i = 0; i < count; ++i)
        if (sum[i] != a[i] + b[i])
            fail("a wrong sum");
    std::printf("%zu sums are right\n", count);
}

// Kernels that build on each other's results for some time; every round is checked. Beside them memory that
// is written once, and looked at at the end.
void churn(double seconds, const char* stop_file) {
    gpu g;
    cl_kernel step = g.kernel(g.build(source), "advance");
    const std::size_t count = 1024;
    std::vector<cl_uint> expected(count), got(count);
    for (std::size_t i = 0; i < count; ++i)
        expected[i] = static_cast<cl_uint>(i);
    cl_mem values = g.buffer(count * sizeof(cl_uint));
    argument(step, 0, values);
    const std::size_t still_bytes = 4 << 20;
    const cl_uint pattern = 0x5eed;
    cl_mem still = g.buffer(still_bytes);
    need(clEnqueueFillBuffer(g.queue, still, &pattern, sizeof pattern, 0, still_bytes, 0, nullptr, nullptr),
         "fill");
    need(clEnqueueWriteBuffer(g.queue, values, CL_TRUE, 0, count * sizeof(cl_uint), expected.data(), 0,
                              nullptr, nullptr),
         "write");
    const auto end = clock_type::now() + std::chrono::duration<double>(seconds);
    unsigned rounds = 0;
    do {
        for (cl_uint launch = 0; launch < 16; ++launch) {
            argument(step, 1, launch);
            need(clEnqueueNDRangeKernel(g.queue, step, 1, nullptr, &count, nullptr, 0, nullptr, nullptr),
                 "launch");
            for (auto& value : expected)
                value = value * 1664525u + launch;
        }
        need(clEnqueueReadBuffer(g.queue, values, CL_TRUE, 0, count * sizeof(cl_uint), got.data(), 0, nullptr,
                                 nullptr),
             "read");
        if (got != expected)
            fail("a wrong value");
        ++rounds;
    } while (may_go_on(end, stop_file));
    std::vector<cl_uint> rest(still_bytes / sizeof(cl_uint));
    need(clEnqueueReadBuffer(g.queue, still, CL_TRUE, 0, still_bytes, rest.data(), 0, nullptr, nullptr),
         "read what was written once");
    if (rest != std::vector<cl_uint>(rest.size(), pattern))
        fail("memory changed that nothing writes");
    std::printf("%u rounds are right\n", rounds);
}

// Half of the time kernels of a few milliseconds, the other half nothing; beside them so many MiB that stay.
// A kernel that runs waits for a store into a mapped buffer; no call of the program follows the store.
void await_store() {
    gpu g;
    cl_kernel await_store = g.kernel(g.build(source), "await_store");
    cl_int error;
    cl_mem from = clCreateBuffer(g.context, CL_MEM_READ_ONLY | CL_MEM_ALLOC_HOST_PTR, 4096, nullptr, &error);
    need(error, "clCreateBuffer");
    cl_mem seen = g.buffer(sizeof(cl_uint));
    const cl_uint zero = 0;
    need(clEnqueueWriteBuffer(g.queue, from, CL_TRUE, 0, sizeof zero, &zero, 0, nullptr, nullptr), "write");
    auto* const view = static_cast<volatile cl_uint*>(clEnqueueMapBuffer(
        g.queue, from, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, 4096, 0, nullptr, nullptr, &error));
    need(error, "map");
    argument(await_store, 0, from);
    argument(await_store, 1, seen);
    const std::size_t one = 1;
    cl_event done = nullptr;
    need(clEnqueueNDRangeKernel(g.queue, await_store, 1, nullptr, &one, nullptr, 0, nullptr, &done),
         "launch");
    need(clFlush(g.queue), "flush");
    std::this_thread::sleep_for(std::chrono::milliseconds(500)); // most times it waits already
    view[0] = 4711;
    need(clWaitForEvents(1, &done), "wait");
    cl_uint got = 0;
    need(clEnqueueReadBuffer(g.queue, seen, CL_TRUE, 0, sizeof got, &got, 0, nullptr, nullptr), "read");
    if (got != 4711)
        fail("the kernel did not see the store");
    std::printf("the kernel saw the store\n");
}

// Fills memory again and again, and looks at it each time.
void fill_often(int times) {
    gpu g;
    std::vector<cl_uint> got(1 << 16);
    const std::size_t bytes = got.size() * sizeof(cl_uint);
    cl_mem values = g.buffer(bytes);
    for (cl_uint round = 1; round <= static_cast<cl_uint>(times); ++round) {
        need(clEnqueueFillBuffer(g.queue, values, &round, sizeof round, 0, bytes, 0, nullptr, nullptr),
             "fill");
        need(clEnqueueReadBuffer(g.queue, values, CL_TRUE, 0, bytes, got.data(), 0, nullptr, nullptr),
             "read");
        for (const auto value : got)
            if (value != round)
                fail("a wrong value");
    }
    std::printf("%d fills are right\n", times);
}

// Two buffers that stay mapped for ever: one is stored into while a kernel reads the other. Every launch must
// see what was stored before it, no more and no less.
void store_traced(double seconds, const char* stop_file) {
    gpu g;
    cl_kernel add = g.kernel(g.build(source), "add");
    const std::size_t count = 64 * 1024;
    const std::size_t bytes = count * sizeof(cl_int);
    std::vector<cl_int> expected(count), got(count);
    cl_mem sums = g.buffer(bytes);
    need(clEnqueueWriteBuffer(g.queue, sums, CL_TRUE, 0, bytes, expected.data(), 0, nullptr, nullptr),
         "write");
    cl_mem inputs[2];
    cl_int* views[2];
    cl_event done[2]{};
    for (int i = 0; i < 2; ++i) {
        cl_int error;
        inputs[i] =
            clCreateBuffer(g.context, CL_MEM_READ_ONLY | CL_MEM_ALLOC_HOST_PTR, bytes, nullptr, &error);
        need(error, "clCreateBuffer");
        views[i] = static_cast<cl_int*>(clEnqueueMapBuffer(g.queue, inputs[i], CL_TRUE,
                                                           CL_MAP_WRITE_INVALIDATE_REGION, 0, bytes, 0,
                                                           nullptr, nullptr, &error));
        need(error, "map");
        std::memset(views[i], 0, bytes);
    }
    argument(add, 1, sums);
    argument(add, 2, sums);
    const auto end = clock_type::now() + std::chrono::duration<double>(seconds);
    cl_uint random = 1;
    unsigned rounds = 0;
    do {
        const unsigned side = rounds % 2;
        if (done[side]) { // the kernel that read this one
            need(clWaitForEvents(1, &done[side]), "wait");
            need(clReleaseEvent(done[side]), "release");
        }
        cl_int* const view = views[side];
        if (rounds % 16 < 2) // now and then all of it
            for (std::size_t i = 0; i < count; ++i)
                view[i] = static_cast<cl_int>(i + rounds);
        for (int i = 0; i < 50; ++i) {
            random = random * 1664525u + 1013904223u;
            view[(random >> 8) % count] = static_cast<cl_int>(random >> 4 & 0xffff);
        }
        view[0] = static_cast<cl_int>(rounds);
        for (std::size_t i = 0; i < count; ++i)
            expected[i] =
                static_cast<cl_int>(static_cast<cl_uint>(expected[i]) + static_cast<cl_uint>(view[i]));
        argument(add, 0, inputs[side]);
        need(clEnqueueNDRangeKernel(g.queue, add, 1, nullptr, &count, nullptr, 0, nullptr, &done[side]),
             "launch");
        need(clFlush(g.queue), "flush");
        if (rounds % 8 == 7) {
            need(clEnqueueReadBuffer(g.queue, sums, CL_TRUE, 0, bytes, got.data(), 0, nullptr, nullptr),
                 "read");
            if (got != expected)
                fail("a kernel did not see what was stored before its launch");
        }
        ++rounds;
    } while (may_go_on(end, stop_file) || rounds % 8 != 0);
    // also as a source and a destination of transfers, and unmapped
    need(clEnqueueReadBuffer(g.queue, sums, CL_TRUE, 0, bytes, views[0], 0, nullptr, nullptr),
         "read into the mapping");
    if (std::memcmp(views[0], expected.data(), bytes) != 0)
        fail("reading into a mapping");
    need(clEnqueueUnmapMemObject(g.queue, inputs[0], views[0], 0, nullptr, nullptr), "unmap");
    need(clEnqueueReadBuffer(g.queue, inputs[0], CL_TRUE, 0, bytes, got.data(), 0, nullptr, nullptr), "read");
    if (got != expected)
        fail("what was read into a mapping is not in its buffer");
    need(clEnqueueUnmapMemObject(g.queue, inputs[1], views[1], 0, nullptr, nullptr), "unmap");
    views[1] = static_cast<cl_int*>(
        clEnqueueMapBuffer(g.queue, inputs[1], CL_TRUE, CL_MAP_READ, 0, bytes, 0, nullptr, nullptr, nullptr));
    if (!views[1] || views[1][0] != static_cast<cl_int>(rounds - 1))
        fail("a map after an unmap");
    std::printf("%u rounds are right\n", rounds);
}

// Memory that holds its own native address, and lives for so many seconds.
void keep_address(double seconds, const char* stop_file) {
    gpu g;
    cl_kernel where = g.kernel(g.build(source), "where");
    const std::size_t count = 64;
    cl_mem values = g.buffer(count * sizeof(cl_ulong));
    argument(where, 0, values);
    need(clEnqueueNDRangeKernel(g.queue, where, 1, nullptr, &count, nullptr, 0, nullptr, nullptr), "launch");
    need(clFinish(g.queue), "clFinish");
    std::printf("written\n");
    const auto end = clock_type::now() + std::chrono::duration<double>(seconds);
    while (may_go_on(end, stop_file))
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

void print_from_kernel(int answer) {
    gpu g;
    cl_kernel speak = g.kernel(g.build(source), "speak");
    argument(speak, 0, answer);
    const std::size_t count = 3;
    need(clEnqueueNDRangeKernel(g.queue, speak, 1, nullptr, &count, nullptr, 0, nullptr, nullptr), "launch");
    need(clFinish(g.queue), "clFinish");
}

void build_nonsense() {
    gpu g;
    cl_int error;
    const char* text = "kernel void f(global int* a) { a[0] = this_is_nowhere_declared; }";
    cl_program program = clCreateProgramWithSource(g.context, 1, &text, nullptr, &error);
    need(error, "clCreateProgramWithSource");
    error = clBuildProgram(program, 1, &g.device, "", nullptr, nullptr);
    if (error != CL_BUILD_PROGRAM_FAILURE)
        fail("clBuildProgram did not say CL_BUILD_PROGRAM_FAILURE", error);
    std::size_t bytes = 0;
    need(clGetProgramBuildInfo(program, g.device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &bytes),
         "size of the log");
    std::string log(bytes, '\0');
    need(clGetProgramBuildInfo(program, g.device, CL_PROGRAM_BUILD_LOG, bytes, log.data(), nullptr), "log");
    std::printf("build log: %s\n", log.c_str());
    if (log.find("this_is_nowhere_declared") == std::string::npos)
        fail("the log does not name the mistake");
}

// Many long launches and no wait: whoever kills this process, the device or the machine finds work in flight.
void leave_in_flight(double seconds, bool map) {
    gpu g;
    cl_kernel busy = g.kernel(g.build(busy_source), "busy");
    const std::size_t count = 1 << 16;
    cl_mem values = g.buffer(64 << 20);
    argument(busy, 0, values);
    argument(busy, 1, cl_uint{20000});
    std::vector<char> data(1 << 20, 1),
        back(data.size()); // a write from `back` would wait for the read into it
    for (int i = 0; i < 32; ++i) {
        need(
            clEnqueueWriteBuffer(g.queue, values, CL_FALSE, 0, data.size(), data.data(), 0, nullptr, nullptr),
            "write");
        need(clEnqueueNDRangeKernel(g.queue, busy, 1, nullptr, &count, nullptr, 0, nullptr, nullptr),
             "launch");
        need(clEnqueueReadBuffer(g.queue, values, CL_FALSE, 0, back.size(), back.data(), 0, nullptr, nullptr),
             "read");
    }
    need(clFlush(g.queue), "clFlush");
    if (map) {
        cl_int error;
        clEnqueueMapBuffer(g.queue, values, CL_FALSE, CL_MAP_WRITE, 0, 1 << 20, 0, nullptr, nullptr, &error);
        need(error, "map");
    }
    std::printf("in flight\n");
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    std::printf("finished with %d\n", clFinish(g.queue));
}

// A kernel that takes its worker down or never ends. The standard's errors are expected, and soon: the exit
// status says whether one came. Then the program tries once more from the beginning, as a careful program
// may.
void hostile(const std::string& how) {
    gpu g;
    cl_kernel kernel;
    cl_mem values = g.buffer(4096);
    const cl_uint zero = 0;
    need(clEnqueueFillBuffer(g.queue, values, &zero, sizeof zero, 0, 4096, 0, nullptr, nullptr), "fill");
    need(clFinish(g.queue), "clFinish before");
    if (how == "trap")
        kernel = g.kernel(g.build(trap_source), "trap");
    else if (how == "endless")
        kernel = g.kernel(g.build(source), "endless");
    else
        kernel = g.kernel(g.build(source), how == "wild-read" ? "wild_read" : "wild_write");
    argument(kernel, 0, values);
    if (how == "wild-read" || how == "wild-write")
        argument(kernel, 1, cl_ulong{0x10});
    const std::size_t one = 1;
    cl_event event = nullptr;
    cl_int error = clEnqueueNDRangeKernel(g.queue, kernel, 1, nullptr, &one, nullptr, 0, nullptr, &event);
    std::printf("launch: %d\n", error);
    if (error == CL_SUCCESS) {
        const cl_int waited = clWaitForEvents(1, &event);
        cl_int status = 0;
        const cl_int asked =
            clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr);
        std::printf("wait: %d, status of the event: %d (%d)\n", waited, status, asked);
        if (waited == CL_SUCCESS || (asked == CL_SUCCESS && status >= 0))
            fail("the launch is said to have worked");
    }
    error = clFinish(g.queue);
    std::vector<char> data(4096);
    const cl_int read =
        clEnqueueReadBuffer(g.queue, values, CL_TRUE, 0, 4096, data.data(), 0, nullptr, nullptr);
    std::printf("finish: %d, read: %d\n", error, read);
    if (read == CL_SUCCESS)
        fail("the lost buffer can be read");
    std::fflush(stdout);
}

// More than the device may give: the error of the standard, and the program goes on.
void too_much_memory() {
    gpu g;
    cl_ulong most = 0;
    need(clGetDeviceInfo(g.device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof most, &most, nullptr), "max alloc");
    cl_int error = CL_SUCCESS;
    if (clCreateBuffer(g.context, CL_MEM_READ_WRITE, most + 1, nullptr, &error) ||
        error != CL_INVALID_BUFFER_SIZE)
        fail("a buffer larger than CL_DEVICE_MAX_MEM_ALLOC_SIZE", error);
    const cl_uint one = 1;
    std::vector<cl_mem> all;
    for (int i = 0; i < 100000; ++i) {
        cl_mem made = clCreateBuffer(g.context, CL_MEM_READ_WRITE, 64 << 20, nullptr, &error);
        if (error == CL_SUCCESS) // memory may be taken at first use only
            error = clEnqueueFillBuffer(g.queue, made, &one, sizeof one, 0, 64, 0, nullptr, nullptr);
        if (error == CL_SUCCESS)
            error = clFinish(g.queue);
        if (error != CL_SUCCESS) {
            std::printf("after %zu buffers of 64 MiB: error %d\n", all.size(), error);
            if (error != CL_MEM_OBJECT_ALLOCATION_FAILURE && error != CL_OUT_OF_RESOURCES &&
                error != CL_OUT_OF_HOST_MEMORY)
                fail("not an error about memory", error);
            return;
        }
        all.push_back(made);
    }
    fail("no limit in sight");
}

} // namespace

int main(int argc, char** argv) {
    const std::string what = argc > 1 ? argv[1] : "";
    const double number = argc > 2 ? std::strtod(argv[2], nullptr) : 0;
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    if (what == "add")
        add_vectors(number > 0 ? static_cast<std::size_t>(number) : 1000);
    else if (what == "churn")
        churn(number, argc > 3 ? argv[3] : nullptr);
    else if (what == "pulse")
        pulse(number, argc > 3 ? argv[3] : nullptr, argc > 4 ? std::strtoul(argv[4], nullptr, 10) : 64);
    else if (what == "builds")
        build_programs(number, argc > 3 ? argv[3] : nullptr,
                       argc > 4 ? std::strtoul(argv[4], nullptr, 10) : 100);
    else if (what == "busy")
        keep_busy(number, argc > 3 ? argv[3] : nullptr, argc > 4 ? std::strtod(argv[4], nullptr) : 4);
    else if (what == "fill")
        fill_often(static_cast<int>(number));
    else if (what == "traced")
        store_traced(number, argc > 3 ? argv[3] : nullptr);
    else if (what == "await-store")
        await_store();
    else if (what == "address")
        keep_address(number, argc > 3 ? argv[3] : nullptr);
    else if (what == "printf")
        print_from_kernel(static_cast<int>(number));
    else if (what == "nonsense")
        build_nonsense();
    else if (what == "in-flight")
        leave_in_flight(number, false);
    else if (what == "mapped")
        leave_in_flight(number, true);
    else if (what == "too-much-memory")
        too_much_memory();
    else if (what == "trap" || what == "endless" || what == "wild-write" || what == "wild-read")
        hostile(what);
    else
        fail("usage: cl_job add N | churn SECONDS [STOP_FILE] | fill TIMES | pulse SECONDS [STOP_FILE [MIB]] "
             "| builds SECONDS [STOP_FILE [LIVE]] | busy SECONDS [STOP_FILE [MS]] | traced "
             "SECONDS "
             "[STOP_FILE] | await-store | address SECONDS [STOP_FILE] | printf NUMBER | nonsense | in-flight "
             "SECONDS | "
             "mapped "
             "SECONDS | too-much-memory | trap | endless | wild-write | wild-read");
    return 0;
}
