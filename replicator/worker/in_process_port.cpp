// SPDX-License-Identifier: GPL-2.0-or-later
// in_process_port: see in_process_port.hpp.
//
// Locking in this file: `in_mutex_` guards what the owner thread hands to the executor's thread, `out_mutex_`
// what comes back from any thread. Neither is held while the executor or the caller's sink runs.
#include "worker/in_process_port.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "worker/wire.hpp"

namespace kagemusha::worker {

namespace {

// Records one behind the other in private memory, in words so that each is 8-byte aligned.
class record_queue {
public:
    std::size_t bytes() const { return words_.size() * 8; }

    void append(record_type type, parts record) {
        const std::size_t length = total_bytes(record);
        const std::size_t begin = words_.size();
        words_.resize(begin + 1 + (length + 7) / 8);
        words_[begin] = static_cast<std::uint64_t>(type) << 32 | length;
        auto* out = reinterpret_cast<std::byte*>(words_.data() + begin + 1);
        for (auto part : record) {
            if (!part.empty())
                std::memcpy(out, part.data(), part.size());
            out += part.size();
        }
    }

    template <class F>
    void take_all(F&& f) { // f(record_type, span) -> bool: go on
        for (std::size_t at = 0; at < words_.size();) {
            const std::size_t length = words_[at] & UINT32_MAX;
            const auto type = static_cast<record_type>(words_[at] >> 32);
            const auto record = std::as_bytes(std::span(words_)).subspan(8 * (at + 1), length);
            at += 1 + (length + 7) / 8;
            if (!f(type, record))
                break;
        }
        words_.clear();
    }

    void swap(record_queue& other) { words_.swap(other.words_); }

private:
    std::vector<std::uint64_t> words_;
};

class in_process_port final : public port, private gpu::executor_sink {
public:
    in_process_port(executor_factory factory, std::vector<gpu::region_view> regions)
        : regions_(std::move(regions)), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
        std::promise<std::string> opened;
        auto result = opened.get_future();
        if (event_ < 0) {
            error_ = std::string("no event descriptor: ") + std::strerror(errno);
            return;
        }
        thread_ = std::thread([this, factory = std::move(factory), opened = std::move(opened)]() mutable {
            run(factory, opened);
        });
        error_ = result.get();
    }

    ~in_process_port() override {
        kill();
        if (event_ >= 0)
            close(event_);
    }

    const std::string& error() const { return error_; }

    // ---- the owner thread

    submit_result submit(const request_view& request) override {
        if (dead_)
            return submit_result::dead;
        const encoded_request encoded(request);
        const std::lock_guard lock(in_mutex_);
        if (in_.bytes() + 16 + total_bytes(encoded.parts()) > in_process_queue_bytes)
            return submit_result::full;
        in_.append(record_type::request, encoded.parts());
        return submit_result::accepted;
    }

    void kick() override { in_ready_.notify_one(); }

    int event_fd() const override { return event_; }

    void drain(port_sink& sink) override {
        if (dead_)
            return;
        {
            const std::lock_guard lock(out_mutex_);
            out_.swap(drained_);
            if (std::exchange(out_signalled_, false)) {
                std::uint64_t ignored;
                if (read(event_, &ignored, sizeof ignored) < 0)
                    ignored = 0; // nothing to take back: someone polled too early
            }
        }
        out_room_.notify_all();
        drained_.take_all([&](record_type type, std::span<const std::byte> record) {
            if (type == record_type::done) {
                const auto done = decode_done(record);
                sink.on_done(done->token, done->response);
            } else if (type == record_type::written) {
                const auto written = decode_written(record);
                sink.on_written(written->token, written->payload);
            } else if (type == record_type::guest) {
                sink.on_record(record);
            } else {
                const auto lost = decode_gpu_lost(record);
                kill();
                sink.on_lost(VGPU_LOST_GPU, lost->detail);
                return false;
            }
            return !dead_; // a sink may have killed the port
        });
    }

    void kill() override {
        dead_ = true;
        {
            const std::scoped_lock lock(in_mutex_, out_mutex_);
            stopping_ = true;
        }
        in_ready_.notify_all();
        out_room_.notify_all();
        if (thread_.joinable())
            thread_.join();
    }
    bool gone() override { return true; } // kill() has waited for the thread

    std::uint64_t progress() const override {
        const std::lock_guard lock(out_mutex_);
        return executor_ ? executor_->progress() : 0;
    }

private:
    // ---- the executor's thread

    void run(executor_factory& factory, std::promise<std::string>& opened) {
        {
            auto made = factory(regions_, *this);
            const bool ok = made.executor != nullptr;
            {
                const std::lock_guard lock(out_mutex_);
                executor_ = std::move(made.executor);
            }
            opened.set_value(ok                   ? std::string()
                             : made.error.empty() ? "the GPU can't be opened"
                                                  : made.error);
            if (!ok)
                return;
        }
        request_executor& executor = *executor_;
        record_queue batch;
        for (;;) {
            {
                std::unique_lock lock(in_mutex_);
                in_ready_.wait(lock, [&] { return stopping_ || in_.bytes() != 0; });
                if (stopping_)
                    break;
                batch.swap(in_);
            }
            batch.take_all([&](record_type, std::span<const std::byte> record) {
                const auto request = decode_request(record);
                if (request) {
                    executor.execute(*request);
                } else { // the caller broke the limits of the format: answer it like a device would
                    vgpu_response response{};
                    response.status = VGPU_STATUS_MALFORMED;
                    response.failed_offset = UINT32_MAX;
                    request_header header;
                    std::memcpy(&header, record.data(), sizeof header);
                    on_done(header.token, response);
                }
                const std::lock_guard lock(in_mutex_);
                return !stopping_;
            });
        }
        std::unique_ptr<request_executor> ended;
        {
            const std::lock_guard lock(out_mutex_);
            ended = std::move(executor_);
        }
    }

    // ---- any thread

    void on_done(std::uint64_t token, const vgpu_response& response) override {
        const done_record done{token, response};
        const std::span<const std::byte> part = bytes_of(done);
        post(record_type::done, {&part, 1});
    }

    void on_written(std::uint64_t token, std::uint32_t payload) override {
        const written_record written{token, payload, 0};
        const std::span<const std::byte> part = bytes_of(written);
        post(record_type::written, {&part, 1});
    }

    void on_record(std::span<const std::byte> record) override { post(record_type::guest, {&record, 1}); }

    void on_gpu_lost(std::uint32_t detail) override {
        const gpu_lost_record lost{detail, 0};
        const std::span<const std::byte> part = bytes_of(lost);
        post(record_type::gpu_lost, {&part, 1});
    }

    void post(record_type type, parts record) {
        std::unique_lock lock(out_mutex_);
        out_room_.wait(lock, [&] { return stopping_ || out_.bytes() < in_process_queue_bytes; });
        if (stopping_)
            return;
        out_.append(type, record);
        if (std::exchange(out_signalled_, true))
            return;
        const std::uint64_t one = 1;
        if (write(event_, &one, sizeof one) != sizeof one)
            out_signalled_ = false; // only when the counter is full, and then it is readable anyway
    }

    const std::vector<gpu::region_view> regions_;
    const int event_;
    std::string error_;
    bool dead_ = false;    // owner thread only
    record_queue drained_; // owner thread only

    std::mutex in_mutex_;
    std::condition_variable in_ready_;
    record_queue in_;

    mutable std::mutex out_mutex_;
    std::condition_variable out_room_;
    record_queue out_;
    bool out_signalled_ = false;
    std::unique_ptr<request_executor> executor_; // its methods are called by run() without the lock

    bool stopping_ = false; // written with both locks held, read with either
    std::thread thread_;
};

} // namespace

std::unique_ptr<port> make_in_process_port(executor_factory factory, std::vector<gpu::region_view> regions,
                                           std::string& error) {
    auto made = std::make_unique<in_process_port>(std::move(factory), std::move(regions));
    if (!made->error().empty()) {
        error = made->error();
        return nullptr;
    }
    return made;
}

} // namespace kagemusha::worker
