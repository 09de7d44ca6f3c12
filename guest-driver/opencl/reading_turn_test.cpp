// SPDX-License-Identifier: GPL-2.0-or-later
//
// Whose turn it is to read what the device tells: the rules, and a driver whose program's threads read.
#include "reading_turn.hpp"

#include "test_fixture.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

namespace kagemusha::opencl {
namespace {

constexpr auto patience = std::chrono::seconds(60);

reading_turn resting() {
    reading_turn turn;
    for (unsigned i = 0; i < reading_turn::calls_before_rest; ++i)
        EXPECT_FALSE(turn.on_enqueued(awaited_by::call));
    EXPECT_TRUE(turn.rest(false));
    return turn;
}

TEST(reading_turn_test, the_keeper_reads_at_first) {
    reading_turn turn;
    EXPECT_FALSE(turn.begin());
    EXPECT_FALSE(turn.rest(false));
    for (unsigned i = 0; i + 1 < reading_turn::calls_before_rest; ++i)
        turn.on_enqueued(awaited_by::call);
    EXPECT_FALSE(turn.rest(false));
    EXPECT_FALSE(turn.begin());
}

TEST(reading_turn_test, after_some_blocking_calls_who_waits_reads_one_at_a_time) {
    reading_turn turn = resting();
    EXPECT_TRUE(turn.begin());
    EXPECT_FALSE(turn.begin());
    EXPECT_FALSE(turn.end(false));
    EXPECT_TRUE(turn.resting());
    EXPECT_TRUE(turn.begin());
    EXPECT_TRUE(turn.end(true)); // somebody else's command
    EXPECT_FALSE(turn.resting());
    EXPECT_FALSE(turn.begin());
}

TEST(reading_turn_test, the_keeper_does_not_rest_while_something_is_pending) {
    reading_turn turn;
    for (unsigned i = 0; i < reading_turn::calls_before_rest; ++i)
        turn.on_enqueued(awaited_by::call);
    EXPECT_FALSE(turn.rest(true));
    EXPECT_TRUE(turn.rest(false));
}

TEST(reading_turn_test, an_event_of_the_programs_wakes_the_keeper) {
    reading_turn turn = resting();
    EXPECT_FALSE(turn.on_enqueued(awaited_by::nobody));
    EXPECT_TRUE(turn.on_enqueued(awaited_by::program));
    EXPECT_FALSE(turn.rest(false)); // from the beginning
    EXPECT_FALSE(turn.on_enqueued(awaited_by::program));
}

TEST(reading_turn_test, who_reads_already_need_not_be_helped) {
    reading_turn turn = resting();
    EXPECT_TRUE(turn.begin());
    EXPECT_FALSE(turn.on_enqueued(awaited_by::program));
    EXPECT_FALSE(turn.wake());
    EXPECT_TRUE(turn.on_rested()); // however long it takes
    EXPECT_TRUE(turn.on_rested());
    EXPECT_TRUE(turn.end(true));
}

TEST(reading_turn_test, a_rest_ends_when_nobody_reads) {
    reading_turn turn = resting();
    EXPECT_TRUE(turn.begin());
    EXPECT_FALSE(turn.end(false));
    EXPECT_TRUE(turn.on_rested());
    EXPECT_FALSE(turn.on_rested());
    EXPECT_FALSE(turn.begin());
}

class reading_test : public driver_test {
protected:
    void SetUp() override {
        driver_test::SetUp();
        buffer = make_buffer(64);
    }
    void TearDown() override {
        cl.clReleaseMemObject(buffer);
        driver_test::TearDown();
    }

    cl_int read() {
        int word = 0;
        return cl.clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof word, &word, 0, nullptr, nullptr);
    }

    // Until this thread reads by itself.
    void read_until_turn() {
        const auto end = std::chrono::steady_clock::now() + patience;
        while (!gpu->has_read(std::this_thread::get_id())) {
            ASSERT_EQ(read(), CL_SUCCESS);
            ASSERT_LT(std::chrono::steady_clock::now(), end) << "the keeper reads all the time";
        }
    }

    cl_mem buffer = nullptr;
};

TEST_F(reading_test, a_thread_that_waits_again_and_again_reads_by_itself) {
    read_until_turn();
    EXPECT_EQ(read(), CL_SUCCESS);
}

TEST_F(reading_test, a_callback_comes_though_nobody_waits) {
    read_until_turn();
    cl_event told = nullptr;
    std::promise<cl_int> promise;
    ASSERT_EQ(cl.clEnqueueMarkerWithWaitList(queue, 0, nullptr, &told), CL_SUCCESS);
    ASSERT_EQ(cl.clSetEventCallback(
                  told, CL_COMPLETE,
                  [](cl_event, cl_int status, void* to) {
                      static_cast<std::promise<cl_int>*>(to)->set_value(status);
                  },
                  &promise),
              CL_SUCCESS);
    ASSERT_EQ(cl.clFlush(queue), CL_SUCCESS);
    auto status = promise.get_future();
    ASSERT_EQ(status.wait_for(patience), std::future_status::ready);
    EXPECT_EQ(status.get(), CL_COMPLETE);
    cl.clReleaseEvent(told);
}

TEST_F(reading_test, an_error_of_a_queue_is_found_without_a_wait) {
    read_until_turn();
    const std::uint64_t id =
        gpu->commands(VGPU_CMD_READ_BUFFER).at(0).as<vgpu_cmd_transfer_buffer>().enqueue.queue;
    gpu->send_queue_error(id, CL_OUT_OF_RESOURCES);
    const auto end = std::chrono::steady_clock::now() + patience;
    cl_int error = CL_SUCCESS;
    while (error == CL_SUCCESS && std::chrono::steady_clock::now() < end)
        error = cl.clFinish(queue); // behind a blocking read it waits for nothing
    EXPECT_EQ(error, CL_OUT_OF_RESOURCES);
}

TEST_F(reading_test, a_thread_that_reads_is_told_of_the_loss) {
    read_until_turn();
    gpu->hold_completions();
    auto result = std::async(std::launch::async, [this] { return read(); });
    gpu->lose();
    EXPECT_NE(result.get(), CL_SUCCESS);
}

TEST_F(reading_test, a_thread_that_reads_comes_back_when_the_connection_closes) {
    read_until_turn();
    gpu->hold_completions();
    auto result = std::async(std::launch::async, [this] { return read(); });
    while (gpu->commands(VGPU_CMD_READ_BUFFER).empty())
        std::this_thread::yield();
    connection::current(test_device::first_name)->close();
    EXPECT_NE(result.get(), CL_SUCCESS);
}

TEST_F(reading_test, threads_that_wait_at_the_same_time_all_come_back) {
    constexpr int threads = 4, calls = 2000;
    std::array<cl_command_queue, threads> queues{};
    cl_int error = CL_SUCCESS;
    for (cl_command_queue& one : queues)
        one = cl.clCreateCommandQueue(context, device, 0, &error);
    std::atomic<int> wrong = 0;
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t) {
        all.emplace_back([&, t] {
            for (int i = 0; i < calls; ++i) {
                int word = 0;
                cl_event event = nullptr;
                const bool blocking = i % 16 != 15;
                wrong += cl.clEnqueueReadBuffer(queues[t], buffer, blocking, 0, sizeof word, &word, 0,
                                                nullptr, blocking ? nullptr : &event) != CL_SUCCESS;
                if (event) {
                    wrong += cl.clWaitForEvents(1, &event) != CL_SUCCESS;
                    cl.clReleaseEvent(event);
                }
            }
        });
    }
    for (std::thread& one : all)
        one.join();
    EXPECT_EQ(wrong, 0);
    for (cl_command_queue one : queues)
        cl.clReleaseCommandQueue(one);
}

} // namespace
} // namespace kagemusha::opencl
