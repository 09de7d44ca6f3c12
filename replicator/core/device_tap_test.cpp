// SPDX-License-Identifier: GPL-2.0-or-later
// The device with a tap: what it tells it, in which order its requests reach the worker, what it may hold
// back, and that its work is neither the guest's progress nor the guest's hang.
#include <poll.h>

#include <gtest/gtest.h>

#include "core/test_helpers.hpp"

namespace kagemusha::core {
namespace {

using namespace codec;
using testing::completion;
using testing::device_harness;
using testing::not_answered;

enum : std::uint64_t { context = 1, queue, user_event, first_event = 1000 };
constexpr guest_id agent_queue = VGPU_HOST_ID_BIT | 7;
constexpr std::uint64_t token_bit = std::uint64_t{1} << 63;

struct recording_tap final : mirror_tap {
    std::vector<std::string> calls;
    std::vector<std::uint64_t> guest_tokens;
    std::vector<std::vector<std::byte>> agent_records;
    std::function<void()> in_submit, in_done;
    bool lets_answers_go = true;
    bool lets_records_go = true;

    void say(const std::string& what, std::uint32_t file) {
        calls.push_back(what + " " + std::to_string(file));
    }
    void on_open(std::uint32_t file) override { say("open", file); }
    void on_close(std::uint32_t file) override { say("close", file); }
    void on_lost(std::uint32_t file) override { say("lost", file); }
    void on_reset() override { calls.push_back("reset"); }
    log_range on_submit(std::uint32_t file, const worker::request_view& request, launch_runs,
                        const object_table& objects) override {
        say("submit " + std::to_string(request.stream.size()) + " bytes, " + std::to_string(objects.size()) +
                " objects",
            file);
        guest_tokens.push_back(request.token);
        if (in_submit)
            in_submit();
        return {guest_tokens.size() - 1, guest_tokens.size()};
    }
    void on_forwarded(std::uint32_t file) override { say("forwarded", file); }
    bool on_done(std::uint32_t file, std::uint64_t token, const vgpu_response& response) override {
        EXPECT_NE(std::find(guest_tokens.begin(), guest_tokens.end(), token), guest_tokens.end());
        say("done " + std::to_string(response.result), file);
        if (in_done)
            in_done();
        return lets_answers_go;
    }
    bool on_completion(std::uint32_t file, guest_id event, bool) override {
        say("completion " + std::to_string(event), file);
        return lets_records_go;
    }
    void on_agent_done(std::uint32_t file, std::uint64_t token, const vgpu_response& response) override {
        say("agent done " + std::to_string(token) + " " + std::to_string(response.result), file);
    }
    void on_agent_record(std::uint32_t file, std::span<const std::byte> record) override {
        say("agent record", file);
        agent_records.emplace_back(record.begin(), record.end());
    }
    void on_tick(std::uint64_t) override { calls.push_back("tick"); }
};

struct tapped_device {
    explicit tapped_device(std::function<void(device_config&)> change = {}) : h(std::move(change)) {
        h.dev->set_tap(&tap);
    }
    recording_tap tap;
    device_harness h;

    void set_up(std::uint32_t file) {
        h.open(file);
        h.submit(file, [](auto& b) { b.create_context(context); });
        h.submit(file, [](auto& b) { b.create_queue(queue, context); });
        h.answer_all(file);
        tap.calls.clear();
    }
    bool inject(std::uint32_t file, std::uint64_t token) {
        stream_builder b;
        b.marker({agent_queue, 0, {}});
        return h.dev->inject(file, {token, b.stream(), {}, {}});
    }
    std::uint64_t marker(std::uint32_t file, std::uint64_t event = 0) {
        return h.submit(file, [&](auto& b) { b.marker({queue, event, {}}); });
    }
    // The tokens that the worker has, the agent's as negative numbers.
    std::vector<std::int64_t> at_worker(std::uint32_t file) {
        std::vector<std::int64_t> out;
        for (const auto& r : h.ports.at(file)->received) {
            const bool injected = (r.token & token_bit) != 0;
            out.push_back(injected ? -static_cast<std::int64_t>(r.token & ~token_bit)
                                   : static_cast<std::int64_t>(r.token & 0xffffffff));
        }
        return out;
    }
};

TEST(device_tap, hears_of_everything_in_order) {
    tapped_device d;
    d.h.open(1);
    d.h.submit(1, [](auto& b) { b.create_context(context); });
    d.h.answer_all(1, -6);
    d.h.close(1);
    d.h.dev->reset();
    const std::vector<std::string> expected{
        "open 1", "submit 24 bytes, 1 objects 1", "forwarded 1", "done -6 1", "close 1", "reset"};
    EXPECT_EQ(d.tap.calls, expected);
}

TEST(device_tap, hears_of_what_is_executed_only) {
    tapped_device d;
    d.set_up(1);
    // A buffer beyond the file's memory is refused by the device; the marker before it is not.
    d.h.submit(1,
               [](auto& b) { b.marker({queue, 0, {}}).create_buffer(9, context, std::uint64_t{1} << 50); });
    const std::uint64_t marker_bytes = stream_builder{}.marker({queue, 0, {}}).stream().size();
    EXPECT_EQ(d.tap.calls.at(0), "submit " + std::to_string(marker_bytes) + " bytes, 2 objects 1");
    d.tap.calls.clear();
    d.h.submit(1, [](auto& b) { b.flush(99); });
    EXPECT_TRUE(d.tap.calls.empty());
}

TEST(device_tap, holds_requests_back_in_their_order) {
    tapped_device d;
    d.set_up(1);
    d.set_up(2);
    const std::size_t before = d.at_worker(1).size();
    d.marker(1);
    d.tap.in_submit = [&] {
        EXPECT_TRUE(d.inject(1, 11)); // comes before the request in hand
        d.h.dev->hold_requests(1);
    };
    d.marker(1);
    d.tap.in_submit = {};
    EXPECT_TRUE(d.inject(1, 12));
    d.marker(1);
    d.marker(2);
    const auto count = [&](std::uint32_t file) { return d.at_worker(file).size(); };
    EXPECT_EQ(count(1), before + 2);
    EXPECT_EQ(count(2), 1u) << "another file";
    d.h.answer_all(1); // what the worker had may end
    EXPECT_EQ(count(1), 0u);
    d.h.dev->release_requests(2); // was not held
    d.h.dev->release_requests(1);
    const auto seen = d.at_worker(1);
    ASSERT_EQ(seen.size(), 3u);
    EXPECT_GE(seen[0], 0);
    EXPECT_EQ(seen[1], -12);
    EXPECT_GT(seen[2], seen[0]);
    d.h.answer_all(1);
    d.marker(1);
    EXPECT_EQ(count(1), 1u);
}

TEST(device_tap, a_file_that_ends_takes_what_was_held_with_it) {
    tapped_device d;
    d.set_up(1);
    d.tap.in_submit = [&] { d.h.dev->hold_requests(1); };
    const auto token = d.marker(1);
    d.tap.in_submit = {};
    d.h.close(1);
    EXPECT_EQ(d.h.status_of(token), VGPU_STATUS_CANCELED);
    d.h.dev->release_requests(1); // late
    d.set_up(1);
    d.marker(1);
    EXPECT_EQ(d.at_worker(1).size(), 1u);
}

TEST(device_tap, injects_between_the_guests_requests) {
    tapped_device d;
    d.set_up(1);
    d.tap.in_submit = [&] { EXPECT_TRUE(d.inject(1, 11)); };
    d.marker(1);
    d.tap.in_submit = {};
    EXPECT_TRUE(d.inject(1, 12));
    d.marker(1);
    const auto seen = d.at_worker(1);
    ASSERT_EQ(seen.size(), 4u);
    EXPECT_EQ(seen[0], -11) << "before the request that it was injected in front of";
    EXPECT_GE(seen[1], 0);
    EXPECT_EQ(seen[2], -12);
    EXPECT_GE(seen[3], 0);
    d.tap.calls.clear();
    d.h.answer_all(1);
    EXPECT_EQ(d.tap.calls,
              (std::vector<std::string>{"agent done 11 0 1", "done 0 1", "agent done 12 0 1", "done 0 1"}));
}

TEST(device_tap, keeps_the_order_when_the_port_is_full) {
    tapped_device d;
    d.set_up(1);
    auto& port = *d.h.ports[1];
    port.next_submit = worker::submit_result::full;
    d.marker(1);
    EXPECT_TRUE(d.inject(1, 21));
    d.marker(1);
    port.next_submit = worker::submit_result::accepted;
    EXPECT_TRUE(d.inject(1, 22)) << "must not overtake what waits";
    EXPECT_TRUE(port.received.empty());
    port.say([](worker::port_sink&) {});
    d.h.dispatch();
    const auto seen = d.at_worker(1);
    ASSERT_EQ(seen.size(), 4u);
    EXPECT_EQ(seen[1], -21);
    EXPECT_EQ(seen[3], -22);
}

TEST(device_tap, what_is_injected_while_a_port_is_drained_reaches_it_afterwards) {
    tapped_device d;
    d.set_up(1);
    const auto token = d.marker(1);
    d.tap.in_done = [&] {
        EXPECT_TRUE(d.inject(1, 31));
        EXPECT_TRUE(d.h.ports[1]->received.empty()) << "the port is inside of drain()";
    };
    d.h.answer_all(1);
    EXPECT_EQ(d.h.status_of(token), VGPU_STATUS_OK);
    EXPECT_EQ(d.at_worker(1), (std::vector<std::int64_t>{-31}));
}

TEST(device_tap, injects_nothing_into_a_file_without_a_worker) {
    tapped_device d;
    EXPECT_FALSE(d.inject(1, 1));
    EXPECT_EQ(d.h.dev->objects(1), nullptr);
    d.h.open(1);
    EXPECT_FALSE(d.inject(1, 1));
    EXPECT_NE(d.h.dev->objects(1), nullptr);
    d.h.close(1);
    d.set_up(2);
    d.h.ports[2]->lost(VGPU_LOST_CRASHED, 11);
    d.h.dispatch();
    EXPECT_EQ(d.tap.calls, std::vector<std::string>{"lost 2"});
    EXPECT_FALSE(d.inject(2, 1));
}

TEST(device_tap, a_worker_that_answers_what_was_not_injected_is_lost) {
    for (const std::uint64_t token : {token_bit | 41, token_bit | 42}) {
        tapped_device d;
        d.set_up(1);
        EXPECT_TRUE(d.inject(1, 41));
        d.h.ports[1]->done(token);
        d.h.dispatch();
        EXPECT_EQ(d.tap.calls.back(), token == (token_bit | 41) ? "agent done 41 0 1" : "lost 1");
        if (token == (token_bit | 41)) {
            d.h.ports[1]->done(token);
            d.h.dispatch();
            EXPECT_EQ(d.tap.calls.back(), "lost 1") << "twice";
        }
    }
}

TEST(device_tap, records_of_the_agent_go_to_the_tap_alone) {
    tapped_device d;
    d.set_up(1);
    d.h.ports[1]->record(completion(VGPU_HOST_ID_BIT | 5));
    d.h.ports[1]->record(testing::queue_error(agent_queue, -5));
    d.h.dispatch();
    EXPECT_EQ(d.tap.agent_records.size(), 2u);
    EXPECT_TRUE(d.h.records.empty());
    EXPECT_TRUE(d.h.ports.contains(1));
    // The same without a tap: nobody has such an event.
    device_harness untapped;
    untapped.open(1);
    untapped.submit(1, [](auto& b) { b.create_context(context); });
    untapped.ports[1]->record(completion(VGPU_HOST_ID_BIT | 5));
    untapped.dispatch();
    EXPECT_EQ(untapped.stats().workers_lost, 1u);
}

// A standby that became a primary: commands of the dead primary's agent may complete after that.
TEST(device_tap, completions_of_what_came_by_the_log_are_the_files_own) {
    constexpr guest_id old_agents = VGPU_HOST_ID_BIT | 7;
    tapped_device d;
    device_harness& h = d.h;
    recording_tap& tap = d.tap;
    d.set_up(1);
    h.from = device::origin::log_of_mirror;
    h.submit(1, [&](auto& b) { b.marker({queue, old_agents, {}}); });
    h.from = device::origin::guest;
    const std::array awaited{old_agents};
    h.dev->await_events(1, awaited);
    h.submit(1, [](auto& b) { b.flush(queue); });
    EXPECT_EQ(h.ports.at(1)->received.size(), 1u);
    tap.calls.clear();
    h.ports.at(1)->record(completion(old_agents));
    h.dispatch();
    EXPECT_EQ(h.ports.at(1)->received.size(), 2u);
    EXPECT_TRUE(tap.calls.empty()) << "neither the new agent's nor the guest's";
    h.ports.at(1)->record(completion(old_agents)); // the same id now is the new agent's
    h.dispatch();
    EXPECT_EQ(tap.agent_records.size(), 1u);
}

TEST(device_tap, a_malformed_record_of_the_agent_breaks_the_protocol) {
    tapped_device d;
    d.set_up(1);
    d.h.ports[1]->record(completion(VGPU_HOST_ID_BIT | 5, 1));
    d.h.dispatch();
    EXPECT_EQ(d.tap.calls, std::vector<std::string>{"lost 1"});
}

TEST(device_tap, a_held_answer_is_given_when_it_is_released) {
    tapped_device d;
    d.set_up(1);
    d.tap.lets_answers_go = false;
    const auto token = d.marker(1);
    d.h.answer_all(1);
    EXPECT_EQ(d.h.status_of(token), not_answered);
    d.h.dev->release_answer(1, d.tap.guest_tokens.back());
    EXPECT_EQ(d.h.status_of(token), VGPU_STATUS_OK);
    d.h.dev->release_answer(1, d.tap.guest_tokens.back());
    EXPECT_EQ(d.h.status_of(token), VGPU_STATUS_OK) << "once";
}

TEST(device_tap, held_answers_are_given_when_the_file_ends) {
    enum class end { close, lost, reset };
    for (const end how : {end::close, end::lost, end::reset}) {
        tapped_device d;
        d.set_up(1);
        d.tap.lets_answers_go = d.tap.lets_records_go = false;
        const auto token = d.marker(1, first_event);
        d.h.ports[1]->record(completion(first_event));
        d.h.answer_all(1);
        EXPECT_EQ(d.h.status_of(token), not_answered);
        EXPECT_TRUE(d.h.records.empty());
        if (how == end::close) {
            d.h.close(1);
        } else if (how == end::reset) {
            d.h.dev->reset();
        } else {
            d.h.ports[1]->lost(VGPU_LOST_CRASHED, 11);
            d.h.dispatch();
            ASSERT_EQ(d.h.records.size(), 2u) << "the held completion, then LOST";
            EXPECT_EQ(testing::as<vgpu_record>(d.h.records[1]).type, unsigned{VGPU_RECORD_LOST});
        }
        EXPECT_EQ(d.h.status_of(token), VGPU_STATUS_OK) << "it was executed";
        d.h.dev->release_answer(1, d.tap.guest_tokens.back());
        d.h.dev->release_records(1);
        EXPECT_EQ(d.h.status_of(token), VGPU_STATUS_OK);
    }
}

TEST(device_tap, held_answers_count_as_requests_in_flight) {
    tapped_device d([](device_config& c) { c.file.max_requests = 4; });
    d.set_up(1);
    d.tap.lets_answers_go = false;
    for (int i = 0; i < 4; ++i) {
        d.marker(1);
        d.h.answer_all(1);
    }
    EXPECT_EQ(d.h.status_of(d.marker(1)), VGPU_STATUS_LIMIT);
    d.h.dev->release_answer(1, d.tap.guest_tokens.back());
    EXPECT_EQ(d.h.status_of(d.marker(1)), not_answered);
}

TEST(device_tap, held_records_keep_their_order_and_other_files_do_not_wait) {
    tapped_device d;
    d.set_up(1);
    d.set_up(2);
    d.tap.lets_records_go = false;
    d.marker(1, first_event);
    d.marker(1, first_event + 1);
    d.h.ports[1]->record(completion(first_event));
    d.h.dispatch();
    d.tap.lets_records_go = true;
    d.h.ports[1]->record(completion(first_event + 1));
    d.marker(2, first_event);
    d.h.ports[2]->record(completion(first_event));
    d.h.dispatch();
    d.h.dev->event_space();
    ASSERT_EQ(d.h.records.size(), 1u);
    EXPECT_EQ(testing::as<vgpu_record>(d.h.records[0]).file, 2u);
    d.h.dev->release_records(1);
    ASSERT_EQ(d.h.records.size(), 3u);
    EXPECT_EQ(testing::as<vgpu_record_completion>(d.h.records[1]).event, first_event);
    EXPECT_EQ(testing::as<vgpu_record_completion>(d.h.records[2]).event, first_event + 1);
}

TEST(device_tap, records_that_were_held_and_had_no_room_come_when_there_is_both) {
    tapped_device d;
    d.set_up(1);
    d.h.room = 0;
    d.marker(1, first_event);
    d.marker(1, first_event + 1);
    d.h.ports[1]->record(completion(first_event));
    d.h.dispatch();
    d.tap.lets_records_go = false;
    d.h.ports[1]->record(completion(first_event + 1));
    d.h.dispatch();
    d.h.room = 10;
    d.h.dev->event_space();
    EXPECT_TRUE(d.h.records.empty());
    d.h.dev->release_records(1);
    EXPECT_EQ(d.h.records.size(), 2u);
}

bool readable_within(int fd, int ms) {
    pollfd p{fd, POLLIN, 0};
    return poll(&p, 1, ms) == 1;
}

TEST(device_tap, ticks_while_it_wants_them) {
    tapped_device d([](device_config& c) { c.hang_timeout_ms = 0; });
    d.h.open(1);
    d.tap.calls.clear();
    EXPECT_FALSE(readable_within(d.h.dev->poll_fd(), 30));
    d.h.dev->set_tick_period(1);
    ASSERT_TRUE(readable_within(d.h.dev->poll_fd(), 20000));
    d.h.dispatch();
    EXPECT_EQ(d.tap.calls, std::vector<std::string>{"tick"});
    d.h.dev->set_tick_period(0);
    d.h.dispatch();
    EXPECT_FALSE(readable_within(d.h.dev->poll_fd(), 30));
    EXPECT_EQ(d.tap.calls.size(), 1u);
}

// A device whose timer has expired, with a clock of the test's own.
struct watched : tapped_device {
    watched() : tapped_device([](device_config& c) { c.hang_timeout_ms = 40; }) { set_up(1); }
    void pass(std::uint64_t ms) {
        h.now_ms += ms;
        ASSERT_TRUE(readable_within(h.dev->poll_fd(), 20000));
        h.dispatch();
    }
    bool lost() const { return h.stats().workers_killed_hung != 0; }
};

TEST(device_tap, work_of_the_agent_that_waits_is_no_hang) {
    watched d;
    d.h.dev->set_tick_period(10);
    EXPECT_TRUE(d.inject(1, 1));
    d.pass(100);
    d.pass(100);
    d.pass(100);
    EXPECT_FALSE(d.lost());
}

TEST(device_tap, work_of_the_agent_is_no_progress_of_the_guests) {
    watched d;
    d.marker(1);
    for (std::uint64_t i = 1; i < 10 && !d.lost(); ++i) {
        EXPECT_TRUE(d.inject(1, i));
        d.h.ports[1]->progress_value += 3; // the agent's
        d.h.ports[1]->done(token_bit | i);
        d.h.dispatch();
        d.pass(15);
    }
    EXPECT_TRUE(d.lost());
}

TEST(device_tap, progress_of_the_guests_work_counts_beside_the_agents) {
    watched d;
    d.marker(1);
    EXPECT_TRUE(d.inject(1, 1)); // waits behind the guest's work
    for (int i = 0; i < 10; ++i) {
        d.h.ports[1]->progress_value += 1;
        d.pass(30);
    }
    EXPECT_FALSE(d.lost());
}

TEST(device_tap, what_the_tap_holds_back_is_no_hang) {
    watched d;
    d.tap.in_submit = [&] { d.h.dev->hold_requests(1); };
    d.marker(1);
    d.pass(100);
    d.pass(100);
    EXPECT_FALSE(d.lost());
    d.h.dev->release_requests(1);
    d.pass(20);
    EXPECT_FALSE(d.lost());
    d.pass(100);
    EXPECT_TRUE(d.lost());
}

TEST(device_tap, ids_of_the_host_are_refused_to_a_guest_and_allowed_to_a_standby) {
    for (const bool standby : {false, true}) {
        device_harness h;
        h.from = standby ? device::origin::log : device::origin::guest;
        h.open(1);
        h.submit(1, [](auto& b) { b.create_context(context); });
        h.submit(1, [](auto& b) { b.create_queue(queue, context); });
        h.answer_all(1);
        const auto status = standby ? not_answered : std::uint32_t{VGPU_STATUS_MALFORMED};
        EXPECT_EQ(h.status_of(h.submit(1, [](auto& b) { b.create_queue(agent_queue, context); })), status);
        EXPECT_EQ(h.status_of(h.submit(1, [](auto& b) { b.marker({queue, VGPU_HOST_ID_BIT | 1, {}}); })),
                  status);
        EXPECT_EQ(
            h.status_of(h.submit(1, [](auto& b) { b.create_user_event(VGPU_HOST_ID_BIT | 2, context); })),
            status);
    }
}

} // namespace
} // namespace kagemusha::core
