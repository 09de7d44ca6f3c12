// SPDX-License-Identifier: GPL-2.0-or-later
// worker_output: everything that a worker tells the device: answers, completions, what kernels print, signs
// of life.
//
// Locking in this file: `text_mutex_` keeps the order of printed text and is taken before `ring_mutex_`,
// which makes several threads one writer of the ring.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "base/unique_fd.hpp"
#include "worker/executor_factory.hpp"
#include "worker/ring.hpp"

namespace kagemusha::worker {

class worker_output final : public gpu::executor_sink {
public:
    worker_output(channel_memory& channel, unique_fd completion_bell);

    // Turns standard output into text records from here on. "" or why not.
    std::string capture_standard_output();
    // Starts the thread that forwards text and signs of life of `executor`, and ends the process when
    // `device_end` (a socket whose other end the device holds) is closed. Once; the executor lives as long as
    // the process.
    void start(const request_executor& executor, int device_end);

    void opened(std::string_view own_selector) { sentence(record_type::opened, own_selector); }
    void ready(std::string_view gpu_name) { sentence(record_type::ready, gpu_name); }
    void refused(std::string_view why) { sentence(record_type::refused, why); }

    // gpu::executor_sink, any thread. While the device has not taken what came before, these wait.
    void on_done(std::uint64_t token, const vgpu_response& response) override;
    void on_written(std::uint64_t token, std::uint32_t payload) override;
    void on_record(std::span<const std::byte> record) override;
    void on_gpu_lost(std::uint32_t detail) override;
    void before_completion() override;

private:
    void sentence(record_type type, std::string_view text);
    void post(record_type type, parts record);
    // False when there is no room below `limit_bytes` of backlog.
    bool try_post(record_type type, parts record, std::size_t limit_bytes);
    void forward_text();
    void post_text(std::string_view text);
    void watch(int device_end);

    channel_memory& channel_;
    const unique_fd completion_bell_;
    unique_fd text_; // the reading end of standard output
    std::atomic<const request_executor*> executor_ = nullptr;

    std::mutex text_mutex_;
    std::uint64_t dropped_bytes_ = 0; // text_mutex_

    std::mutex ring_mutex_;
    ring_writer ring_; // ring_mutex_
};

} // namespace kagemusha::worker
