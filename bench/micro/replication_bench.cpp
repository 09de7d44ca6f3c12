// SPDX-License-Identifier: GPL-2.0-or-later
// What an op costs on its way to a standby, step by step, with 1, 16 or 128 ops per entry of the log. An op
// is a launch with four arguments.
//
//   encode        entries → protobuf part of a frame
//   decode        the way back, every bound checked
//   log           a request → the log (one allocation and copy of its stream, as the tap makes them) → a
//   message
//                 with its bytes gathered, and dropped as acknowledged
//   send          log + encode + handing the frame to a socket whose other end another thread empties; the
//   time is
//                 that of the sending thread alone
//   dispatch      at the standby: decode, a private copy of each stream, the request over the arena, into
//                 core::device with the null backend on a thread of this process; the time is the CPU time of
//                 both threads together, so it is what one core would need
//
// `ops` is the figure to read; the target of send and of dispatch is 1,000,000 per second, at 1 op per entry
// too.
#include <benchmark/benchmark.h>
#include <kagemusha/device.h>

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "codec/encode.hpp"
#include "messages/messages.hpp"
#include "mirror/replay_request.hpp"
#include "pair/op_log.hpp"

using namespace kagemusha;

namespace {

constexpr std::uint32_t file = 1;
constexpr std::uint64_t context = 1, queue = 2, source = 3, destination = 4, program = 5, kernel = 6;
constexpr std::uint64_t region_bytes = 1u << 20;
constexpr std::uint64_t ops_at_once = 8192; // of one iteration

void require(bool condition, const char* what) {
    if (!condition) {
        std::fprintf(stderr, "benchmark can't run: %s\n", what);
        std::abort();
    }
}

codec::stream_builder launches(std::uint64_t count) {
    codec::stream_builder b;
    codec::launch_size size;
    size.work_dim = 2;
    size.global[0] = size.global[1] = 256;
    size.local[0] = size.local[1] = 16;
    for (std::uint64_t i = 0; i < count; ++i) {
        b.launch({queue, 0, {}}, kernel, size,
                 codec::argument_builder{}
                     .memory(0, source)
                     .memory(1, destination)
                     .scalar(2, 1.5f)
                     .scalar(3, 4096));
    }
    return b;
}

mirror::entry_meta meta_of(const codec::stream_builder& b, std::uint64_t ops) {
    mirror::entry_meta m;
    m.file = file;
    m.op_count = static_cast<std::uint32_t>(ops);
    m.stream_bytes = b.stream().size();
    return m;
}

// As many entries as fit into one message.
mirror::entries full_message(const codec::stream_builder& b, std::uint64_t ops) {
    mirror::entries m;
    messages::entries_budget budget;
    mirror::entry_meta meta = meta_of(b, ops);
    for (meta.sequence = 1; budget.take(meta, 0); ++meta.sequence) {
        m.list.push_back({meta, {}});
    }
    return m;
}

void report(benchmark::State& state, std::uint64_t ops, std::uint64_t entries, std::uint64_t bytes) {
    const auto rate = [](std::uint64_t n) {
        return benchmark::Counter(static_cast<double>(n), benchmark::Counter::kIsRate);
    };
    state.counters["ops"] = rate(ops);
    state.counters["entries"] = rate(entries);
    if (bytes != 0) {
        state.counters["wire_bytes_per_op"] = static_cast<double>(bytes) / static_cast<double>(ops);
    }
}

void encode(benchmark::State& state) {
    const auto ops = static_cast<std::uint64_t>(state.range(0));
    const mirror::message m = full_message(launches(ops), ops);
    const std::uint64_t entries = std::get<mirror::entries>(m).list.size();
    std::vector<std::byte> out;
    for (auto _ : state) {
        out.clear();
        messages::encode(m, out);
        benchmark::DoNotOptimize(out.data());
    }
    const std::uint64_t n = state.iterations() * entries;
    report(state, n * ops, n, state.iterations() * (out.size() + messages::payload_bytes_of(m)));
}

struct frame {
    messages::frame_header header;
    std::vector<std::byte> protobuf;
    explicit frame(const mirror::message& m) {
        std::vector<std::byte> bytes;
        messages::encode(m, bytes);
        std::memcpy(&header, bytes.data(), sizeof(header));
        protobuf.assign(bytes.begin() + sizeof(header), bytes.end());
    }
};

void decode(benchmark::State& state) {
    const auto ops = static_cast<std::uint64_t>(state.range(0));
    const mirror::message m = full_message(launches(ops), ops);
    const frame f(m);
    for (auto _ : state) {
        mirror::message out;
        require(messages::decode(f.header, f.protobuf, out).empty(), "a message was refused");
        benchmark::DoNotOptimize(out);
    }
    const std::uint64_t n = state.iterations() * std::get<mirror::entries>(m).list.size();
    report(state, n * ops, n, 0);
}

// The other end of a socket; what arrives is thrown away by a thread of its own.
class drain {
public:
    drain() {
        require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_) == 0, "a socket");
        constexpr int bytes = 4 << 20;
        setsockopt(ends_[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
        thread_ = std::thread([fd = ends_[1]] {
            std::vector<std::byte> buffer(1 << 20);
            while (read(fd, buffer.data(), buffer.size()) > 0) {
            }
        });
    }
    ~drain() {
        shutdown(ends_[0], SHUT_RDWR);
        thread_.join();
        close(ends_[0]);
        close(ends_[1]);
    }
    void send(std::span<const std::byte> head, const std::vector<std::span<const std::byte>>& payload) {
        std::vector<iovec> parts;
        const auto add = [&](std::span<const std::byte> p) {
            parts.push_back({const_cast<std::byte*>(p.data()), p.size()});
        };
        add(head);
        for (const auto& p : payload) {
            add(p);
        }
        for (std::size_t first = 0; first < parts.size();) {
            const ssize_t n = writev(ends_[0], &parts[first],
                                     static_cast<int>(std::min<std::size_t>(parts.size() - first, IOV_MAX)));
            require(n > 0, "the socket");
            auto left = static_cast<std::size_t>(n);
            while (first < parts.size() && left >= parts[first].iov_len) {
                left -= parts[first++].iov_len;
            }
            if (left != 0) {
                parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + left;
                parts[first].iov_len -= left;
            }
        }
    }

private:
    int ends_[2];
    std::thread thread_;
};

// Requests into the log and out of it; with a socket also into that.
void run_log(benchmark::State& state, bool with_socket) {
    const auto ops = static_cast<std::uint64_t>(state.range(0));
    const std::uint64_t entries = ops_at_once / ops;
    const codec::stream_builder b = launches(ops);
    const auto words =
        std::span(reinterpret_cast<const std::uint64_t*>(b.stream().data()), b.stream().size() / 8);
    const mirror::entry_meta meta = meta_of(b, ops);
    pair::op_log log({mirror::default_log_bytes, mirror::default_log_entries},
                     {[] {}, [](mirror::log_sequence) {}, [] {}});
    drain socket;
    std::vector<pair::log_event> events;
    std::vector<std::byte> head;
    for (auto _ : state) {
        for (std::uint64_t i = 0; i < entries; ++i) {
            mirror::log_entry e;
            e.meta = meta;
            e.stream.assign(words.begin(), words.end());
            benchmark::DoNotOptimize(log.append(std::move(e)));
        }
        log.take_events(events);
        mirror::log_sequence next = events.front().sequence;
        const mirror::log_sequence last = events.back().sequence;
        pair::outgoing out;
        while (next <= last && log.take_entries(next, last, out)) {
            benchmark::DoNotOptimize(out.payload.data());
            if (with_socket) {
                head.clear();
                messages::encode(out.what, head);
                socket.send(head, out.payload);
            }
            out = {};
        }
        log.drop(last);
    }
    const std::uint64_t n = state.iterations() * entries;
    report(state, n * ops, n, 0);
}

// A standby's device on the null backend with one open file.
class null_device {
public:
    null_device() : arena_(region_bytes) {
        kagemusha_device_config config;
        kagemusha_device_config_init(&config);
        config.name = "bench";
        config.backend = "null";
        config.in_process = 1;
        config.max_requests_per_file = mirror::default_running_per_file;
        config.callbacks.request_done = [](void* self, std::uint64_t, const vgpu_response* r) {
            auto& d = *static_cast<null_device*>(self);
            ++d.answered_;
            d.failed_ += r->status != VGPU_STATUS_OK || r->result != 0;
        };
        config.callbacks.record = [](void*, const void*, std::size_t) { return 0; };
        config.callbacks.log = [](void*, int level, const char* line) {
            if (level <= KAGEMUSHA_LOG_WARNING) {
                std::fprintf(stderr, "%s\n", line);
            }
        };
        config.user_data = this;
        char error[512] = "";
        require(kagemusha_device_create(&config, &device_, error, sizeof(error)) == 0, error);
        require(kagemusha_device_add_region(device_, 0, -1, 0, region_bytes, arena_.data(), error,
                                            sizeof(error)) == 0,
                error);
        kagemusha_device_open_file(device_, file, 0);
        answered_ = 0;
    }
    ~null_device() { kagemusha_device_destroy(device_); }

    // At most as many in flight as a standby allows.
    void submit(const mirror::replay_request& r, std::span<const std::byte> stream) {
        if (submitted_ - answered_ >= mirror::default_running_per_file) {
            wait(mirror::default_running_per_file / 2);
        }
        const kagemusha_request request = r.request(file, ++submitted_, stream);
        kagemusha_device_submit(device_, &request);
    }
    void wait(std::uint64_t in_flight) {
        while (submitted_ - answered_ > in_flight) {
            pollfd p{kagemusha_device_poll_fd(device_), POLLIN, 0};
            poll(&p, 1, -1);
            kagemusha_device_dispatch(device_);
        }
        require(failed_ == 0, "a request failed");
    }
    void set_up() {
        std::vector<codec::stream_builder> calls(7);
        calls[0].create_context(context);
        calls[1].create_queue(queue, context);
        calls[2].create_buffer(source, context, 4096);
        calls[3].create_buffer(destination, context, 4096);
        calls[4].create_program(program, context,
                                "kernel void k(global float* a, global float* b, float f, int n) {}");
        calls[5].build_program(program);
        calls[6].create_kernel(kernel, program, "k");
        mirror::replay_request none;
        none.place({}, 0, 0);
        for (const auto& b : calls) {
            submit(none, b.stream());
        }
        wait(0);
    }

private:
    kagemusha_device* device_ = nullptr;
    std::vector<std::byte> arena_;
    std::uint64_t submitted_ = 0, answered_ = 0, failed_ = 0;
};

void dispatch(benchmark::State& state) {
    const auto ops = static_cast<std::uint64_t>(state.range(0));
    const codec::stream_builder b = launches(ops);
    const mirror::message m = full_message(b, ops);
    const std::uint64_t entries = std::get<mirror::entries>(m).list.size();
    const frame f(m);
    null_device device;
    device.set_up();
    mirror::replay_request replay;
    for (auto _ : state) {
        mirror::message out;
        require(messages::decode(f.header, f.protobuf, out).empty(), "a message was refused");
        for (const auto& e : std::get<mirror::entries>(out).list) {
            // Private memory, where a socket's bytes would go.
            std::vector<std::uint64_t> stream(e.meta.stream_bytes / 8);
            std::memcpy(stream.data(), b.stream().data(), b.stream().size());
            replay.place(e.payloads, 0, 0);
            device.submit(replay, std::as_bytes(std::span(stream)));
        }
        device.wait(0);
    }
    const std::uint64_t n = state.iterations() * entries;
    report(state, n * ops, n, 0);
}

void register_all() {
    const auto add = [](const char* name, auto&& f) {
        return benchmark::RegisterBenchmark(name, f)->ArgName("ops_per_entry")->Arg(1)->Arg(16)->Arg(128);
    };
    add("encode", encode);
    add("decode", decode);
    add("log", [](benchmark::State& s) { run_log(s, false); });
    add("send", [](benchmark::State& s) { run_log(s, true); });
    add("dispatch", dispatch)->MeasureProcessCPUTime();
}

} // namespace

int main(int argc, char** argv) {
    register_all();
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
        return 2;
    }
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
}
