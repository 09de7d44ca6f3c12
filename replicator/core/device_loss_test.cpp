// SPDX-License-Identifier: GPL-2.0-or-later
// Files that are lost, resets in all phases, and workers that make no progress.
#include "core/device.hpp"

#include <poll.h>

#include <string>

#include <gtest/gtest.h>

#include "core/device_test_helpers.hpp"
#include "core/hang_watchdog.hpp"
#include "core/limits.hpp"

namespace kagemusha::core {
namespace {

using namespace codec;
using namespace testing;

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

} // namespace
} // namespace kagemusha::core
