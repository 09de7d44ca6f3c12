// SPDX-License-Identifier: GPL-2.0-or-later
// The device around session_fsm: files, ports, back pressure, room for records, statistics, log lines. Losses and
// resets: device_loss_test.cpp; when workers start: device_starts_test.cpp; awaited events:
// device_await_test.cpp.
#include "core/device.hpp"

#include <poll.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "codec/cl_numbers.hpp"
#include "core/device_test_helpers.hpp"
#include "core/limits.hpp"
#include "core/record_queue.hpp"
#include "proto/abi/vgpu_cuda.h"

namespace kagemusha::core {
namespace {

using namespace codec;
using namespace testing;

TEST(device, an_open_file_costs_no_worker_until_its_first_request) {
    device_harness h;
    h.open(1);
    EXPECT_EQ(h.status_of(1), VGPU_STATUS_OK);
    EXPECT_TRUE(h.ports.empty());
    const auto token = h.submit(1, [](auto& b) { b.create_context(context); });
    ASSERT_EQ(h.ports.size(), 1u);
    EXPECT_EQ(h.ports[1]->kicks, 1u);
    EXPECT_EQ(h.status_of(token), not_answered);
    EXPECT_FALSE(readable(h.dev->poll_fd()));
    h.ports[1]->done(h.ports[1]->received.front().token);
    EXPECT_TRUE(readable(h.dev->poll_fd()));
    h.dispatch();
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_OK);
    EXPECT_FALSE(readable(h.dev->poll_fd()));
}

TEST(device, a_request_that_breaks_a_rule_starts_no_worker) {
    device_harness h;
    h.open(1);
    const auto token = h.submit(1, [](auto& b) { b.flush(5); });
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_MALFORMED);
    EXPECT_TRUE(h.ports.empty());
}

TEST(device, a_guest_reports_functions_that_its_driver_does_not_have) {
    device_harness h;
    set_up(h, 1);
    EXPECT_EQ(h.dev->unsupported(), "");
    const auto report = [&](std::string_view name) {
        vgpu_cmd_info c{};
        c.subject = VGPU_INFO_DEVICE;
        c.name = VGPU_CUDA_UNSUPPORTED;
        c.result.index = VGPU_PAYLOAD_NONE;
        c.input = {name.size(), VGPU_PAYLOAD_INLINE, 0};
        return h.submit(1, [&](auto& b) { b.begin(VGPU_CMD_INFO, c).bytes(std::as_bytes(std::span(name))); });
    };
    report("cuIpcGetMemHandle");
    report("cu\x1b[2J");
    report("cuIpcGetMemHandle");
    EXPECT_EQ(h.dev->unsupported(), "cuIpcGetMemHandle 2");
    EXPECT_EQ(h.status_of(report(std::string(65, 'a'))), VGPU_STATUS_MALFORMED);
}

TEST(device, file_numbers_are_checked) {
    device_harness h;
    h.open(0);
    EXPECT_EQ(h.status_of(1), VGPU_STATUS_MALFORMED);
    h.open(1);
    h.open(1);
    EXPECT_EQ(h.status_of(3), VGPU_STATUS_MALFORMED);
    for (std::uint32_t f = 2; f <= 4; ++f)
        h.open(f);
    h.open(5);
    EXPECT_EQ(h.answers.back().response.status, VGPU_STATUS_LIMIT);
    h.close(6);
    EXPECT_EQ(h.answers.back().response.status, VGPU_STATUS_NO_FILE);
    h.submit(6, [](auto& b) { b.flush(1); });
    EXPECT_EQ(h.answers.back().response.status, VGPU_STATUS_NO_FILE);
    h.close(1);
    h.open(5);
    EXPECT_EQ(h.answers.back().response.status, VGPU_STATUS_OK);
}

TEST(device, the_log_of_a_primary_has_limits_of_its_own) {
    device_harness h([](device_config& c) {
        c.max_files = 1;
        c.max_memory_bytes = 100;
        device_limits of_log = c;
        of_log.max_files = 2;
        of_log.max_memory_bytes = 200;
        c.of_log = of_log;
    });
    h.dev->open_file(1, 101, device::origin::log);
    h.dev->open_file(2, 102, device::origin::log);
    h.dev->open_file(3, 103, device::origin::log);
    h.dev->open_file(4, 104);
    EXPECT_EQ(h.status_of(102), VGPU_STATUS_OK);
    EXPECT_EQ(h.status_of(103), VGPU_STATUS_LIMIT);
    EXPECT_EQ(h.status_of(104), VGPU_STATUS_LIMIT);
    const auto result_of = [&](std::uint32_t file, auto&& build) {
        const std::uint64_t token = h.submit(file, build);
        if (h.answers_of(token).empty())
            h.answer_all(file);
        return h.answers_of(token).at(0).result;
    };
    const auto make = [&](std::uint32_t file, std::uint64_t bytes) {
        EXPECT_EQ(result_of(file, [](stream_builder& b) { b.create_context(1); }), 0);
        return result_of(file, [=](stream_builder& b) { b.create_buffer(2, 1, bytes); });
    };
    h.from = device::origin::log;
    EXPECT_EQ(make(1, 150), 0);
    h.from = device::origin::guest;
    EXPECT_EQ(make(2, 1), codec::cl_mem_object_allocation_failure) << "all files together have too much";
    h.close(1);
    EXPECT_EQ(result_of(2, [](stream_builder& b) { b.create_buffer(2, 1, 100); }), 0);
}

TEST(device, files_do_not_see_each_others_objects) {
    device_harness h;
    set_up(h, 1);
    h.open(2);
    const auto token = h.submit(2, [](auto& b) { b.marker({queue, 0, {}}); });
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(h.lines.size(), 1u);
    EXPECT_NE(h.lines[0].find("testvm: file 2: guest: an id does not name a queue"), std::string::npos)
        << h.lines[0];
}

TEST(device, a_full_port_is_back_pressure_in_order) {
    device_harness h;
    set_up(h, 1);
    auto& port = *h.ports[1];
    port.next_submit = worker::submit_result::full;
    const auto first = marker(h, 1);
    port.next_submit = worker::submit_result::accepted;
    const auto second = h.submit(1, [](auto& b) { b.barrier({queue, 0, {}}); });
    EXPECT_TRUE(port.received.empty()) << "the second must not overtake the first";
    port.say([](worker::port_sink&) {});
    h.dispatch();
    ASSERT_EQ(port.received.size(), 2u);
    EXPECT_EQ(port.received[0].opcodes[0], VGPU_CMD_MARKER);
    EXPECT_EQ(port.received[1].opcodes[0], VGPU_CMD_BARRIER);
    h.answer_all(1);
    EXPECT_EQ(h.status_of(first), VGPU_STATUS_OK);
    EXPECT_EQ(h.status_of(second), VGPU_STATUS_OK);
}

TEST(device, requests_that_wait_for_a_port_have_a_bound) {
    device_harness h([](auto& c) { c.file.max_requests = 4096; });
    set_up(h, 1);
    h.submit(1, [](auto& b) { b.create_buffer(9, context, VGPU_MAX_INLINE_PAYLOAD_BYTES); });
    h.ports[1]->next_submit = worker::submit_result::full;
    // Few commands, many bytes.
    stream_builder big;
    const std::vector<std::byte> data(VGPU_MAX_INLINE_PAYLOAD_BYTES);
    while (big.stream().size() + data.size() + 128 <= VGPU_MAX_STREAM_BYTES)
        big.write_buffer({queue, 0, {}}, 9, 0, data);
    std::uint32_t status = not_answered;
    std::size_t waiting = 0;
    while (status == not_answered && waiting < 4000) {
        status = h.status_of(h.submit(1, big));
        ++waiting;
    }
    EXPECT_EQ(status, VGPU_STATUS_NO_MEMORY);
    EXPECT_LE(waiting * big.stream().size(), max_waiting_bytes_of_device + 2 * big.stream().size());
    h.close(1);
    set_up(h, 2);
    EXPECT_EQ(h.status_of(marker(h, 2)), not_answered) << "closing gave the room back";
}

TEST(device, a_file_whose_requests_wait_leaves_room_for_those_of_others) {
    device_harness h([](auto& c) { c.file.max_requests = 4096; });
    stream_builder big;
    const std::vector<std::byte> data(VGPU_MAX_INLINE_PAYLOAD_BYTES);
    while (big.stream().size() + data.size() + 128 <= VGPU_MAX_STREAM_BYTES)
        big.write_buffer({queue, 0, {}}, 9, 0, data);
    const auto waits = [&](std::uint32_t file) { return h.status_of(h.submit(file, big)) == not_answered; };
    for (const std::uint32_t file : {1u, 2u, 3u}) {
        set_up(h, file);
        h.submit(file, [](auto& b) { b.create_buffer(9, context, VGPU_MAX_INLINE_PAYLOAD_BYTES); });
        h.answer_all(file);
        h.ports[file]->next_submit = worker::submit_result::full;
    }
    std::vector<std::size_t> bytes;
    for (const std::uint32_t file : {1u, 2u}) {
        bytes.push_back(0);
        while (bytes.back() < 2 * max_waiting_bytes_of_device && waits(file))
            bytes.back() += big.stream().size();
    }
    EXPECT_GE(bytes[0], max_waiting_bytes_of_device / 3) << "one file alone has a good part of it";
    EXPECT_TRUE(waits(3)) << "two that have as much as they can get leave room";
    EXPECT_FALSE(waits(1));
    EXPECT_LT(bytes[0] + bytes[1], max_waiting_bytes_of_device);
}

TEST(device, records_wait_for_room_in_order_and_files_take_turns) {
    device_harness h;
    set_up(h, 1);
    set_up(h, 2);
    h.room = 1;
    for (std::uint64_t e = 0; e < 200; ++e) {
        marker(h, 1, first_event + e);
        h.ports[1]->record(completion(first_event + e));
    }
    marker(h, 2, first_event);
    h.ports[2]->record(completion(first_event));
    h.dispatch();
    EXPECT_EQ(h.records.size(), 1u);
    h.room = 70;
    h.dev->event_space();
    EXPECT_EQ(h.records.size(), 71u);
    const bool second_file_had_its_turn = std::any_of(h.records.begin(), h.records.end(), [](const auto& r) {
        return testing::as<vgpu_record>(r).file == 2;
    });
    EXPECT_TRUE(second_file_had_its_turn) << "a file with many records does not starve another";
    h.room = 1000;
    h.dev->event_space();
    EXPECT_EQ(h.records.size(), 201u);
    std::uint64_t next = first_event;
    for (const auto& r : h.records) {
        const auto c = testing::as<vgpu_record_completion>(r);
        if (c.record.file == 1)
            EXPECT_EQ(c.event, next++);
    }
    EXPECT_EQ(h.stats().events_completed, 201u);
}

TEST(device, log_lines_that_a_guest_causes_are_limited) {
    device_harness h;
    h.open(1);
    for (int i = 0; i < 500; ++i)
        h.submit(1, [](auto& b) { b.flush(5); });
    EXPECT_EQ(h.lines.size(), log_burst_lines);
    h.now_ms += log_interval_ms;
    h.submit(1, [](auto& b) { b.flush(5); });
    EXPECT_EQ(h.lines.size(), log_burst_lines + 1);
    EXPECT_NE(h.lines.back().find("480 more lines"), std::string::npos) << h.lines.back();
}

TEST(device, statistics_count_what_was_handed_on) {
    device_harness h;
    set_up(h, 1);
    h.submit(1, [](auto& b) { b.create_buffer_inline(9, context, std::vector<std::byte>(64)); });
    h.submit(1, [](auto& b) { b.read_buffer({queue, 0, {}}, 9, 0, b.payload(true, 0, 0, 32)); });
    const kagemusha_device_stats s = h.stats();
    EXPECT_EQ(s.requests, 4u);
    EXPECT_EQ(s.requests_in_flight, 2u);
    EXPECT_EQ(s.commands, 4u);
    EXPECT_EQ(s.calls, 3u);
    EXPECT_EQ(s.bytes_to_gpu, 64u);
    EXPECT_EQ(s.bytes_from_gpu, 32u);
    EXPECT_EQ(s.objects, 3u);
    EXPECT_EQ(s.memory_bytes, 64u);
    EXPECT_EQ(s.workers_started, 1u);
    EXPECT_EQ(s.doorbells, 4u);
}

TEST(record_queue, is_first_in_first_out_and_reuses_its_memory) {
    record_queue q;
    std::uint64_t pushed = 0;
    std::uint64_t popped = 0;
    for (int round = 0; round < 20'000; ++round) {
        q.push(completion(++pushed));
        if (round % 3 != 0) {
            EXPECT_EQ(testing::as<vgpu_record_completion>(q.front()).event, ++popped);
            q.pop();
        }
    }
    while (!q.empty()) {
        EXPECT_EQ(testing::as<vgpu_record_completion>(q.front()).event, ++popped);
        q.pop();
    }
    EXPECT_EQ(popped, pushed);
}

} // namespace
} // namespace kagemusha::core
