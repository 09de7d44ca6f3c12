// SPDX-License-Identifier: GPL-2.0-or-later
// A guest that opens and closes files starts workers at a bounded rate.
#include "core/device.hpp"

#include <poll.h>

#include <string>

#include <gtest/gtest.h>

#include "core/device_test_helpers.hpp"
#include "core/limits.hpp"
#include "core/worker_starts.hpp"

namespace kagemusha::core {
namespace {

using namespace codec;
using namespace testing;

TEST(device, a_guest_that_opens_and_closes_starts_workers_at_a_rate) {
    device_harness h([](auto& c) {
        c.worker_start_burst = 2;
        c.worker_starts_per_second = 10;
    });
    const auto context_in = [&](std::uint32_t file) {
        return h.submit(file, [](auto& b) { b.create_context(context); });
    };
    set_up(h, 1);
    for (int round = 0; round < 100; ++round) {
        h.open(2);
        context_in(2);
        h.close(2);
        EXPECT_EQ(h.answers.back().response.status, VGPU_STATUS_OK);
    }
    EXPECT_EQ(h.stats().workers_started, 2u);
    EXPECT_EQ(h.stats().workers_delayed, 99u);
    EXPECT_EQ(h.stats().workers_waiting, 0u);

    h.open(2);
    h.open(3);
    const std::vector<std::uint64_t> waiting{context_in(2), context_in(3),
                                             h.submit(3, [](auto& b) { b.create_queue(queue, context); })};
    EXPECT_EQ(h.stats().workers_waiting, 2u);
    const auto elsewhere = marker(h, 1);
    h.answer_all(1);
    EXPECT_EQ(h.status_of(elsewhere), VGPU_STATUS_OK) << "who has a worker does not wait";
    EXPECT_NE(h.lines.at(0).find("its worker waits for its start"), std::string::npos) << h.lines[0];
    h.ports.clear();
    for (const std::uint32_t next : {2u, 3u}) { // in their order
        h.now_ms += 100;
        pollfd p{h.dev->poll_fd(), POLLIN, 0};
        ASSERT_EQ(poll(&p, 1, 10'000), 1) << "the timer is armed while a file waits";
        h.dispatch();
        ASSERT_EQ(h.ports.size(), next - 1);
        ASSERT_TRUE(h.ports.contains(next));
        EXPECT_FALSE(h.ports[next]->received.empty());
        h.answer_all(next);
    }
    for (const auto token : waiting)
        EXPECT_EQ(h.status_of(token), VGPU_STATUS_OK);
    EXPECT_EQ(h.stats().workers_waiting, 0u);
}

TEST(device, a_start_that_waited_and_fails_is_told) {
    device_harness h([](auto& c) {
        c.worker_start_burst = 1;
        c.worker_starts_per_second = 1000;
    });
    set_up(h, 1);
    h.open(2);
    const auto token = h.submit(2, [](auto& b) { b.create_context(context); });
    h.start_error = "no memory";
    h.now_ms += 1;
    pollfd p{h.dev->poll_fd(), POLLIN, 0};
    ASSERT_EQ(poll(&p, 1, 10'000), 1);
    h.dispatch();
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_LOST);
    ASSERT_EQ(h.records.size(), 1u);
    EXPECT_EQ(testing::as<vgpu_record_lost>(h.records[0]).reason, VGPU_LOST_START);
}

TEST(device, what_waits_for_a_start_is_canceled_by_a_reset) {
    device_harness h([](auto& c) { c.worker_start_burst = 1; });
    set_up(h, 1);
    h.open(2);
    const auto token = h.submit(2, [](auto& b) { b.create_context(context); });
    h.dev->reset();
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_CANCELED);
    EXPECT_EQ(h.stats().workers_waiting, 0u);
}

TEST(device, the_log_of_a_primary_has_waited_there) {
    device_harness h([](auto& c) { c.worker_start_burst = 1; });
    h.from = device::origin::log;
    for (std::uint32_t file = 1; file <= 4; ++file) {
        h.open(file);
        h.submit(file, [](auto& b) { b.create_context(context); });
    }
    EXPECT_EQ(h.stats().workers_started, 4u);
}

TEST(worker_starts, a_burst_and_then_a_rate) {
    worker_starts s(2, 10);
    EXPECT_TRUE(s.ask(1, 5000));
    EXPECT_TRUE(s.ask(2, 5000));
    EXPECT_FALSE(s.ask(3, 5000));
    EXPECT_FALSE(s.ask(4, 5099)) << "in order";
    EXPECT_FALSE(s.due(5099));
    EXPECT_EQ(s.due(5100), 3u);
    EXPECT_FALSE(s.due(5100));
    EXPECT_FALSE(s.ask(5, 5150));
    s.forget(4);
    EXPECT_EQ(s.due(5250), 5u);
    EXPECT_FALSE(s.due(5250)) << "nobody waits";
    EXPECT_TRUE(s.ask(6, UINT64_MAX)) << "no more than the burst, however late";
    EXPECT_TRUE(s.ask(7, UINT64_MAX));
    EXPECT_FALSE(s.ask(8, UINT64_MAX));
}

TEST(worker_starts, any_rate_is_kept_over_time) {
    for (const std::uint32_t per_second : {1u, 3u, 7u, 300u, 1000u}) {
        worker_starts s(2, per_second);
        EXPECT_TRUE(s.ask(1, 0));
        EXPECT_TRUE(s.ask(1, 0));
        std::uint32_t started = 0;
        for (std::uint64_t now = 0; now <= 10'000; now += 1) {
            if (s.waiting() == 0)
                started += s.ask(2, now) ? 1 : 0;
            started += s.due(now) ? 1 : 0;
        }
        EXPECT_EQ(started, 10 * per_second);
    }
}

} // namespace
} // namespace kagemusha::core
