// SPDX-License-Identifier: GPL-2.0-or-later
// pending_events with a runtime whose callbacks come when the test says so: what a real one does seldom, on a
// busy machine.
#include "gpu/opencl/pending_events.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/opencl/opencl_device.hpp"

namespace kagemusha::gpu {
namespace {

cl_int CL_API_CALL still_runs(cl_event, cl_event_info, size_t, void* status, size_t*) {
    *static_cast<cl_int*>(status) = CL_RUNNING;
    return CL_SUCCESS;
}
cl_int CL_API_CALL take_callback(cl_event, cl_int, void(CL_CALLBACK*)(cl_event, cl_int, void*), void*) {
    return CL_SUCCESS;
}

class pending : public ::testing::Test {
protected:
    pending() {
        api.clGetEventInfo = still_runs;
        api.clSetEventCallback = take_callback;
    }

    // An event of this lane, which somebody waits for from now on; its position among all.
    std::size_t add(const pending_events::place& where, std::vector<std::uint64_t> waits = {}) {
        const std::size_t at = events.size();
        events.push_back(std::make_unique<opencl_event>(api, event_handle{}, event_handle{}, nullptr));
        events[at]->stand_at(where, false, std::move(waits));
        named.push_back({this, at});
        EXPECT_EQ(events[at]->notify(&pending::tell, &named[at]), CL_SUCCESS);
        return at;
    }
    void call_back(std::size_t at) {
        pending_events::instance().called_back(events[at]->number(), CL_COMPLETE);
    }

    struct name {
        pending* test;
        std::size_t at;
    };
    static void tell(void* data, std::int32_t status) {
        const name& of = *static_cast<name*>(data);
        EXPECT_EQ(status, CL_COMPLETE);
        const std::lock_guard held(of.test->mutex);
        of.test->told.push_back(of.at);
        of.test->changed.notify_one();
    }

    // What was told, as soon as it is so many. The thread of pending_events tells of an event that it looks
    // at when its callback comes.
    std::vector<std::size_t> wait_reported(std::size_t count) {
        std::unique_lock held(mutex);
        changed.wait(held, [&] { return told.size() >= count; });
        return told;
    }

    opencl_api api;
    std::vector<std::unique_ptr<opencl_event>> events;
    std::deque<name> named; // stay where they are
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::size_t> told; // under the lock
};

constexpr pending_events::place in_order{.lane = 1, .in_order = true};
constexpr pending_events::place out_of_order{.lane = 2};

// With a look at all that wait for each that is told, this takes a quarter of an hour.
TEST_F(pending, a_callback_that_comes_last_of_very_many) {
    constexpr std::size_t count = 200000;
    for (std::size_t at = 0; at < count; ++at)
        add(in_order);
    for (std::size_t at = count - 1; at > 0; --at)
        call_back(at);
    EXPECT_TRUE(wait_reported(0).empty());
    call_back(0);
    const auto order = wait_reported(count);
    ASSERT_EQ(order.size(), count);
    for (std::size_t at = 0; at < count; ++at)
        ASSERT_EQ(order[at], at);
}

TEST_F(pending, what_comes_before_a_barrier_is_told_at_once_and_what_comes_behind_it_after_it) {
    const std::size_t first = add(out_of_order), second = add(out_of_order);
    const std::size_t barrier = add({.lane = 2, .for_all = true, .barrier = true});
    const std::size_t third = add(out_of_order), fourth = add(out_of_order);
    call_back(fourth);
    call_back(second);
    EXPECT_EQ(wait_reported(1), std::vector{second});
    call_back(barrier);
    call_back(third);
    EXPECT_EQ(wait_reported(1), std::vector{second});
    call_back(first);
    auto order = wait_reported(5);
    std::sort(order.begin() + 3, order.end()); // in either order
    EXPECT_EQ(order, (std::vector{second, first, barrier, third, fourth}));
}

TEST_F(pending, what_waits_for_another_lane_holds_up_what_is_behind_it) {
    const std::size_t gate = add(out_of_order);
    const std::size_t waits = add(in_order, {events[gate]->number()}), behind = add(in_order);
    call_back(behind);
    call_back(waits);
    EXPECT_TRUE(wait_reported(0).empty());
    call_back(gate);
    EXPECT_EQ(wait_reported(3), (std::vector{gate, waits, behind}));
}

} // namespace
} // namespace kagemusha::gpu
