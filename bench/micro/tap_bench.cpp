// SPDX-License-Identifier: GPL-2.0-or-later
// What a guest's submit costs QEMU's thread with a mirror behind the device: the whole of
// core::device::submit with a port that takes everything and a log that only counts, so that nothing but the
// device's side is measured.
//
//   …/none      no tap
//   …/off       a tap, no standby: only the registry is kept
//   …/on        everything goes into the log
//   …/log       the same with the log as it is (pair/op_log), which this thread empties between the submits:
//   the
//               instructions, without what the other processor costs
//   …/syncing   a state transfer runs
//
//   launch      requests of 1 and of 64 launches with four arguments, by the number of live buffers, which
//   the
//               launches use in turn: must be flat. The number of objects in the caches' way is the same
//               without a tap.
//   write       requests with one write of so many bytes from one piece of guest memory
//   create      one creation and one destruction of a buffer, by the number of live buffers: must be flat
//
// p50 and p99 are of single submits; what a tap adds is the difference of two lines. The target is 2 us at
// p50 and 10 us at p99.
#include <benchmark/benchmark.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "codec/encode.hpp"
#include "core/device.hpp"
#include "mirror/capture/primary_shadow.hpp"
#include "pair/op_log.hpp"

using namespace kagemusha;

namespace {

constexpr std::uint64_t region_bytes = 16u << 20;
enum : std::uint64_t { context = 1, queue, program, kernel, first_buffer = 16 };

void require(bool condition, const char* what) {
    if (!condition) {
        std::fprintf(stderr, "benchmark can't run: %s\n", what);
        std::abort();
    }
}

// Takes everything, answers when it is drained.
class eager_port final : public worker::port {
public:
    eager_port() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
    ~eager_port() override { close(event_); }
    worker::submit_result submit(const worker::request_view& request) override {
        tokens_.push_back(request.token);
        return worker::submit_result::accepted;
    }
    void kick() override {}
    void wake() {
        const std::uint64_t one = 1;
        require(write(event_, &one, sizeof(one)) == sizeof(one), "eventfd");
    }
    int event_fd() const override { return event_; }
    void drain(worker::port_sink& sink) override {
        std::uint64_t n = 0;
        require(read(event_, &n, sizeof(n)) == sizeof(n), "eventfd");
        for (const std::uint64_t token : tokens_)
            sink.on_done(token, {});
        tokens_.clear();
    }
    void kill() override {}
    bool gone() override { return true; }
    std::uint64_t progress() const override { return 0; }

private:
    int event_;
    std::vector<std::uint64_t> tokens_;
};

class counting_log final : public mirror::log_sink {
public:
    std::uint64_t entries = 0, bytes = 0;
    mirror::log_sequence append(mirror::log_entry entry) override {
        bytes += entry.meta.stream_bytes + entry.meta.content_bytes;
        benchmark::DoNotOptimize(entry);
        return ++entries;
    }
    bool congested() const override { return false; }
    void outcome(mirror::log_sequence, std::int32_t) override {}
    void late_content(mirror::log_sequence, std::uint32_t, mirror::byte_pieces) override {}
    void cancel(mirror::log_sequence) override {}
    void digests(mirror::log_sequence, std::vector<std::uint64_t>) override {}
    bool release_content(mirror::log_sequence) override { return true; }
    void synced(mirror::log_sequence) override {}
    void failed(const std::string& why) override { require(false, why.c_str()); }
};

// Never ready, so that a state transfer lasts.
class patient_agent final : public mirror::session_agent {
public:
    void start_sync() override {}
    bool ready_to_finish() const override { return false; }
    void finish_sync() override {}
    void stop() override {}
    void prepare() override {}
    bool take_digest(bool) override { return true; }
    void on_digest_result(mirror::log_sequence, std::span<const std::uint64_t>) override {}
    void before_submit() override {}
    void after_submit() override {}
    void on_done(std::uint64_t, const vgpu_response&) override {}
    void on_record(std::span<const std::byte>) override {}
    void on_lost() override {}
    void on_tick() override {}
    std::string waiting() const override { return {}; }
    bool waits_for_guest() const override { return false; }
    bool idle() const override { return true; }
    const mirror::agent_counters& counters() const override { return counters_; }

private:
    mirror::agent_counters counters_;
};

enum class tap { none, off, on, log, syncing };
constexpr const char* tap_names[] = {"none", "off", "on", "log", "syncing"};

class bench_device {
public:
    bench_device(tap how, std::uint64_t buffers) : memory_(region_bytes) {
        core::device_config c;
        c.name = "bench";
        c.max_files = 4;
        c.file = {4096, 4096, 1u << 20, UINT64_MAX};
        c.max_memory_bytes = UINT64_MAX;
        c.hash_seed = 12345;
        c.callbacks.request_done = [](void*, std::uint64_t, const vgpu_response* r) {
            require(r->status == VGPU_STATUS_OK && r->result == 0, "a request failed");
        };
        c.callbacks.record = [](void*, const void*, std::size_t) { return 0; };
        std::string error;
        device_ = core::device::create(
            c,
            [this](std::uint32_t, std::string&) {
                auto p = std::make_unique<eager_port>();
                port_ = p.get();
                return p;
            },
            error);
        require(device_ != nullptr, error.c_str());
        device_->add_region(0, region_bytes);
        if (how != tap::none) {
            regions_ = {{memory_.data(), memory_.size()}};
            if (how == tap::log) {
                real_log_ = std::make_unique<pair::op_log>(
                    pair::op_log::bounds{UINT64_MAX, UINT64_MAX},
                    pair::op_log::callbacks{[] {}, [](mirror::log_sequence) {}, [] {}});
            }
            mirror::log_sink* const log = real_log_ ? static_cast<mirror::log_sink*>(real_log_.get()) : &log_;
            mirror_ = std::make_unique<mirror::primary_shadow>(
                *device_, *log,
                [](std::uint32_t, mirror::session_shadow&, core::mirror_port&, mirror::log_sink&) {
                    return std::make_unique<patient_agent>();
                },
                regions_, mirror::primary_shadow_options{0, mirror::max_registry_bytes, 777});
            device_->set_tap(mirror_.get());
        }
        if (how == tap::on || how == tap::log)
            mirror_->start_sync();
        device_->open_file(1, 0);
        const auto call = [this](auto&& build) {
            codec::stream_builder b;
            build(b);
            submit(b);
            answer();
        };
        call([](auto& b) { b.create_context(context); });
        call([](auto& b) { b.create_queue(queue, context); });
        call([](auto& b) { b.create_program(program, context, "kernel void k() {}"); });
        call([](auto& b) { b.build_program(program); });
        call([](auto& b) { b.create_kernel(kernel, program, "k"); });
        for (std::uint64_t i = 0; i < buffers; ++i)
            call([i](auto& b) { b.create_buffer(first_buffer + i, context, 1u << 20); });
        if (how == tap::syncing)
            mirror_->start_sync();
    }
    ~bench_device() { device_.reset(); }

    void submit(const codec::stream_builder& b) { device_->submit(b.request(1, 1), 1000); }
    void answer() {
        port_->wake();
        device_->dispatch(1000);
        if (real_log_) {
            real_log_->take_events(events_);
            real_log_->drop(UINT64_MAX);
        }
    }
    std::uint64_t logged() const { return log_.entries; }

private:
    std::vector<std::byte> memory_;
    std::vector<mirror::region_address> regions_;
    counting_log log_;
    std::unique_ptr<pair::op_log> real_log_;
    std::vector<pair::log_event> events_;
    eager_port* port_ = nullptr;
    std::unique_ptr<core::device> device_;
    std::unique_ptr<mirror::primary_shadow> mirror_;
};

// Submits what `next(i)` gives and reports quantiles of single submits.
template <class Next>
void measure(benchmark::State& state, bench_device& device, Next&& next) {
    using clock = std::chrono::steady_clock;
    std::vector<std::uint32_t> samples;
    samples.reserve(1u << 22);
    std::uint64_t i = 0;
    for (auto _ : state) {
        const codec::stream_builder& b = next(i++);
        const auto begin = clock::now();
        device.submit(b);
        const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now() - begin).count();
        if (samples.size() < samples.capacity())
            samples.push_back(static_cast<std::uint32_t>(ns));
        if (i % 64 == 0) {
            state.PauseTiming();
            device.answer();
            state.ResumeTiming();
        }
    }
    device.answer();
    const auto quantile = [&](double q) {
        const auto at =
            samples.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(samples.size() - 1));
        std::nth_element(samples.begin(), at, samples.end());
        return static_cast<double>(*at);
    };
    state.counters["p50_ns"] = quantile(0.5);
    state.counters["p99_ns"] = quantile(0.99);
}

void launch(benchmark::State& state, tap how, unsigned launches, std::uint64_t buffers) {
    bench_device device(how, buffers);
    std::vector<codec::stream_builder> requests;
    codec::launch_size size;
    size.work_dim = 2;
    size.global[0] = size.global[1] = 256;
    for (std::uint64_t r = 0; r < std::min<std::uint64_t>(buffers, 1024); ++r) {
        codec::stream_builder& b = requests.emplace_back();
        for (unsigned l = 0; l < launches; ++l) {
            const std::uint64_t n = r * launches + l;
            b.launch({queue, 0, {}}, kernel, size,
                     codec::argument_builder{}
                         .memory(0, first_buffer + n * 7919 % buffers)
                         .memory(1, first_buffer + (n * 7919 + 1) % buffers)
                         .scalar(2, 1.5f)
                         .scalar(3, 4096));
        }
    }
    measure(state, device, [&](std::uint64_t i) -> const auto& { return requests[i % requests.size()]; });
    state.counters["per_launch"] =
        benchmark::Counter(static_cast<double>(state.iterations() * launches),
                           benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void write(benchmark::State& state, tap how, std::uint64_t bytes) {
    bench_device device(how, 1);
    codec::stream_builder b;
    const vgpu_payload_ref data = b.payload(false, 0, 0, bytes);
    b.write_buffer({queue, 0, {}}, first_buffer, 0, data);
    measure(state, device, [&](std::uint64_t) -> const auto& { return b; });
}

void create(benchmark::State& state, tap how, std::uint64_t buffers) {
    bench_device device(how, buffers);
    constexpr std::uint64_t id = std::uint64_t{1} << 40;
    codec::stream_builder make, end;
    make.create_buffer(id, context, 64);
    end.destroy(VGPU_OBJECT_MEMORY, id);
    measure(state, device, [&](std::uint64_t i) -> const auto& { return i % 2 == 0 ? make : end; });
}

void register_all() {
    for (const tap how : {tap::none, tap::off, tap::on, tap::log, tap::syncing}) {
        const std::string name = std::string("/") + tap_names[static_cast<int>(how)];
        for (const std::uint64_t buffers : {1, 10, 1'000, 100'000}) {
            const std::string objects = "/objects:" + std::to_string(buffers);
            for (const unsigned launches : {1u, 64u}) {
                benchmark::RegisterBenchmark(("launch:" + std::to_string(launches) + objects + name).c_str(),
                                             [=](benchmark::State& s) { launch(s, how, launches, buffers); });
            }
            benchmark::RegisterBenchmark(("create" + objects + name).c_str(),
                                         [=](benchmark::State& s) { create(s, how, buffers); });
        }
        for (const std::uint64_t bytes : {4096, 65536, 1 << 20}) {
            benchmark::RegisterBenchmark(("write:" + std::to_string(bytes) + name).c_str(),
                                         [=](benchmark::State& s) { write(s, how, bytes); });
        }
    }
}

const bool registered = (register_all(), true); // before benchmark_main runs what there is

} // namespace
