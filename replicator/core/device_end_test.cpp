// SPDX-License-Identifier: GPL-2.0-or-later
// Workers that were killed and do not end: what is told at once, what waits for them, and that nobody else
// does.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>

#include "core/limits.hpp"
#include "core/test_helpers.hpp"

namespace kagemusha::core {
namespace {

using namespace codec;
using testing::device_harness;
using testing::not_answered;

enum : std::uint64_t { context = 1, queue, buffer };

struct stuck_end : ::testing::Test {
    device_harness h;
    testing::scripted_port* stuck = nullptr;

    void set_up(std::uint32_t file) {
        h.open(file);
        h.submit(file, [](auto& b) { b.create_context(context); });
        h.submit(file, [](auto& b) { b.create_queue(queue, context); });
        h.submit(file, [](auto& b) { b.create_buffer(buffer, context, 4096); });
        h.answer_all(file);
    }
    // File 1 with a worker that SIGKILL does not end.
    void SetUp() override {
        set_up(1);
        stuck = h.ports.at(1);
        stuck->dies = false;
    }
    // A request whose worker may write the guest's memory at any time.
    std::uint64_t read(std::uint32_t file) {
        return h.submit(file, [](auto& b) {
            const auto to = b.payload(true, 0, 0, 4096);
            b.read_buffer({queue, 0, {}}, buffer, 0, to);
        });
    }
    std::uint64_t marker(std::uint32_t file) {
        return h.submit(file, [](auto& b) { b.marker({queue, 0, {}}); });
    }
    void lose(vgpu_lost_reason reason = VGPU_LOST_GPU) {
        stuck->lost(reason, 9);
        h.dispatch();
    }
    void end() {
        stuck->end();
        h.dispatch();
    }
};

TEST_F(stuck_end, a_loss_is_held_before_anything_else_happens) {
    bool killed_before = true;
    h.dev->set_loss_holder([&](const std::string&) {
        killed_before = stuck->killed;
        return true;
    });
    const auto token = read(1);
    lose();
    EXPECT_FALSE(killed_before) << "a kill that does not come back would have kept it a secret";
    EXPECT_TRUE(stuck->killed);
    EXPECT_EQ(h.status_of(token), not_answered);
    const auto state = h.dev->checkpoint();
    ASSERT_EQ(state.size(), 1u);
    EXPECT_FALSE(state[0].lost);
    EXPECT_EQ(state[0].requests.size(), 1u) << "who takes over has a GPU for it";
    h.dev->report_losses();
    EXPECT_EQ(h.status_of(token), not_answered) << "its memory is still the worker's";
    end();
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_LOST);
    EXPECT_EQ(h.records.size(), 1u);
}

TEST_F(stuck_end, a_request_in_guest_memory_is_answered_when_nobody_writes_there_any_more) {
    const auto token = read(1);
    lose();
    const auto later = marker(1);
    EXPECT_EQ(h.status_of(token), not_answered);
    EXPECT_TRUE(h.records.empty()) << "LOST is the last record, and comes with the answers";
    EXPECT_EQ(h.stats().workers_ending, 1u);
    end();
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_LOST);
    EXPECT_EQ(h.status_of(later), VGPU_STATUS_LOST);
    EXPECT_EQ(h.records.size(), 1u);
    EXPECT_EQ(h.stats().workers_ending, 0u);
}

TEST_F(stuck_end, a_loss_that_concerns_no_guest_memory_is_told_at_once) {
    const auto token = marker(1);
    lose();
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_LOST);
    EXPECT_EQ(h.records.size(), 1u);
    EXPECT_EQ(h.stats().workers_ending, 1u);
    end();
    EXPECT_EQ(h.records.size(), 1u) << "once";
}

TEST_F(stuck_end, other_files_do_not_notice) {
    set_up(2);
    read(1);
    lose();
    const auto token = read(2);
    h.answer_all(2);
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_OK);
    h.open(3);
    EXPECT_EQ(h.answers.back().response.status, VGPU_STATUS_OK);
    EXPECT_EQ(h.dev->checkpoint().size(), 3u);
}

TEST_F(stuck_end, closing_is_answered_when_nothing_of_the_file_is_left) {
    const auto token = read(1);
    h.close(1);
    const auto close = h.next_token - 1;
    EXPECT_TRUE(stuck->killed);
    EXPECT_EQ(h.status_of(token), not_answered);
    EXPECT_EQ(h.status_of(close), not_answered);
    EXPECT_EQ(h.stats().objects, 3u) << "its memory is not free yet";
    EXPECT_TRUE(h.dev->checkpoint().empty()) << "who takes over has closed it";
    set_up(2);
    EXPECT_EQ(h.stats().files_open, 1u);
    end();
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_CANCELED);
    EXPECT_EQ(h.status_of(close), VGPU_STATUS_OK);
    EXPECT_EQ(h.answers.back().token, close);
    EXPECT_EQ(h.stats().objects, 3u) << "of file 2";
}

TEST_F(stuck_end, a_lost_file_can_be_closed_before_its_worker_is_gone) {
    const auto token = read(1);
    lose();
    h.close(1);
    const auto close = h.next_token - 1;
    EXPECT_EQ(h.status_of(close), not_answered);
    end();
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_CANCELED);
    EXPECT_EQ(h.status_of(close), VGPU_STATUS_OK);
    EXPECT_TRUE(h.records.empty());
}

TEST_F(stuck_end, a_file_number_can_be_used_again_meanwhile) {
    h.close(1);
    set_up(1);
    EXPECT_NE(h.ports.at(1), stuck);
    end();
    const auto token = marker(1);
    h.answer_all(1);
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_OK);
}

TEST_F(stuck_end, they_count_as_files_so_there_is_a_bound) {
    // The harness allows four.
    h.close(1);
    for (std::uint32_t file = 2; file <= 4; ++file)
        set_up(file);
    h.open(5);
    EXPECT_EQ(h.answers.back().response.status, VGPU_STATUS_LIMIT);
    stuck->end(); // nobody has dispatched it yet
    h.open(5);
    EXPECT_EQ(h.answers.back().response.status, VGPU_STATUS_OK);
    set_up(5);
    h.ports.at(5)->dies = false;
    h.ports.at(5)->lost(VGPU_LOST_GPU, 1);
    h.dispatch();
    h.close(4);
    h.open(6);
    EXPECT_EQ(h.answers.back().response.status, VGPU_STATUS_OK) << "a lost file and its worker are one";
}

TEST_F(stuck_end, a_reset_answers_everything_and_names_who_may_still_write) {
    set_up(2);
    const auto idle = h.ports.at(2);
    idle->dies = false;
    const auto token = read(1), other = marker(2);
    EXPECT_EQ(h.dev->reset(), 1u) << "file 2's worker has no memory of the guest";
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_CANCELED);
    EXPECT_EQ(h.status_of(other), VGPU_STATUS_CANCELED);
    EXPECT_EQ(h.stats().workers_ending, 2u);
    EXPECT_EQ(h.stats().objects, 0u);
    set_up(1);
    EXPECT_EQ(h.dev->writers(), 1u);
    stuck->end();
    EXPECT_EQ(h.dev->writers(), 0u) << "it asks the worker itself: a stopped device is not dispatched";
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_CANCELED) << "once";
    idle->end();
    h.dispatch();
    EXPECT_EQ(h.stats().workers_ending, 0u);
}

TEST_F(stuck_end, a_reset_answers_what_is_being_closed) {
    const auto token = read(1);
    h.close(1);
    const auto close = h.next_token - 1;
    EXPECT_EQ(h.dev->reset(), 1u);
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_CANCELED);
    EXPECT_EQ(h.status_of(close), VGPU_STATUS_CANCELED);
    end();
    EXPECT_EQ(h.status_of(close), VGPU_STATUS_CANCELED) << "once";
}

TEST_F(stuck_end, the_device_can_end_before_it) {
    read(1);
    lose();
    h.dev.reset();
}

// A standby's device executes a log. Nobody may wait there either, and the memory of its requests is the
// caller's.
TEST_F(stuck_end, requests_of_a_log_are_answered_at_once_and_their_memory_is_kept) {
    const auto memory = std::make_shared<int>(0);
    std::vector<std::uint64_t> asked;
    h.dev->set_memory_keeper([&](std::uint64_t token) {
        asked.push_back(token);
        return memory;
    });
    h.from = device::origin::log;
    const auto token = read(1);
    lose();
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_LOST);
    EXPECT_EQ(h.records.size(), 1u);
    EXPECT_EQ(asked, std::vector{token});
    EXPECT_EQ(memory.use_count(), 2) << "the worker may still write it";
    h.dev->close_file(1, 77, device::origin::log);
    EXPECT_EQ(h.status_of(77), VGPU_STATUS_OK);
    EXPECT_EQ(memory.use_count(), 2);
    end();
    EXPECT_EQ(memory.use_count(), 1);
}

TEST_F(stuck_end, a_log_closes_and_resets_without_waiting) {
    const auto memory = std::make_shared<int>(0);
    h.dev->set_memory_keeper([&](std::uint64_t) { return memory; });
    h.from = device::origin::log;
    set_up(2);
    const auto other = h.ports.at(2);
    other->dies = false;
    const auto token = read(1), second = read(2);
    h.dev->close_file(1, 77, device::origin::log);
    EXPECT_EQ(h.status_of(token), VGPU_STATUS_CANCELED);
    EXPECT_EQ(h.status_of(77), VGPU_STATUS_OK);
    EXPECT_EQ(h.dev->reset(), 0u);
    EXPECT_EQ(h.status_of(second), VGPU_STATUS_CANCELED);
    EXPECT_EQ(memory.use_count(), 3);
    end();
    EXPECT_EQ(memory.use_count(), 2);
    other->end();
    h.dispatch();
    EXPECT_EQ(memory.use_count(), 1);
}

TEST_F(stuck_end, memory_of_a_mirror_is_kept) {
    struct tap_with_memory final : mirror_tap {
        device* dev = nullptr;
        std::shared_ptr<int> memory = std::make_shared<int>(0);
        void on_open(std::uint32_t) override {}
        void on_close(std::uint32_t file) override { dev->keep_until_gone(file, memory); }
        void on_lost(std::uint32_t file) override { dev->keep_until_gone(file, memory); }
        void on_reset() override { dev->keep_until_gone(1, memory); }
        log_range on_submit(std::uint32_t, const worker::request_view&, launch_runs,
                            const object_table&) override {
            return {};
        }
        void on_forwarded(std::uint32_t) override {}
        bool on_done(std::uint32_t, std::uint64_t, const vgpu_response&) override { return true; }
        bool on_completion(std::uint32_t, guest_id, bool) override { return true; }
        void on_agent_done(std::uint32_t, std::uint64_t, const vgpu_response&) override {}
        void on_agent_record(std::uint32_t, std::span<const std::byte>) override {}
        void on_tick(std::uint64_t) override {}
    };
    for (const int way : {0, 1, 2}) {
        tap_with_memory tap;
        device_harness other;
        other.dev->set_tap(&tap);
        tap.dev = other.dev.get();
        other.open(1);
        other.submit(1, [](auto& b) { b.create_context(context); });
        other.answer_all(1);
        auto* port = other.ports.at(1);
        port->dies = false;
        if (way == 0) {
            other.close(1);
        } else if (way == 1) {
            port->lost(VGPU_LOST_GPU, 1);
            other.dispatch();
        } else {
            other.dev->reset();
        }
        EXPECT_EQ(tap.memory.use_count(), 2) << way;
        port->end();
        other.dispatch();
        EXPECT_EQ(tap.memory.use_count(), 1) << way;
    }
}

TEST_F(stuck_end, somebody_is_told_when_it_takes_long) {
    device_harness with_watchdog([](device_config& c) { c.hang_timeout_ms = 1000; });
    with_watchdog.open(1);
    with_watchdog.submit(1, [](auto& b) { b.create_context(context); });
    with_watchdog.answer_all(1);
    auto* port = with_watchdog.ports.at(1);
    port->dies = false;
    with_watchdog.close(1);
    const auto said = [&] {
        return std::ranges::count_if(with_watchdog.lines, [](const std::string& line) {
            return line.find("has not ended: the GPU's driver may be stuck") != std::string::npos;
        });
    };
    // The watchdog's timer is real, what it sees of time is not.
    const auto tick = [&] {
        pollfd fd{with_watchdog.dev->poll_fd(), POLLIN, 0};
        ASSERT_EQ(poll(&fd, 1, 60000), 1);
        with_watchdog.dispatch();
    };
    with_watchdog.now_ms += slow_end_ms - 1;
    tick();
    EXPECT_EQ(said(), 0);
    with_watchdog.now_ms += 1;
    tick();
    EXPECT_EQ(said(), 1);
    port->end();
    with_watchdog.dispatch();
    EXPECT_NE(with_watchdog.lines.back().find("its worker has ended"), std::string::npos);
}

} // namespace
} // namespace kagemusha::core
