// SPDX-License-Identifier: GPL-2.0-or-later
//
// Events: states, callbacks, user events, wait lists, profiling.
#include "test_fixture.hpp"

#include <atomic>

namespace kagemusha::opencl {
namespace {

class event_test : public driver_test {
protected:
    struct seen {
        std::atomic<int> count{0};
        std::mutex mutex;
        std::vector<cl_int> statuses;
    };

    static void CL_CALLBACK note(cl_event, cl_int status, void* data) {
        auto* to = static_cast<seen*>(data);
        {
            const std::lock_guard held(to->mutex);
            to->statuses.push_back(status);
        }
        ++to->count;
        to->count.notify_all();
    }

    static void wait_for(seen& what, int count) {
        for (int now = what.count; now < count; now = what.count)
            what.count.wait(now);
    }

    cl_event marker(cl_uint count = 0, const cl_event* list = nullptr) {
        cl_event made = nullptr;
        EXPECT_EQ(cl.clEnqueueMarkerWithWaitList(queue, count, list, &made), CL_SUCCESS);
        return made;
    }
};

TEST_F(event_test, goes_from_queued_to_submitted_to_complete) {
    gpu->hold_completions();
    cl_event one = marker();
    EXPECT_GT(status_of(one), CL_COMPLETE); // asking sends what was left lying
    EXPECT_EQ(status_of(one), CL_SUBMITTED);
    gpu->release_completions();
    EXPECT_EQ(cl.clWaitForEvents(1, &one), CL_SUCCESS);
    EXPECT_EQ(status_of(one), CL_COMPLETE);
    cl.clReleaseEvent(one);
}

TEST_F(event_test, a_marker_that_names_finished_events_names_one_to_the_device) {
    // With an empty list it would wait for everything before it.
    cl_event done[2] = {marker(), marker()};
    ASSERT_EQ(cl.clWaitForEvents(2, done), CL_SUCCESS);
    gpu->forget();
    cl_event after = marker(2, done);
    EXPECT_EQ(cl.clEnqueueBarrierWithWaitList(queue, 2, done, nullptr), CL_SUCCESS);
    EXPECT_EQ(cl.clFinish(queue), CL_SUCCESS);
    const auto markers = gpu->commands(VGPU_CMD_MARKER), barriers = gpu->commands(VGPU_CMD_BARRIER);
    ASSERT_EQ(markers.size(), 2u); // the second one is clFinish's
    ASSERT_EQ(barriers.size(), 1u);
    EXPECT_EQ(markers[0].as<vgpu_cmd_sync>().enqueue.wait_count, 1u);
    EXPECT_EQ(barriers[0].as<vgpu_cmd_sync>().enqueue.wait_count, 1u);
    EXPECT_EQ(markers[1].as<vgpu_cmd_sync>().enqueue.wait_count, 0u);
    for (cl_event one : {done[0], done[1], after})
        cl.clReleaseEvent(one);
}

TEST_F(event_test, callbacks_of_all_states_run_in_order) {
    gpu->hold_completions();
    cl_event one = marker();
    seen what;
    ASSERT_EQ(cl.clSetEventCallback(one, CL_COMPLETE, note, &what), CL_SUCCESS);
    ASSERT_EQ(cl.clSetEventCallback(one, CL_RUNNING, note, &what), CL_SUCCESS);
    ASSERT_EQ(cl.clSetEventCallback(one, CL_SUBMITTED, note, &what), CL_SUCCESS);
    EXPECT_EQ(cl.clSetEventCallback(one, CL_QUEUED, note, &what), CL_INVALID_VALUE);
    EXPECT_EQ(cl.clSetEventCallback(one, CL_COMPLETE, nullptr, &what), CL_INVALID_VALUE);
    gpu->release_completions();
    wait_for(what, 3);
    const std::lock_guard held(what.mutex);
    EXPECT_EQ(what.statuses, (std::vector<cl_int>{CL_SUBMITTED, CL_RUNNING, CL_COMPLETE}));
    cl.clReleaseEvent(one);
}

TEST_F(event_test, a_callback_may_wait_for_the_device) {
    struct shared {
        cl_command_queue queue;
        std::atomic<int> result{1};
    } data{queue, {}};
    data.result = 1;
    cl_event one = marker();
    ASSERT_EQ(cl.clSetEventCallback(
                  one, CL_COMPLETE,
                  [](cl_event, cl_int, void* user) {
                      auto* to = static_cast<shared*>(user);
                      to->result = dispatch_table.clFinish(to->queue);
                      to->result.notify_all();
                  },
                  &data),
              CL_SUCCESS);
    data.result.wait(1);
    EXPECT_EQ(data.result, CL_SUCCESS);
    cl.clReleaseEvent(one);
}

TEST_F(event_test, a_user_event_is_set_once) {
    cl_int error = CL_SUCCESS;
    cl_event gate = cl.clCreateUserEvent(context, &error);
    ASSERT_EQ(error, CL_SUCCESS);
    EXPECT_EQ(status_of(gate), CL_SUBMITTED);
    EXPECT_EQ(cl.clSetUserEventStatus(gate, CL_RUNNING), CL_INVALID_VALUE);
    EXPECT_EQ(cl.clSetUserEventStatus(gate, CL_COMPLETE), CL_SUCCESS);
    EXPECT_EQ(cl.clSetUserEventStatus(gate, CL_COMPLETE), CL_INVALID_OPERATION);
    EXPECT_EQ(status_of(gate), CL_COMPLETE);
    cl_event other = marker();
    EXPECT_EQ(cl.clSetUserEventStatus(other, CL_COMPLETE), CL_INVALID_EVENT);
    cl.clReleaseEvent(gate);
    cl.clReleaseEvent(other);
}

TEST_F(event_test, a_user_event_gets_past_a_full_device) {
    cl_int error = CL_SUCCESS;
    cl_event gate = cl.clCreateUserEvent(context, &error);
    cl_event held = marker(1, &gate);
    gpu->refuse_requests(3);
    ASSERT_EQ(cl.clSetUserEventStatus(gate, CL_COMPLETE), CL_SUCCESS);
    EXPECT_EQ(cl.clWaitForEvents(1, &held), CL_SUCCESS);
    cl.clReleaseEvent(gate);
    cl.clReleaseEvent(held);
}

TEST_F(event_test, calls_are_answered_while_a_transfer_waits_for_a_user_event) {
    cl_int error = CL_SUCCESS;
    cl_mem buffer = make_buffer(1 << 16);
    std::vector<char> data(1 << 16);
    cl_event gate = cl.clCreateUserEvent(context, &error), done = nullptr;
    ASSERT_EQ(cl.clEnqueueReadBuffer(queue, buffer, CL_FALSE, 0, data.size(), data.data(), 1, &gate, &done),
              CL_SUCCESS);
    cl_mem second = make_buffer(64);
    // They must not share a request: its answer comes when the transfer is over.
    const auto reads = gpu->commands(VGPU_CMD_READ_BUFFER), creates = gpu->commands(VGPU_CMD_CREATE_BUFFER);
    ASSERT_EQ(reads.size(), 1u);
    EXPECT_NE(reads[0].request, creates.back().request);
    ASSERT_EQ(cl.clSetUserEventStatus(gate, CL_COMPLETE), CL_SUCCESS);
    EXPECT_EQ(cl.clWaitForEvents(1, &done), CL_SUCCESS);
    cl.clReleaseEvent(gate);
    cl.clReleaseEvent(done);
    cl.clReleaseMemObject(buffer);
    cl.clReleaseMemObject(second);
}

TEST_F(event_test, a_failed_user_event_fails_what_waits) {
    cl_int error = CL_SUCCESS;
    cl_event gate = cl.clCreateUserEvent(context, &error);
    cl_event dependent = marker(1, &gate);
    seen what;
    ASSERT_EQ(cl.clSetEventCallback(dependent, CL_COMPLETE, note, &what), CL_SUCCESS);
    ASSERT_EQ(cl.clSetUserEventStatus(gate, -7), CL_SUCCESS);
    EXPECT_EQ(cl.clWaitForEvents(1, &dependent), CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    EXPECT_EQ(status_of(dependent), CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    wait_for(what, 1);
    const std::lock_guard held(what.mutex);
    EXPECT_EQ(what.statuses[0], CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    cl.clReleaseEvent(gate);
    cl.clReleaseEvent(dependent);
}

TEST_F(event_test, wait_lists_are_forwarded_without_what_is_complete) {
    cl_event done = marker();
    ASSERT_EQ(cl.clWaitForEvents(1, &done), CL_SUCCESS);
    gpu->hold_completions();
    cl_event open = marker();
    const cl_event both[] = {done, open};
    gpu->forget();
    cl_event last = marker(2, both);
    ASSERT_EQ(cl.clFlush(queue), CL_SUCCESS);
    EXPECT_EQ(gpu->commands(VGPU_CMD_MARKER).back().as<vgpu_cmd_sync>().enqueue.wait_count, 1u);
    gpu->release_completions();
    EXPECT_EQ(cl.clWaitForEvents(1, &last), CL_SUCCESS);
    for (cl_event one : {done, open, last})
        cl.clReleaseEvent(one);
}

TEST_F(event_test, a_wait_list_longer_than_a_command_is_split) {
    gpu->hold_completions();
    std::vector<cl_event> many;
    for (int i = 0; i < 1500; ++i)
        many.push_back(marker());
    gpu->release_completions();
    gpu->hold_completions();
    cl_event last = nullptr;
    ASSERT_EQ(cl.clEnqueueMarkerWithWaitList(queue, static_cast<cl_uint>(many.size()), many.data(), &last),
              CL_SUCCESS);
    gpu->release_completions();
    EXPECT_EQ(cl.clWaitForEvents(1, &last), CL_SUCCESS);
    cl.clReleaseEvent(last);
    for (cl_event one : many)
        cl.clReleaseEvent(one);
}

TEST_F(event_test, events_of_an_in_order_queue_complete_in_order) {
    gpu->hold_completions();
    cl_event first = marker(), second = marker(), third = marker();
    ASSERT_EQ(cl.clFlush(queue), CL_SUCCESS);
    gpu->release_completions_backwards();
    ASSERT_EQ(cl.clWaitForEvents(1, &third), CL_SUCCESS);
    EXPECT_EQ(status_of(first), CL_COMPLETE);
    EXPECT_EQ(status_of(second), CL_COMPLETE);
    for (cl_event one : {first, second, third})
        cl.clReleaseEvent(one);
}

TEST_F(event_test, profiling_times_are_the_devices) {
    cl_event one = marker();
    cl_ulong time = 0;
    ASSERT_EQ(cl.clWaitForEvents(1, &one), CL_SUCCESS);
    ASSERT_EQ(cl.clGetEventProfilingInfo(one, CL_PROFILING_COMMAND_START, sizeof time, &time, nullptr),
              CL_SUCCESS);
    EXPECT_EQ(time, 3u);
    ASSERT_EQ(cl.clGetEventProfilingInfo(one, CL_PROFILING_COMMAND_END, sizeof time, &time, nullptr),
              CL_SUCCESS);
    EXPECT_EQ(time, 4u);
    cl.clReleaseEvent(one);
}

TEST_F(event_test, is_destroyed_on_the_device_when_released_and_over) {
    gpu->hold_completions();
    cl_event one = marker();
    ASSERT_EQ(cl.clFlush(queue), CL_SUCCESS);
    ASSERT_EQ(cl.clReleaseEvent(one), CL_SUCCESS);
    ASSERT_EQ(cl.clFlush(queue), CL_SUCCESS);
    EXPECT_EQ(destroyed(VGPU_OBJECT_EVENT), 0u); // it may still complete
    gpu->release_completions();
    ASSERT_EQ(cl.clFinish(queue), CL_SUCCESS);
    ASSERT_EQ(cl.clFinish(queue), CL_SUCCESS);
    EXPECT_GE(destroyed(VGPU_OBJECT_EVENT), 1u);
}

} // namespace
} // namespace kagemusha::opencl
