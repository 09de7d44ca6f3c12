// SPDX-License-Identifier: GPL-2.0-or-later
// A request waits for the events that it awaits.
#include "core/device.hpp"

#include <gtest/gtest.h>

#include "core/device_test_helpers.hpp"
#include "core/limits.hpp"

namespace kagemusha::core {
namespace {

using namespace codec;
using namespace testing;

TEST(device, a_request_waits_for_the_events_that_it_awaits_and_what_is_behind_it_too) {
    device_harness h;
    set_up(h, 1);
    h.from = device::origin::log;
    h.answer_all(1);
    testing::scripted_port& port = *h.ports.at(1);
    h.submit(
        1, [](auto& b) { b.marker({queue, 10, {}}).marker({queue, 11, {}}).destroy(VGPU_OBJECT_EVENT, 11); });
    h.answer_all(1);
    // 99 names nothing; 11 was destroyed, and its command has not completed.
    h.submit(1, [](auto& b) { b.await(std::array<std::uint64_t, 3>{10, 99, 11}).marker({queue, 12, {}}); });
    const auto behind = h.submit(1, [](auto& b) { b.flush(queue); });
    h.dispatch();
    EXPECT_TRUE(port.received.empty());
    port.record(completion(11));
    h.dispatch();
    EXPECT_TRUE(port.received.empty());
    port.record(completion(10));
    h.dispatch();
    ASSERT_EQ(port.received.size(), 2u);
    EXPECT_EQ(port.received.front().opcodes, std::vector<std::uint16_t>{VGPU_CMD_MARKER})
        << "the worker has nothing to do with the rest";
    h.answer_all(1);
    EXPECT_EQ(h.status_of(behind), VGPU_STATUS_OK);
}

TEST(device, what_completes_between_await_events_and_the_request_holds_nothing_up) {
    device_harness h;
    set_up(h, 1);
    h.from = device::origin::log;
    h.answer_all(1);
    testing::scripted_port& port = *h.ports.at(1);
    marker(h, 1, 10);
    marker(h, 1, 11);
    h.answer_all(1);
    h.dev->await_events(1, std::array<guest_id, 2>{10, 11});
    port.record(completion(10));
    port.record(completion(11));
    h.dispatch();
    marker(h, 1);
    marker(h, 1);
    EXPECT_EQ(port.received.size(), 2u);
}

TEST(device, an_awaited_event_is_not_mistaken_for_a_later_one_with_its_id) {
    device_harness h;
    set_up(h, 1);
    h.from = device::origin::log;
    h.answer_all(1);
    testing::scripted_port& port = *h.ports.at(1);
    h.submit(1, [](auto& b) { b.marker({queue, 10, {}}).marker({queue, 11, {}}); });
    h.answer_all(1);
    h.submit(1, [](auto& b) { b.await(std::array<std::uint64_t, 2>{10, 11}).flush(queue); });
    port.record(completion(10));
    h.dispatch();
    h.submit(1, [](auto& b) { b.destroy(VGPU_OBJECT_EVENT, 10).marker({queue, 10, {}}); });
    EXPECT_TRUE(port.received.empty());
    port.record(completion(11));
    h.dispatch();
    EXPECT_EQ(port.received.size(), 2u);
}

TEST(device, an_await_alone_counts_for_the_next_request) {
    device_harness h;
    set_up(h, 1);
    h.from = device::origin::log;
    h.answer_all(1);
    testing::scripted_port& port = *h.ports.at(1);
    h.submit(1, [](auto& b) { b.marker({queue, 10, {}}); });
    h.answer_all(1);
    const auto alone = h.submit(1, [](auto& b) { b.await(std::array<std::uint64_t, 1>{10}); });
    EXPECT_EQ(h.status_of(alone), VGPU_STATUS_OK);
    const auto refused = h.submit(1, [](auto& b) { b.flush(99); });
    EXPECT_EQ(h.status_of(refused), VGPU_STATUS_MALFORMED);
    h.submit(1, [](auto& b) { b.flush(queue); });
    EXPECT_TRUE(port.received.empty());
    port.record(completion(10));
    h.dispatch();
    EXPECT_EQ(port.received.size(), 1u);
    h.submit(1, [](auto& b) { b.flush(queue); });
    EXPECT_EQ(port.received.size(), 2u) << "once";
}

TEST(device, an_await_behind_other_commands_breaks_a_rule) {
    device_harness h;
    set_up(h, 1);
    h.from = device::origin::log;
    const auto late =
        h.submit(1, [](auto& b) { b.marker({queue, 10, {}}).await(std::array<std::uint64_t, 1>{10}); });
    EXPECT_EQ(h.status_of(late), VGPU_STATUS_MALFORMED);
}

TEST(device, events_can_be_awaited_for_a_guest) {
    device_harness h;
    set_up(h, 1);
    h.answer_all(1);
    testing::scripted_port& port = *h.ports.at(1);
    h.submit(1, [](auto& b) { b.marker({queue, 10, {}}); });
    h.answer_all(1);
    h.dev->await_events(1, std::array<std::uint64_t, 2>{10, 99});
    const auto waits = h.submit(1, [](auto& b) { b.flush(queue); });
    EXPECT_TRUE(port.received.empty());
    h.close(1);
    EXPECT_EQ(h.status_of(waits), VGPU_STATUS_CANCELED);
}

} // namespace
} // namespace kagemusha::core
