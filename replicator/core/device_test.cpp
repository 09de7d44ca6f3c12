// SPDX-License-Identifier: GPL-2.0-or-later
// The device around session_fsm: ports, back pressure, loss, reset in all phases, room for records, the
// watchdog, log lines.
#include "core/device.hpp"

#include <poll.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "codec/cl_numbers.hpp"
#include "core/hang_watchdog.hpp"
#include "core/limits.hpp"
#include "core/record_queue.hpp"
#include "core/test_helpers.hpp"
#include "core/worker_starts.hpp"
#include "proto/abi/vgpu_cuda.h"

namespace kagemusha::core {
namespace {

using namespace codec;
using testing::completion;
using testing::device_harness;
using testing::not_answered;

enum : std::uint64_t { context = 1, queue, user_event, first_event = 1000 };

// A file with a context and a queue, whose worker has answered.
void set_up(device_harness& h, std::uint32_t file) {
    h.open(file);
    h.submit(file, [](auto& b) { b.create_context(context); });
    h.submit(file, [](auto& b) { b.create_queue(queue, context); });
    h.answer_all(file);
}

std::uint64_t marker(device_harness& h, std::uint32_t file, std::uint64_t event = 0) {
    return h.submit(file, [&](auto& b) { b.marker({queue, event, {}}); });
}

bool readable(int fd) {
    pollfd p{fd, POLLIN, 0};
    return poll(&p, 1, 0) == 1;
}

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

TEST(device, a_loss_can_be_held_back_from_the_guest) {
    device_harness h;
    std::string why;
    h.dev->set_loss_holder([&](const std::string& text) {
        why = text;
        return true;
    });
    set_up(h, 1);
    set_up(h, 2);
    const auto token = marker(h, 1, first_event);
    h.ports[1]->lost(VGPU_LOST_CRASHED, 9);
    h.dispatch();
    EXPECT_NE(why.find("file 1: its worker was lost: it died (signal or exit code 9)"), std::string::npos)
        << why;
    const auto later = marker(h, 1);
    EXPECT_EQ(h.status_of(token), not_answered);
    EXPECT_EQ(h.status_of(later), not_answered);
    EXPECT_TRUE(h.records.empty());
    const auto state = h.dev->checkpoint();
    ASSERT_EQ(state.size(), 2u);
    EXPECT_FALSE(state[0].lost) << "who goes on with this state has a GPU";
    EXPECT_EQ(state[0].requests.size(), 2u);
    h.dev->report_losses();
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_LOST);
    EXPECT_EQ(h.status_of(later), VGPU_STATUS_LOST);
    ASSERT_EQ(h.records.size(), 1u);
    EXPECT_EQ(testing::as<vgpu_record_lost>(h.records[0]).reason, VGPU_LOST_CRASHED);
    EXPECT_EQ(h.status_of(marker(h, 2)), not_answered) << "the other file goes on";
    h.dev->report_losses();
    EXPECT_EQ(h.records.size(), 1u) << "once";
}

TEST(device, a_file_that_is_closed_takes_a_held_loss_with_it) {
    device_harness h;
    h.dev->set_loss_holder([](const std::string&) { return true; });
    set_up(h, 1);
    const auto token = marker(h, 1);
    h.ports[1]->lost(VGPU_LOST_HUNG, 9);
    h.dispatch();
    h.close(1);
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_CANCELED);
    h.dev->report_losses();
    EXPECT_TRUE(h.records.empty());
    set_up(h, 1);
    EXPECT_EQ(h.status_of(marker(h, 1)), not_answered);
}

TEST(device, a_dead_port_loses_the_file) {
    device_harness h;
    set_up(h, 1);
    h.ports[1]->next_submit = worker::submit_result::dead;
    const auto token = marker(h, 1);
    h.ports[1]->lost(VGPU_LOST_CRASHED, 9);
    h.dispatch();
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_LOST);
    ASSERT_EQ(h.records.size(), 1u);
    EXPECT_EQ(testing::as<vgpu_record_lost>(h.records[0]).reason, VGPU_LOST_CRASHED);
    EXPECT_EQ(h.status_of(marker(h, 1)), VGPU_STATUS_LOST) << "the file stays lost";
    EXPECT_EQ(h.stats().workers_lost, 1u);
    h.close(1);
    set_up(h, 1);
    EXPECT_EQ(h.status_of(marker(h, 1)), not_answered) << "a new file of the same number works";
}

TEST(device, a_lost_worker_is_one_files_matter) {
    device_harness h;
    set_up(h, 1);
    set_up(h, 2);
    const auto other = marker(h, 2, first_event);
    h.ports[1]->lost(VGPU_LOST_GPU, 3);
    h.dispatch();
    h.ports[2]->record(completion(first_event));
    h.answer_all(2);
    EXPECT_EQ(h.status_of(other), VGPU_STATUS_OK);
    EXPECT_EQ(testing::as<vgpu_record_completion>(h.records.back()).event, first_event);
}

TEST(device, a_worker_that_can_not_start_is_a_lost_file) {
    device_harness h;
    h.start_error = "no worker program";
    h.open(1);
    const auto token = h.submit(1, [](auto& b) { b.create_context(context); });
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_LOST);
    ASSERT_EQ(h.records.size(), 1u);
    EXPECT_EQ(testing::as<vgpu_record_lost>(h.records[0]).reason, VGPU_LOST_START);
    EXPECT_NE(h.lines.at(0).find("no worker program"), std::string::npos);
}

TEST(device, a_worker_that_lies_is_killed) {
    device_harness h;
    set_up(h, 1);
    const auto token = marker(h, 1, first_event);
    h.ports[1]->record(completion(first_event + 1));
    h.ports[1]->record(completion(first_event));
    h.ports[1]->done(h.ports[1]->received.front().token);
    h.dispatch();
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_LOST) << "nothing after the lie is believed";
    ASSERT_EQ(h.records.size(), 1u);
    EXPECT_EQ(testing::as<vgpu_record_lost>(h.records[0]).reason, VGPU_LOST_PROTOCOL);
    EXPECT_NE(h.lines.at(0).find("completed an event that is not pending"), std::string::npos) << h.lines[0];
}

TEST(device, close_cancels_what_is_in_flight_and_drops_its_records) {
    device_harness h;
    set_up(h, 1);
    h.room = 0;
    const auto token = marker(h, 1, first_event);
    h.ports[1]->record(completion(first_event));
    h.dispatch();
    h.ports[1]->next_submit = worker::submit_result::full;
    const auto waiting = marker(h, 1);
    h.close(1);
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_CANCELED);
    EXPECT_EQ(h.status_of(waiting), VGPU_STATUS_CANCELED);
    EXPECT_EQ(h.answers.back().response.status, VGPU_STATUS_OK);
    h.room = 10;
    h.dev->event_space();
    EXPECT_TRUE(h.records.empty());
    EXPECT_EQ(h.stats().objects, 0u);
    EXPECT_EQ(h.stats().requests_in_flight, 0u);
}

// Reset, at every step of the life of a file.
TEST(device, reset_in_all_phases_answers_everything_once_and_leaves_a_working_device) {
    using phase = std::function<void(device_harness&)>;
    const std::vector<std::pair<const char*, phase>> phases = {
        {"nothing open", [](auto&) {}},
        {"open", [](auto& h) { h.open(1); }},
        {"request given to the worker",
         [](auto& h) {
             set_up(h, 1);
             marker(h, 1);
         }},
        {"request waits for a full port",
         [](auto& h) {
             set_up(h, 1);
             h.ports[1]->next_submit = worker::submit_result::full;
             marker(h, 1);
         }},
        {"answer not drained",
         [](auto& h) {
             set_up(h, 1);
             marker(h, 1);
             h.ports[1]->done(h.ports[1]->received[0].token);
         }},
        {"event pending",
         [](auto& h) {
             set_up(h, 1);
             marker(h, 1, first_event);
             h.answer_all(1);
         }},
        {"record without room",
         [](auto& h) {
             set_up(h, 1);
             h.room = 0;
             marker(h, 1, first_event);
             h.ports[1]->record(completion(first_event));
             h.answer_all(1);
         }},
        {"loss not drained",
         [](auto& h) {
             set_up(h, 1);
             marker(h, 1);
             h.ports[1]->lost(VGPU_LOST_CRASHED, 1);
         }},
        {"lost",
         [](auto& h) {
             set_up(h, 1);
             marker(h, 1);
             h.ports[1]->lost(VGPU_LOST_CRASHED, 1);
             h.dispatch();
         }},
        {"lost without room",
         [](auto& h) {
             set_up(h, 1);
             h.room = 0;
             h.ports[1]->lost(VGPU_LOST_CRASHED, 1);
             h.dispatch();
         }},
        {"several files",
         [](auto& h) {
             set_up(h, 1);
             set_up(h, 2);
             marker(h, 1);
             marker(h, 2);
             h.open(3);
         }},
    };
    for (const auto& [name, run] : phases) {
        SCOPED_TRACE(name);
        device_harness h;
        run(h);
        const std::uint64_t tokens = h.next_token;
        h.dev->reset();
        for (std::uint64_t token = 1; token < tokens; ++token)
            EXPECT_EQ(h.answers_of(token).size(), 1u) << "token " << token;
        const kagemusha_device_stats s = h.stats();
        EXPECT_EQ(s.files_open, 0u);
        EXPECT_EQ(s.requests_in_flight, 0u);
        EXPECT_EQ(s.objects, 0u);
        EXPECT_EQ(s.memory_bytes, 0u);
        EXPECT_FALSE(readable(h.dev->poll_fd())) << "nothing of the old files is left to dispatch";
        h.room = 100;
        h.records.clear();
        set_up(h, 1);
        marker(h, 1, first_event);
        h.ports[1]->record(completion(first_event));
        h.answer_all(1);
        EXPECT_EQ(h.records.size(), 1u);
        h.dev->reset();
        h.dev->reset();
    }
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

TEST(device, a_worker_without_progress_is_killed_and_one_with_progress_is_not) {
    device_harness h([](auto& c) { c.hang_timeout_ms = 40; });
    set_up(h, 1);
    set_up(h, 2);
    const auto hung = marker(h, 1);
    marker(h, 2);
    // The real timer says when to look, the clock is the test's.
    for (int look = 0; look < 3; ++look) {
        h.now_ms += 30;
        ++h.ports[2]->progress_value;
        pollfd p{h.dev->poll_fd(), POLLIN, 0};
        ASSERT_EQ(poll(&p, 1, 10'000), 1) << "the timer is armed while there is work";
        h.dispatch();
    }
    EXPECT_EQ(h.status_of(hung), VGPU_STATUS_LOST);
    ASSERT_EQ(h.records.size(), 1u);
    EXPECT_EQ(testing::as<vgpu_record_lost>(h.records[0]).reason, VGPU_LOST_HUNG);
    EXPECT_EQ(testing::as<vgpu_record_lost>(h.records[0]).detail, 40u);
    EXPECT_EQ(h.stats().workers_killed_hung, 1u);
    EXPECT_EQ(h.stats().workers_lost, 1u);
}

// What it says of itself it may make up: its progress, and what its kernels print.
TEST(device, a_worker_that_only_says_that_it_makes_progress_hangs_after_a_longer_time) {
    device_harness h([](auto& c) {
        c.hang_timeout_ms = 40;
        c.end_timeout_ms = 400;
    });
    set_up(h, 1);
    set_up(h, 2);
    const auto hung = marker(h, 1, first_event);
    for (int look = 0; look < 20 && h.status_of(hung) == not_answered; ++look) {
        h.now_ms += 30;
        const auto honest = marker(h, 2, first_event);
        h.answer_all(2);
        EXPECT_EQ(h.status_of(honest), VGPU_STATUS_OK);
        h.ports[2]->record(completion(first_event));
        ++h.ports[1]->progress_value;
        h.ports[1]->record(testing::text("still here"));
        pollfd p{h.dev->poll_fd(), POLLIN, 0};
        do {
            ASSERT_EQ(poll(&p, 1, 10'000), 1);
            h.dispatch();
        } while (h.stats().events_completed != static_cast<std::uint64_t>(look) + 1);
        h.submit(2, [](auto& b) { b.destroy(VGPU_OBJECT_EVENT, first_event); });
        h.answer_all(2);
    }
    // The device looks when its timer says so.
    for (int look = 0; look < 100 && h.status_of(hung) == not_answered; ++look) {
        pollfd p{h.dev->poll_fd(), POLLIN, 0};
        ASSERT_EQ(poll(&p, 1, 10'000), 1);
        h.dispatch();
    }
    EXPECT_EQ(h.status_of(hung), VGPU_STATUS_LOST);
    EXPECT_EQ(h.stats().workers_killed_hung, 1u);
    const auto lost = testing::as<vgpu_record_lost>(h.records.back());
    EXPECT_EQ(lost.reason, VGPU_LOST_HUNG);
    EXPECT_EQ(lost.detail, 400u);
    EXPECT_NE(h.lines.back().find("ended nothing for 400 ms"), std::string::npos) << h.lines.back();
}

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

TEST(hang_watchdog, needs_work_without_progress_for_the_whole_timeout) {
    hang_watchdog w(100, 0);
    const auto hangs = [&w](std::uint64_t now_ms, bool busy, bool held, std::uint64_t progress) {
        return w.observe(now_ms, busy, held, progress, 7) == hang::no_progress;
    };
    EXPECT_FALSE(hangs(0, true, false, 1));
    EXPECT_FALSE(hangs(99, true, false, 1));
    EXPECT_FALSE(hangs(100, true, false, 2)) << "progress";
    EXPECT_FALSE(hangs(199, true, false, 2));
    EXPECT_FALSE(hangs(200, false, false, 2)) << "idle";
    EXPECT_FALSE(hangs(500, true, false, 2)) << "idle time does not count";
    EXPECT_FALSE(hangs(600, true, true, 2)) << "it is not the worker who waits";
    EXPECT_FALSE(hangs(601, true, false, 2));
    EXPECT_TRUE(hangs(701, true, false, 2));
    hang_watchdog never(0, 0);
    never.observe(0, true, false, 1, 1);
    EXPECT_EQ(never.observe(UINT64_MAX, true, false, 1, 1), hang::none);
}

TEST(hang_watchdog, progress_without_an_end_has_a_bound_of_its_own) {
    hang_watchdog w(100, 1000);
    std::uint64_t progress = 0;
    const auto at = [&](std::uint64_t now_ms, bool busy, std::uint64_t ended) {
        return w.observe(now_ms, busy, true, ++progress, ended);
    };
    EXPECT_EQ(at(0, true, 0), hang::none);
    EXPECT_EQ(at(999, true, 0), hang::none);
    EXPECT_EQ(at(1000, true, 1), hang::none) << "an end";
    EXPECT_EQ(at(1999, true, 1), hang::none);
    EXPECT_EQ(at(2000, false, 1), hang::none) << "idle";
    EXPECT_EQ(at(5000, true, 1), hang::none);
    EXPECT_EQ(at(6000, true, 1), hang::nothing_ended);
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
