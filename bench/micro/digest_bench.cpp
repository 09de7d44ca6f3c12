// SPDX-License-Identifier: GPL-2.0-or-later
// What comparing GPU memory costs: the hash kernel of mirror/sync/digest on a GPU for several sizes of
// work-groups, against reading the same memory, and the reference on one core of the host. KAGEMUSHA_TEST_GPU
// chooses the OpenCL device; KAGEMUSHA_BENCH_BYTES how much memory (64 MiB).
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "codec/encode.hpp"
#include "gpu/backend.hpp"
#include "gpu/executor.hpp"
#include "mirror/sync/digest.hpp"

namespace kagemusha {
namespace {

using codec::stream_builder;

constexpr std::uint64_t chunk_bytes = 256 << 10;
constexpr std::uint64_t context = 1, queue = 2, data = 3, hashes = 4, program = 5, kernel = 6;

std::uint64_t bytes_wanted() {
    const char* text = std::getenv("KAGEMUSHA_BENCH_BYTES");
    const std::uint64_t bytes = text ? std::strtoull(text, nullptr, 0) : std::uint64_t{64} << 20;
    return std::max<std::uint64_t>(bytes / chunk_bytes, 1) * chunk_bytes;
}

class gpu_session final : public gpu::executor_sink {
public:
    gpu_session()
        : bytes(bytes_wanted())
        , memory_(static_cast<std::byte*>(
              mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)))
        , regions_{{memory_, bytes}} {
        const char* selector = std::getenv("KAGEMUSHA_TEST_GPU");
        auto opened = gpu::open_gpu("opencl", selector ? selector : "");
        if (!opened.device || memory_ == MAP_FAILED) {
            std::fprintf(stderr, "%s\n", opened.error.c_str());
            std::exit(1);
        }
        std::printf("GPU: %s, %llu MiB\n", gpu::describe(*opened.device).name.c_str(),
                    static_cast<unsigned long long>(bytes >> 20));
        executor_ = std::make_unique<gpu::executor>(std::move(opened.device), regions_, *this);
        run(stream_builder().create_context(context));
        run(stream_builder().create_queue(queue, context));
        run(stream_builder().create_buffer(data, context, bytes));
        run(stream_builder().create_buffer(hashes, context, bytes / chunk_bytes * 8));
        run(stream_builder().create_program(program, context, mirror::digest_kernel_source()));
        run(stream_builder().build_program(program));
        run(stream_builder().create_kernel(kernel, program, mirror::digest_kernel_name));
        for (std::uint64_t i = 0; i < bytes; i += 8)
            std::memcpy(memory_ + i, &i, 8);
        transfer(true);
    }

    void hash(std::uint64_t local) {
        codec::launch_size size;
        size.global[0] = bytes / chunk_bytes * local;
        size.local[0] = local;
        size.local[1] = size.local[2] = 1;
        const std::uint64_t event = ++last_event_;
        stream_builder b;
        b.launch({queue, event}, kernel, size,
                 codec::argument_builder()
                     .memory(0, data)
                     .scalar(1, bytes)
                     .scalar(2, chunk_bytes)
                     .memory(3, hashes)
                     .scalar(4, std::uint64_t{0}));
        run(b);
        wait(event);
    }
    void transfer(bool write) {
        const std::uint64_t event = ++last_event_;
        stream_builder b;
        const auto payload = b.payload(!write, 0, 0, bytes);
        if (write)
            b.write_buffer({queue, event}, data, 0, payload);
        else
            b.read_buffer({queue, event}, data, 0, payload);
        run(b);
        wait(event);
    }
    std::span<const std::byte> content() const { return {memory_, bytes}; }

    const std::uint64_t bytes;

private:
    void run(const stream_builder& b) { executor_->execute({1, b.stream(), b.payloads(), b.segments()}); }
    void wait(std::uint64_t event) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return done_.contains(event); });
        if (done_[event] != 0) {
            std::fprintf(stderr, "a command failed: %d\n", done_[event]);
            std::exit(1);
        }
        done_.erase(event);
    }
    void on_done(std::uint64_t, const vgpu_response& response) override {
        if (response.status != VGPU_STATUS_OK || response.result != 0) {
            std::fprintf(stderr, "a request failed: %u, %d\n", response.status, response.result);
            std::exit(1);
        }
    }
    void on_written(std::uint64_t, std::uint32_t) override {}
    void on_record(std::span<const std::byte> record) override {
        vgpu_record_completion c;
        if (record.size() != sizeof(c))
            return;
        std::memcpy(&c, record.data(), sizeof(c));
        const std::lock_guard lock(mutex_);
        done_[c.event] = c.status;
        changed_.notify_all();
    }
    void on_gpu_lost(std::uint32_t detail) override {
        std::fprintf(stderr, "the GPU was lost: %u\n", detail);
        std::exit(1);
    }

    std::byte* memory_;
    gpu::region_view regions_[1];
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::uint64_t, std::int32_t> done_;
    std::uint64_t last_event_ = 1000;
    std::unique_ptr<gpu::executor> executor_;
};

gpu_session& session() {
    static gpu_session s;
    return s;
}

void count(benchmark::State& state) {
    state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * session().bytes));
}

void digest_on_gpu(benchmark::State& state) {
    session().hash(static_cast<std::uint64_t>(state.range(0))); // the first launch compiles
    for (auto _ : state)
        session().hash(static_cast<std::uint64_t>(state.range(0)));
    count(state);
}
BENCHMARK(digest_on_gpu)->ArgName("work_group")->Arg(1)->Arg(16)->Arg(64)->Arg(256)->UseRealTime();

void read_instead(benchmark::State& state) {
    session().transfer(false);
    for (auto _ : state)
        session().transfer(false);
    count(state);
}
BENCHMARK(read_instead)->UseRealTime();

void digest_on_host(benchmark::State& state) {
    const auto content = session().content();
    for (auto _ : state)
        for (std::uint64_t at = 0; at < content.size(); at += chunk_bytes)
            benchmark::DoNotOptimize(mirror::chunk_hash(content.subspan(at, chunk_bytes)));
    count(state);
}
BENCHMARK(digest_on_host)->UseRealTime();

} // namespace
} // namespace kagemusha
