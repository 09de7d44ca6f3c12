// SPDX-License-Identifier: GPL-2.0-or-later
// Tests of the port that executes in this process, with an executor that only echoes.
#include "worker/in_process_port.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <vector>

namespace kagemusha::worker {
namespace {

// Answers every request with its stream's length; a stream that begins with 1 also sends a record, with 2
// loses the GPU.
class echo_executor final : public request_executor {
public:
    explicit echo_executor(gpu::executor_sink& sink) : sink_(sink) {}
    void execute(const request_view& request) override {
        ++progress_;
        std::uint64_t first = 0;
        if (!request.stream.empty())
            std::memcpy(&first, request.stream.data(), 8);
        if (first == 1) {
            vgpu_record_completion record{};
            record.record = {VGPU_RECORD_COMPLETION, sizeof record, 0, 0};
            record.event = request.token;
            sink_.on_record(std::as_bytes(std::span(&record, 1)));
        }
        if (first == 2)
            return sink_.on_gpu_lost(99);
        vgpu_response response{};
        response.value = request.stream.size();
        sink_.on_done(request.token, response);
    }
    std::uint64_t progress() const override { return progress_; }

private:
    gpu::executor_sink& sink_;
    std::atomic<std::uint64_t> progress_ = 0;
};

opened_executor open_echo(std::span<const gpu::region_view>, gpu::executor_sink& sink) {
    return {std::make_unique<echo_executor>(sink), "echo", ""};
}

struct recording_sink final : port_sink {
    struct done_call {
        std::uint64_t token;
        std::uint64_t value;
    };
    void on_done(std::uint64_t token, const vgpu_response& response) override {
        done.push_back({token, response.value});
        if (when_done)
            when_done();
    }
    void on_written(std::uint64_t, std::uint32_t) override {}
    void on_record(std::span<const std::byte> record) override {
        records.emplace_back(record.begin(), record.end());
    }
    void on_lost(vgpu_lost_reason reason, std::uint32_t detail) override { lost.push_back({reason, detail}); }

    std::vector<done_call> done;
    std::vector<std::vector<std::byte>> records;
    std::vector<std::pair<vgpu_lost_reason, std::uint32_t>> lost;
    std::function<void()> when_done;
};

bool wait_readable(const port& p) {
    pollfd fd{p.event_fd(), POLLIN, 0};
    return poll(&fd, 1, 20000) == 1;
}

std::unique_ptr<port> open_port() {
    std::string error;
    auto made = make_in_process_port(open_echo, {}, error);
    EXPECT_TRUE(made) << error;
    return made;
}

TEST(in_process_port, answers_every_request_in_order) {
    const auto port = open_port();
    recording_sink sink;
    constexpr std::uint64_t count = 5000;
    std::vector<std::uint64_t> stream(8);
    for (std::uint64_t token = 0; token < count; ++token) {
        const request_view request{token, std::as_bytes(std::span(stream)).first(8 * (token % 8)), {}, {}};
        submit_result result;
        while ((result = port->submit(request)) == submit_result::full) {
            port->kick();
            ASSERT_TRUE(wait_readable(*port));
            port->drain(sink);
        }
        ASSERT_EQ(result, submit_result::accepted);
    }
    port->kick();
    while (sink.done.size() < count) {
        ASSERT_TRUE(wait_readable(*port));
        port->drain(sink);
    }
    for (std::uint64_t i = 0; i < count; ++i) {
        ASSERT_EQ(sink.done[i].token, i);
        ASSERT_EQ(sink.done[i].value, 8 * (i % 8));
    }
    EXPECT_EQ(port->progress(), count);
    EXPECT_TRUE(sink.lost.empty());
}

TEST(in_process_port, records_come_before_the_answer_that_follows_them) {
    const auto port = open_port();
    recording_sink sink;
    const std::uint64_t one = 1;
    ASSERT_EQ(port->submit({5, std::as_bytes(std::span(&one, 1)), {}, {}}), submit_result::accepted);
    port->kick();
    std::size_t records_at_answer = 0;
    sink.when_done = [&] { records_at_answer = sink.records.size(); };
    while (sink.done.empty()) {
        ASSERT_TRUE(wait_readable(*port));
        port->drain(sink);
    }
    EXPECT_EQ(records_at_answer, 1u);
}

TEST(in_process_port, a_lost_gpu_ends_the_port_once) {
    const auto port = open_port();
    recording_sink sink;
    const std::uint64_t two = 2;
    ASSERT_EQ(port->submit({5, std::as_bytes(std::span(&two, 1)), {}, {}}), submit_result::accepted);
    port->kick();
    while (sink.lost.empty()) {
        ASSERT_TRUE(wait_readable(*port));
        port->drain(sink);
    }
    port->drain(sink);
    ASSERT_EQ(sink.lost.size(), 1u);
    EXPECT_EQ(sink.lost[0], std::make_pair(VGPU_LOST_GPU, std::uint32_t{99}));
    EXPECT_EQ(port->submit({6, {}, {}, {}}), submit_result::dead);
}

TEST(in_process_port, kill_with_work_in_flight_gives_nothing_afterwards) {
    const auto port = open_port();
    recording_sink sink;
    for (std::uint64_t token = 0; token < 1000; ++token)
        ASSERT_EQ(port->submit({token, {}, {}, {}}), submit_result::accepted);
    port->kick();
    port->kill();
    port->drain(sink);
    EXPECT_TRUE(sink.done.empty());
    EXPECT_EQ(port->submit({6, {}, {}, {}}), submit_result::dead);
}

TEST(in_process_port, a_sink_may_kill_the_port) {
    const auto port = open_port();
    recording_sink sink;
    for (std::uint64_t token = 0; token < 100; ++token)
        ASSERT_EQ(port->submit({token, {}, {}, {}}), submit_result::accepted);
    port->kick();
    sink.when_done = [&] { port->kill(); };
    while (sink.done.empty()) {
        ASSERT_TRUE(wait_readable(*port));
        port->drain(sink);
    }
    EXPECT_EQ(sink.done.size(), 1u);
}

TEST(in_process_port, tells_why_a_gpu_does_not_open) {
    std::string error;
    const auto port = make_in_process_port(
        [](auto, auto&) -> opened_executor { return {nullptr, "", "no such GPU"}; }, {}, error);
    EXPECT_FALSE(port);
    EXPECT_EQ(error, "no such GPU");
}

TEST(in_process_port, a_malformed_request_is_answered) {
    const auto port = open_port();
    recording_sink sink;
    const std::byte odd[3]{};
    ASSERT_EQ(port->submit({5, odd, {}, {}}), submit_result::accepted);
    port->kick();
    while (sink.done.empty()) {
        ASSERT_TRUE(wait_readable(*port));
        port->drain(sink);
    }
    EXPECT_EQ(sink.done[0].token, 5u);
}

} // namespace
} // namespace kagemusha::worker
