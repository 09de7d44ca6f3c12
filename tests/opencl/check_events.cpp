// SPDX-License-Identifier: GPL-2.0-or-later
//
// Events, user events, callbacks, queues of both kinds, profiling, several threads and contexts.
#include "check.hpp"

#include <atomic>
#include <thread>

namespace check {
namespace {

const char* const increment_source =
    "kernel void increment(global int* data) { data[get_global_id(0)] += 1; }";

cl_int status_of(cl_event event) {
    cl_int status = -999;
    CHECK_CL(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr));
    return status;
}

struct seen_callbacks {
    std::atomic<int> count{0};
    std::atomic<cl_int> last{99};
};

void CL_CALLBACK count_callback(cl_event, cl_int status, void* data) {
    auto* seen = static_cast<seen_callbacks*>(data);
    seen->last = status;
    ++seen->count;
    seen->count.notify_all();
}

void wait_for_callbacks(seen_callbacks& seen, int count) {
    for (int now = seen.count; now < count; now = seen.count)
        seen.count.wait(now);
}

} // namespace

void events(const setup& s) {
    cl_mem buffer = buffer_of(s, counting(64));
    cl_int error = CL_SUCCESS;
    int value = 77;
    cl_event written = nullptr;
    CHECK_CL(clEnqueueWriteBuffer(s.queue, buffer, CL_FALSE, 0, sizeof value, &value, 0, nullptr, &written));
    CHECK_CL(clWaitForEvents(1, &written));
    CHECK(status_of(written) == CL_COMPLETE);
    cl_command_type type = 0;
    CHECK_CL(clGetEventInfo(written, CL_EVENT_COMMAND_TYPE, sizeof type, &type, nullptr));
    CHECK(type == CL_COMMAND_WRITE_BUFFER);
    cl_command_queue queue = nullptr;
    CHECK_CL(clGetEventInfo(written, CL_EVENT_COMMAND_QUEUE, sizeof queue, &queue, nullptr));
    CHECK(queue == s.queue);
    cl_ulong times[4] = {};
    for (int i = 0; i < 4; ++i)
        CHECK_CL(clGetEventProfilingInfo(written,
                                         CL_PROFILING_COMMAND_QUEUED + static_cast<cl_profiling_info>(i),
                                         sizeof times[i], &times[i], nullptr));
    CHECK(times[0] <= times[1] && times[1] <= times[2] && times[2] <= times[3] && times[3] > 0);
    CHECK_CL(clReleaseEvent(written));

    // A user event holds back what waits for it.
    cl_event gate = clCreateUserEvent(s.context, &error);
    CHECK_CL(error);
    CHECK(status_of(gate) == CL_SUBMITTED);
    cl_event held = nullptr;
    int back = 0;
    CHECK_CL(clEnqueueReadBuffer(s.queue, buffer, CL_FALSE, 0, sizeof back, &back, 1, &gate, &held));
    CHECK_CL(clFlush(s.queue));
    CHECK(status_of(held) > CL_COMPLETE && back == 0);
    // Calls that need an answer must get one meanwhile.
    cl_mem meanwhile = clCreateBuffer(s.context, CL_MEM_READ_WRITE, 64, nullptr, &error);
    CHECK_CL(error);
    CHECK_CL(clReleaseMemObject(meanwhile));
    seen_callbacks seen;
    CHECK_CL(clSetEventCallback(held, CL_COMPLETE, count_callback, &seen));
    CHECK_CL(clSetEventCallback(held, CL_RUNNING, count_callback, &seen));
    CHECK_CL(clSetEventCallback(held, CL_SUBMITTED, count_callback, &seen));
    CHECK_CL(clSetUserEventStatus(gate, CL_COMPLETE));
    // NVIDIA: does nothing and succeeds.
    const cl_int again = clSetUserEventStatus(gate, CL_COMPLETE);
    CHECK_BUT_FOR(s, "NVIDIA", again == CL_INVALID_OPERATION);
    CHECK_CL(clWaitForEvents(1, &held));
    CHECK(back == 77);
    wait_for_callbacks(seen, 3);
    CHECK(seen.count == 3);
    CHECK_CL(clReleaseEvent(held));
    CHECK_CL(clReleaseEvent(gate));

    // A callback on an event that is complete already.
    cl_event marker = nullptr;
    CHECK_CL(clEnqueueMarkerWithWaitList(s.queue, 0, nullptr, &marker));
    CHECK_CL(clFinish(s.queue));
    seen_callbacks late;
    CHECK_CL(clSetEventCallback(marker, CL_COMPLETE, count_callback, &late));
    wait_for_callbacks(late, 1);
    CHECK(late.last == CL_COMPLETE);
    CHECK_CL(clReleaseEvent(marker));

    // A polling program gets on without a flush.
    cl_event polled = nullptr;
    CHECK_CL(clEnqueueWriteBuffer(s.queue, buffer, CL_FALSE, 0, sizeof value, &value, 0, nullptr, &polled));
    cl_int status = CL_QUEUED;
    while (status > CL_COMPLETE)
        if (clGetEventInfo(polled, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr) !=
            CL_SUCCESS)
            break;
    CHECK(status == CL_COMPLETE);
    CHECK_CL(clReleaseEvent(polled));

    // A failed user event fails what waits for it.
    cl_command_queue own = clCreateCommandQueue(s.context, s.device, 0, &error);
    CHECK_CL(error);
    cl_event bad = clCreateUserEvent(s.context, &error), dependent = nullptr;
    CHECK_CL(clEnqueueMarkerWithWaitList(own, 1, &bad, &dependent));
    CHECK_CL(clFlush(own));
    CHECK_CL(clSetUserEventStatus(bad, -5));
    CHECK_ERROR(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, clWaitForEvents(1, &dependent));
    CHECK(status_of(dependent) < 0);
    CHECK_CL(clReleaseEvent(bad));
    CHECK_CL(clReleaseEvent(dependent));
    CHECK_CL(clReleaseCommandQueue(own));
    CHECK_CL(clReleaseMemObject(buffer));
}

void queues(const setup& s) {
    cl_int error = CL_SUCCESS;
    cl_program program = build(s, increment_source);
    if (!program)
        return;
    cl_kernel kernel = kernel_of(program, "increment");
    const std::size_t count = 256;

    // Many launches in order.
    cl_mem data = buffer_of(s, std::vector<int>(count, 0));
    CHECK_CL(clSetKernelArg(kernel, 0, sizeof data, &data));
    bool enqueued = true;
    for (int i = 0; i < 500; ++i)
        enqueued = enqueued && clEnqueueNDRangeKernel(s.queue, kernel, 1, nullptr, &count, nullptr, 0,
                                                      nullptr, nullptr) == CL_SUCCESS;
    CHECK(enqueued);
    CHECK(content_of(s, data, count)[count - 1] == 500);

    // Out of order, with a chain of events.
    const auto supported = device_number<cl_command_queue_properties>(s, CL_DEVICE_QUEUE_ON_HOST_PROPERTIES);
    if (supported & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) {
        const cl_queue_properties properties[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE,
                                                  0};
        cl_command_queue loose = clCreateCommandQueueWithProperties(s.context, s.device, properties, &error);
        CHECK_CL(error);
        std::vector<cl_event> chain(20);
        bool chained = true;
        for (std::size_t i = 0; i < chain.size(); ++i)
            chained = chained && clEnqueueNDRangeKernel(loose, kernel, 1, nullptr, &count, nullptr, i ? 1 : 0,
                                                        i ? &chain[i - 1] : nullptr, &chain[i]) == CL_SUCCESS;
        CHECK(chained);
        int last = 0;
        CHECK_CL(clEnqueueReadBuffer(loose, data, CL_TRUE, 0, sizeof last, &last, 1, &chain.back(), nullptr));
        CHECK(last == 520);
        for (cl_event one : chain)
            clReleaseEvent(one);
        // A barrier orders what comes after it.
        CHECK_CL(clEnqueueNDRangeKernel(loose, kernel, 1, nullptr, &count, nullptr, 0, nullptr, nullptr));
        CHECK_CL(clEnqueueBarrierWithWaitList(loose, 0, nullptr, nullptr));
        CHECK_CL(clEnqueueReadBuffer(loose, data, CL_TRUE, 0, sizeof last, &last, 0, nullptr, nullptr));
        CHECK(last == 521);
        CHECK_CL(clReleaseCommandQueue(loose));
    } else {
        skip("out-of-order queues", "the device has none");
    }

    // An event of one queue in the wait list of another.
    cl_command_queue second = clCreateCommandQueue(s.context, s.device, 0, &error);
    CHECK_CL(error);
    cl_event first_done = nullptr;
    const int start = 1000;
    CHECK_CL(clEnqueueFillBuffer(s.queue, data, &start, sizeof start, 0, count * sizeof(int), 0, nullptr,
                                 &first_done));
    CHECK_CL(clFlush(s.queue));
    CHECK_CL(clEnqueueNDRangeKernel(second, kernel, 1, nullptr, &count, nullptr, 1, &first_done, nullptr));
    CHECK_CL(clFinish(second));
    CHECK(content_of(s, data, 1)[0] == 1001);
    cl_ulong time = 0;
    cl_event unprofiled = nullptr;
    CHECK_CL(clEnqueueMarkerWithWaitList(second, 0, nullptr, &unprofiled));
    CHECK_CL(clFinish(second));
    CHECK_ERROR(CL_PROFILING_INFO_NOT_AVAILABLE,
                clGetEventProfilingInfo(unprofiled, CL_PROFILING_COMMAND_END, sizeof time, &time, nullptr));
    CHECK_CL(clReleaseEvent(unprofiled));
    CHECK_CL(clReleaseEvent(first_done));
    CHECK_CL(clReleaseCommandQueue(second));
    CHECK_CL(clReleaseMemObject(data));
    CHECK_CL(clReleaseKernel(kernel));
    CHECK_CL(clReleaseProgram(program));
}

// What is stored while one queue waits must not wait with it: commands of the queue that mapped come behind
// the unmap, and nothing else.
void maps_beside_a_held_queue(const setup& s) {
    const std::size_t count = 5000;
    cl_int error = CL_SUCCESS;
    cl_event gate = clCreateUserEvent(s.context, &error);
    CHECK_CL(error);
    cl_command_queue held = clCreateCommandQueue(s.context, s.device, 0, &error);
    CHECK_CL(error);
    CHECK_CL(clEnqueueMarkerWithWaitList(held, 1, &gate, nullptr));
    CHECK_CL(clFlush(held));

    cl_mem buffer = buffer_of(s, counting(count), CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR);
    auto* const view =
        static_cast<int*>(clEnqueueMapBuffer(s.queue, buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0,
                                             count * sizeof(int), 0, nullptr, nullptr, &error));
    CHECK_CL(error);
    std::vector<int> expected = counting(count);
    view[17] = expected[17] = -1;
    CHECK_CL(clEnqueueMarkerWithWaitList(held, 0, nullptr, nullptr));
    CHECK_CL(clFlush(held));
    view[4000] = expected[4000] = -2;
    CHECK_CL(clEnqueueUnmapMemObject(s.queue, buffer, view, 0, nullptr, nullptr));
    CHECK(content_of(s, buffer, count) == expected);

    CHECK_CL(clSetUserEventStatus(gate, CL_COMPLETE));
    CHECK_CL(clFinish(held));
    CHECK(content_of(s, buffer, count) == expected);
    CHECK_CL(clReleaseEvent(gate));
    CHECK_CL(clReleaseCommandQueue(held));
    CHECK_CL(clReleaseMemObject(buffer));
}

namespace {

// One thread's work, in a context of its own or in the shared one.
void worker(const setup& shared, bool own_context, std::atomic<int>& correct) {
    setup s = shared;
    cl_int error = CL_SUCCESS;
    if (own_context)
        s.context = clCreateContext(nullptr, 1, &s.device, nullptr, nullptr, &error);
    s.queue = clCreateCommandQueue(s.context, s.device, 0, &error);
    const char* text = increment_source;
    cl_program program = clCreateProgramWithSource(s.context, 1, &text, nullptr, &error);
    error = clBuildProgram(program, 1, &s.device, "", nullptr, nullptr);
    cl_kernel kernel = clCreateKernel(program, "increment", &error);
    const std::size_t count = 128;
    std::vector<int> data(count, 3);
    bool good = error == CL_SUCCESS;
    for (int round = 0; good && round < 20; ++round) {
        cl_mem buffer =
            clCreateBuffer(s.context, CL_MEM_COPY_HOST_PTR, count * sizeof(int), data.data(), &error);
        good = error == CL_SUCCESS && clSetKernelArg(kernel, 0, sizeof buffer, &buffer) == CL_SUCCESS;
        cl_event done = nullptr;
        for (int i = 0; good && i < 10; ++i)
            good = clEnqueueNDRangeKernel(s.queue, kernel, 1, nullptr, &count, nullptr, 0, nullptr,
                                          nullptr) == CL_SUCCESS;
        std::vector<int> result(count);
        good = good &&
               clEnqueueReadBuffer(s.queue, buffer, CL_FALSE, 0, count * sizeof(int), result.data(), 0,
                                   nullptr, &done) == CL_SUCCESS &&
               clWaitForEvents(1, &done) == CL_SUCCESS && result == std::vector<int>(count, 13);
        if (done)
            clReleaseEvent(done);
        clReleaseMemObject(buffer);
    }
    clReleaseKernel(kernel);
    clReleaseProgram(program);
    clReleaseCommandQueue(s.queue);
    if (own_context)
        clReleaseContext(s.context);
    if (good)
        ++correct;
}

} // namespace

void threads(const setup& s) {
    std::atomic<int> correct{0};
    std::vector<std::thread> running;
    for (int i = 0; i < 8; ++i)
        running.emplace_back([&, i] { worker(s, i % 2 == 0, correct); });
    for (std::thread& one : running)
        one.join();
    CHECK(correct == 8);
}

} // namespace check
