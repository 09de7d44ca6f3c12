// SPDX-License-Identifier: GPL-2.0-or-later
// What one launch costs on the host, step by step and altogether, on the null backend:
//
//   decode            bytes to ops
//   validate          decode + object tables + bookkeeping of the request (core::session_fsm), answer included
//   in_process        all of it through the C interface, with the executor and the null backend on a thread
//   of this process; the time is the CPU time
//                     of both threads together, so it is what one core would need
//   worker            the same with a worker process; the time is that of the calling thread alone: QEMU's
//   part …/objects         cost of one launch with that many live objects in the file: must be flat
//   …/contexts        the same with that many contexts, each with a queue, a buffer and a kernel, used in
//   turn: must be flat
//
// `per_launch` is the figure to read. The target for decode + validate + hand over + null execution is 2 us.
#include <benchmark/benchmark.h>
#include <kagemusha/device.h>

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "codec/decode.hpp"
#include "codec/encode.hpp"
#include "core/session_fsm.hpp"

using namespace kagemusha;

namespace {

constexpr unsigned launches_per_request = 64;
constexpr unsigned requests_at_once = 8;
constexpr std::uint64_t region_bytes = 1u << 20;

// Ids of context number c.
struct context_ids {
    std::uint64_t context, queue, source, destination, program, kernel;
    explicit context_ids(std::uint64_t c)
        : context(c * 8 + 1)
        , queue(c * 8 + 2)
        , source(c * 8 + 3)
        , destination(c * 8 + 4)
        , program(c * 8 + 5)
        , kernel(c * 8 + 6) {}
};
constexpr std::uint64_t first_extra_object = std::uint64_t{1} << 32;

std::vector<codec::stream_builder> set_up(std::uint64_t contexts, std::uint64_t extra_objects) {
    std::vector<codec::stream_builder> out;
    for (std::uint64_t c = 0; c < contexts; ++c) {
        const context_ids id(c);
        out.emplace_back().create_context(id.context);
        out.emplace_back().create_queue(id.queue, id.context);
        out.emplace_back().create_buffer(id.source, id.context, 4096);
        out.emplace_back().create_buffer(id.destination, id.context, 4096);
        out.emplace_back().create_program(
            id.program, id.context, "kernel void k(global float* a, global float* b, float f, int n) {}");
        out.emplace_back().build_program(id.program);
        out.emplace_back().create_kernel(id.kernel, id.program, "k");
    }
    for (std::uint64_t i = 0; i < extra_objects; ++i)
        out.emplace_back().create_buffer(first_extra_object + i, context_ids(0).context, 16);
    return out;
}

// 64 launches with four arguments, over the contexts in turn.
codec::stream_builder launches(std::uint64_t contexts) {
    codec::stream_builder b;
    codec::launch_size size;
    size.work_dim = 2;
    size.global[0] = size.global[1] = 256;
    size.local[0] = size.local[1] = 16;
    for (unsigned i = 0; i < launches_per_request; ++i) {
        const context_ids id(i * 7919 % contexts);
        b.launch({id.queue, 0, {}}, id.kernel, size,
                 codec::argument_builder{}
                     .memory(0, id.source)
                     .memory(1, id.destination)
                     .scalar(2, 1.5f)
                     .scalar(3, 4096));
    }
    return b;
}

void report(benchmark::State& state, std::uint64_t launched) {
    state.counters["per_launch"] = benchmark::Counter(
        static_cast<double>(launched), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void decode(benchmark::State& state) {
    const codec::stream_builder b = launches(1);
    codec::op o;
    for (auto _ : state) {
        codec::stream_decoder decoder(b.stream(), {b.payloads()});
        while (decoder.next(o) == codec::decode_status::op)
            benchmark::DoNotOptimize(o);
    }
    report(state, state.iterations() * launches_per_request);
}

void validate(benchmark::State& state, std::uint64_t contexts, std::uint64_t extra_objects) {
    core::device_usage usage{UINT64_MAX, UINT64_MAX, 0, 0, 0};
    core::session_fsm fsm(1, {512, 1024, UINT32_MAX, UINT64_MAX}, usage, 12345);
    const std::vector<std::uint64_t> regions{region_bytes};
    const auto submit = [&](const codec::stream_builder& b) {
        const core::submit_decision d = fsm.on_submit(b.request(1, 1), regions);
        if (d.what != core::submit_decision::action::forward) {
            std::fprintf(stderr, "refused: %s\n", d.broken_rule ? d.broken_rule : "an OpenCL error");
            std::abort();
        }
        benchmark::DoNotOptimize(fsm.on_done(d.request.token, {}));
    };
    for (const auto& b : set_up(contexts, extra_objects))
        submit(b);
    const codec::stream_builder batch = launches(contexts);
    for (auto _ : state)
        submit(batch);
    report(state, state.iterations() * launches_per_request);
}

// A device on the null backend with one open file.
class null_device {
public:
    explicit null_device(bool in_process) {
        kagemusha_device_config config;
        kagemusha_device_config_init(&config);
        config.name = "bench";
        config.backend = "null";
        config.in_process = in_process;
        config.sandbox = 1;
        config.worker_path = KAGEMUSHA_BENCH_WORKER;
        config.max_memory_bytes = config.max_file_memory_bytes = UINT64_MAX;
        config.callbacks.request_done = [](void* self, std::uint64_t, const vgpu_response* r) {
            auto& d = *static_cast<null_device*>(self);
            ++d.answered_;
            d.failed_ += r->status != VGPU_STATUS_OK || r->result != 0;
        };
        config.callbacks.record = [](void*, const void*, std::size_t) { return 0; };
        config.callbacks.log = [](void*, int level, const char* line) {
            if (level <= KAGEMUSHA_LOG_WARNING)
                std::fprintf(stderr, "%s\n", line);
        };
        config.user_data = this;
        char error[512] = "";
        memory_ = memfd_create("bench", MFD_CLOEXEC);
        require(memory_ >= 0 && ftruncate(memory_, region_bytes) == 0, "memory");
        base_ = mmap(nullptr, region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0);
        require(base_ != MAP_FAILED, "memory");
        require(kagemusha_device_create(&config, &device_, error, sizeof(error)) == 0, error);
        require(kagemusha_device_add_region(device_, 0, memory_, 0, region_bytes, base_, error,
                                            sizeof(error)) == 0,
                error);
        kagemusha_device_open_file(device_, 1, 0);
        answered_ = 0;
    }
    ~null_device() {
        kagemusha_device_destroy(device_);
        munmap(base_, region_bytes);
        close(memory_);
    }

    void submit(const codec::stream_builder& b) {
        const kagemusha_request r = b.request(1, ++submitted_);
        kagemusha_device_submit(device_, &r);
    }
    void wait() {
        while (answered_ != submitted_) {
            pollfd p{kagemusha_device_poll_fd(device_), POLLIN, 0};
            poll(&p, 1, -1);
            kagemusha_device_dispatch(device_);
        }
        require(failed_ == 0, "a request failed");
    }
    void run(const std::vector<codec::stream_builder>& all) {
        for (const auto& b : all) {
            submit(b);
            if (submitted_ - answered_ >= 64)
                wait();
        }
        wait();
    }

private:
    static void require(bool condition, const char* what) {
        if (!condition) {
            std::fprintf(stderr, "benchmark can't run: %s\n", what);
            std::abort();
        }
    }
    kagemusha_device* device_ = nullptr;
    int memory_ = -1;
    void* base_ = nullptr;
    std::uint64_t submitted_ = 0, answered_ = 0, failed_ = 0;
};

void whole(benchmark::State& state, bool in_process, std::uint64_t contexts, std::uint64_t extra_objects) {
    null_device device(in_process);
    device.run(set_up(contexts, extra_objects));
    const codec::stream_builder batch = launches(contexts);
    for (auto _ : state) {
        for (unsigned i = 0; i < requests_at_once; ++i)
            device.submit(batch);
        device.wait();
    }
    report(state, state.iterations() * launches_per_request * requests_at_once);
}

// One request of one launch at a time: what a program pays that waits for each.
void round_trip(benchmark::State& state, bool in_process) {
    null_device device(in_process);
    device.run(set_up(1, 0));
    codec::stream_builder one;
    const context_ids id(0);
    one.launch({id.queue, 0, {}}, id.kernel, {}, codec::argument_builder{}.memory(0, id.source));
    for (auto _ : state) {
        device.submit(one);
        device.wait();
    }
    report(state, state.iterations());
}

void register_all() {
    benchmark::RegisterBenchmark("decode", decode);
    for (const std::uint64_t objects : {10, 1'000, 100'000}) {
        benchmark::RegisterBenchmark(("validate/objects:" + std::to_string(objects)).c_str(),
                                     [=](benchmark::State& s) { validate(s, 1, objects); });
    }
    for (const std::uint64_t contexts : {1, 100, 1'000}) {
        benchmark::RegisterBenchmark(("validate/contexts:" + std::to_string(contexts)).c_str(),
                                     [=](benchmark::State& s) { validate(s, contexts, 0); });
    }
    for (const bool in_process : {true, false}) {
        const std::string mode = in_process ? "in_process" : "worker";
        const auto add = [&](const std::string& name, auto&& f) {
            auto* b = benchmark::RegisterBenchmark((mode + name).c_str(), f);
            if (in_process)
                b->MeasureProcessCPUTime();
        };
        for (const std::uint64_t objects : {10, 1'000, 100'000}) {
            add("/objects:" + std::to_string(objects),
                [=](benchmark::State& s) { whole(s, in_process, 1, objects); });
        }
        for (const std::uint64_t contexts : {1, 100, 1'000}) {
            add("/contexts:" + std::to_string(contexts),
                [=](benchmark::State& s) { whole(s, in_process, contexts, 0); });
        }
        add("/round_trip", [=](benchmark::State& s) { round_trip(s, in_process); });
    }
}

const bool registered = (register_all(), true); // before benchmark_main runs what there is

} // namespace
