// SPDX-License-Identifier: GPL-2.0-or-later
// worker_output: see worker_output.hpp.
#include "worker/worker_output.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "worker/doorbell.hpp"

namespace kagemusha::worker {

namespace {

// How long to sleep until the next look at a full ring: the device takes what is there within such times.
constexpr auto full_ring_pause = std::chrono::microseconds(200);

// Printed text waits so often for room before it is dropped (two seconds): a device that takes nothing for so
// long has a guest that reads nothing, and the guest's program must not stand still because of it.
constexpr int text_tries = 10000;

// Signs of life are published at least so often.
constexpr int progress_interval_ms = 500;

// A kernel can print so much at once without waiting for the thread that forwards it.
constexpr int text_pipe_bytes = 1 << 20;

constexpr std::size_t max_text_bytes = VGPU_MAX_RECORD_BYTES - sizeof(vgpu_record_text);
static_assert(max_text_bytes % 8 == 0);

} // namespace

worker_output::worker_output(channel_memory& channel, unique_fd completion_bell)
    : channel_(channel), completion_bell_(std::move(completion_bell)), ring_(channel.completion_ring()) {}

std::string worker_output::capture_standard_output() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return std::string("no pipe for standard output: ") + std::strerror(errno);
    text_.reset(ends[0]);
    const unique_fd writing(ends[1]);
    fcntl(text_.get(), F_SETFL, O_NONBLOCK);
    fcntl(text_.get(), F_SETPIPE_SZ,
          text_pipe_bytes); // may fail for a user with many pipes: then it is smaller
    if (dup2(writing.get(), STDOUT_FILENO) < 0)
        return std::string("standard output can't be replaced: ") + std::strerror(errno);
    // Kernels that print with stdio keep their text no longer than a line.
    setvbuf(stdout, nullptr, _IOLBF, 0);
    return "";
}

void worker_output::start(const request_executor& executor, int device_end) {
    executor_ = &executor;
    std::thread([this, device_end] { watch(device_end); }).detach();
}

void worker_output::watch(int device_end) {
    pthread_setname_np(pthread_self(), "output");
    pollfd fds[] = {{device_end, POLLIN, 0}, {text_.get(), POLLIN, 0}};
    for (;;) {
        poll(fds, 2, progress_interval_ms);
        // The device never sends anything after the setup, so this is its end.
        if (fds[0].revents != 0)
            _exit(0);
        if (fds[1].revents != 0)
            forward_text();
        channel_.progress.store(executor_.load()->progress(), std::memory_order_relaxed);
    }
}

void worker_output::on_done(std::uint64_t token, const vgpu_response& response) {
    const done_record done{token, response};
    const std::span<const std::byte> part = bytes_of(done);
    post(record_type::done, {&part, 1});
}

void worker_output::on_written(std::uint64_t token, std::uint32_t payload) {
    const written_record written{token, payload, 0};
    const std::span<const std::byte> part = bytes_of(written);
    post(record_type::written, {&part, 1});
}

void worker_output::on_record(std::span<const std::byte> record) {
    post(record_type::guest, {&record, 1});
}

void worker_output::on_gpu_lost(std::uint32_t detail) {
    const gpu_lost_record lost{detail, 0};
    const std::span<const std::byte> part = bytes_of(lost);
    post(record_type::gpu_lost, {&part, 1});
}

void worker_output::before_completion() {
    forward_text();
}

void worker_output::sentence(record_type type, std::string_view text) {
    const auto part = std::as_bytes(std::span(text.substr(0, max_sentence_bytes)));
    post(type, {&part, 1});
}

bool worker_output::try_post(record_type type, parts record, std::size_t limit_bytes) {
    const std::lock_guard lock(ring_mutex_);
    if (limit_bytes < completion_ring_bytes && ring_.backlog() + max_answer_bytes > limit_bytes)
        return false;
    switch (ring_.write(type, record)) {
    case ring_status::ok:
        break;
    case ring_status::nothing:
        return false;
    case ring_status::broken:
        _exit(1); // a kernel scribbled over the ring; the device notices that as well
    }
    if (ring_.reader_needs_wake())
        ring_doorbell(completion_bell_.get());
    return true;
}

void worker_output::post(record_type type, parts record) {
    while (!try_post(type, record, completion_ring_bytes))
        std::this_thread::sleep_for(full_ring_pause);
    if (const auto* executor = executor_.load())
        channel_.progress.store(executor->progress(), std::memory_order_relaxed);
}

void worker_output::forward_text() {
    const std::lock_guard lock(text_mutex_);
    char buffer[max_text_bytes];
    for (;;) {
        const ssize_t got = read(text_.get(), buffer, sizeof buffer);
        if (got > 0)
            post_text({buffer, static_cast<std::size_t>(got)});
        else if (got == 0 || errno != EINTR)
            break;
    }
}

void worker_output::post_text(std::string_view text) {
    const std::size_t padded = (text.size() + 7) / 8 * 8;
    vgpu_record_text head{};
    head.record = {VGPU_RECORD_TEXT, static_cast<std::uint32_t>(sizeof head + padded), 0, 0};
    head.text_bytes = static_cast<std::uint32_t>(text.size());
    constexpr std::byte zeros[8]{};
    const std::span<const std::byte> record[] = {bytes_of(head), std::as_bytes(std::span(text)),
                                                 std::span(zeros).first(padded - text.size())};

    // Once text was dropped, later text is not worth a wait until there is room again.
    const int tries = dropped_bytes_ != 0 ? 1 : text_tries;
    for (int i = 0; i < tries; ++i) {
        if (dropped_bytes_ != 0) {
            vgpu_record_text_dropped gap{};
            gap.record = {VGPU_RECORD_TEXT_DROPPED, sizeof gap, 0, 0};
            gap.dropped_bytes = dropped_bytes_;
            const std::span<const std::byte> part = bytes_of(gap);
            if (!try_post(record_type::guest, {&part, 1}, text_ring_bytes))
                break;
            dropped_bytes_ = 0;
        }
        if (try_post(record_type::guest, record, text_ring_bytes))
            return;
        std::this_thread::sleep_for(full_ring_pause);
    }
    dropped_bytes_ += text.size();
}

} // namespace kagemusha::worker
