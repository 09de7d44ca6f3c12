// SPDX-License-Identifier: GPL-2.0-or-later
// What an op costs on its way to a standby, with 1, 16 or 128 ops per request of the guest. An op is a launch
// with four arguments (224 bytes).
//
//   rewrite     a validated request → the entry of the log; …/objects: with so many live buffers in the
//                 file, must be flat
//   encode        entries → protobuf part of a frame
//   decode        the way back, every bound checked
//   primary       rewrite + log + replication_primary_fsm + encode + handing the frame to a socket whose
//                 other end another thread empties, acknowledgements included; the time is that of the
//                 calling thread alone: what one core needs for everything the primary adds
//   standby       decode + replication_standby_fsm + a private copy of each stream + the request over the
//                 arena + core::device with the null backend on a thread of this process, answers included;
//                 the time is the CPU time of both threads together, so it is what one core would need
//
// `ops` is the figure to read; the target of primary and of standby is 1,000,000 per second, also at 1 op per
// request.
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
#include <string>
#include <thread>
#include <vector>

#include "codec/decode.hpp"
#include "codec/encode.hpp"
#include "core/repeated_launches.hpp"
#include "messages/messages.hpp"
#include "mirror/primary/replication_primary_fsm.hpp"
#include "mirror/shadow/session_shadow.hpp"
#include "mirror/standby/replay_request.hpp"
#include "mirror/standby/replication_standby_fsm.hpp"
#include "pair/op_log.hpp"

using namespace kagemusha;

namespace {

constexpr std::uint32_t file = 1;
constexpr std::uint64_t context = 1, queue = 2, source = 3, destination = 4, program = 5, kernel = 6;
constexpr std::uint64_t first_more_buffer = 1000;
constexpr std::uint64_t region_bytes = 1u << 20;
constexpr std::uint64_t ops_at_once = 8192; // one iteration of primary

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

// The calls that make what the launches use, and more buffers.
std::vector<codec::stream_builder> set_up_calls(std::uint64_t more_buffers) {
    std::vector<codec::stream_builder> calls(7);
    calls[0].create_context(context);
    calls[1].create_queue(queue, context);
    calls[2].create_buffer(source, context, 4096);
    calls[3].create_buffer(destination, context, 4096);
    calls[4].create_program(program, context,
                            "kernel void k(global float* a, global float* b, float f, int n) {}");
    calls[5].build_program(program);
    calls[6].create_kernel(kernel, program, "k");
    for (std::uint64_t i = 0; i < more_buffers; ++i)
        calls.emplace_back().create_buffer(first_more_buffer + i, context, 16);
    return calls;
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
    for (meta.sequence = 1; budget.take(meta, 0); ++meta.sequence)
        m.list.push_back({meta, {}});
    return m;
}

void report(benchmark::State& state, std::uint64_t ops, std::uint64_t entries, std::uint64_t bytes) {
    const auto rate = [](std::uint64_t n) {
        return benchmark::Counter(static_cast<double>(n), benchmark::Counter::kIsRate);
    };
    state.counters["ops"] = rate(ops);
    state.counters["entries"] = rate(entries);
    if (bytes != 0)
        state.counters["wire_bytes_per_op"] = static_cast<double>(bytes) / static_cast<double>(ops);
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
        for (const auto& p : payload)
            add(p);
        for (std::size_t first = 0; first < parts.size();) {
            const ssize_t n = writev(ends_[0], &parts[first],
                                     static_cast<int>(std::min<std::size_t>(parts.size() - first, IOV_MAX)));
            require(n > 0, "the socket");
            auto left = static_cast<std::size_t>(n);
            while (first < parts.size() && left >= parts[first].iov_len)
                left -= parts[first++].iov_len;
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

// A file as the primary's device has it.
class mirrored_file {
public:
    explicit mirrored_file(std::uint64_t more_buffers) {
        for (const auto& b : set_up_calls(more_buffers)) {
            rewrite(b, mirror::mirror_mode::off);
            file_.on_done(token_, 0);
        }
    }
    std::vector<mirror::log_entry>& rewrite(const codec::stream_builder& b, mirror::mirror_mode mode) {
        out_.clear();
        if (b.stream().data() != validated_)
            validate(b.stream());
        file_.rewrite({++token_, b.stream(), b.payloads(), b.segments()}, mode, no_payloads_, out_,
                      {true, repeats_.runs()});
        return out_;
    }

private:
    // What the device's validation says of the stream.
    void validate(std::span<const std::byte> stream) {
        validated_ = stream.data();
        repeats_.begin(stream);
        codec::stream_decoder decoder(stream, {});
        codec::op o;
        for (;;) {
            if (repeats_.find(decoder.position())) {
                repeats_.accept_found();
                decoder.skip();
            } else if (decoder.next(o) != codec::decode_status::op) {
                return;
            } else if (const auto* launch = std::get_if<codec::op_launch>(&o)) {
                repeats_.accepted(*launch->c, 1);
            }
        }
    }

    const std::byte* validated_ = nullptr;
    core::repeated_launches repeats_;
    mirror::session_shadow file_;
    std::uint64_t token_ = 0;
    std::vector<mirror::log_entry> out_;
    const mirror::payload_reader no_payloads_ = [](std::uint32_t) { return mirror::byte_pieces{}; };
};

void rewrite(benchmark::State& state, std::uint64_t ops, std::uint64_t more_buffers) {
    mirrored_file f(more_buffers);
    const codec::stream_builder b = launches(ops);
    for (auto _ : state)
        require(f.rewrite(b, mirror::mirror_mode::on).size() == 1, "a launch is mirrored");
    report(state, state.iterations() * ops, state.iterations(), 0);
}

// The primary's log, state machine and socket, with a standby that acknowledges whatever was sent.
class primary_path {
public:
    primary_path()
        : fsm_({.vm = "bench", .gpu = "null", .limits = {}}, 0)
        , log_({mirror::default_log_bytes, mirror::default_log_entries},
               {[] {}, [](mirror::log_sequence) {}, [] {}}) {
        fsm_.on_tick(now_); // wants a connection
        act();
        fsm_.on_connected(now_);
        act();
        mirror::hello h;
        h.role = mirror::role::standby;
        h.vm = "bench";
        h.heartbeat_budget_ms = mirror::default_heartbeat_budget_ms;
        h.hold_bytes = mirror::default_hold_bytes;
        h.hold_entries = mirror::default_hold_entries;
        fsm_.on_message(h, now_);
        act();
        mirror::log_entry e;
        e.meta.kind = mirror::entry_kind::reset;
        append(std::move(e));
        finish();
    }
    void append(mirror::log_entry e) {
        e.meta.file = e.meta.kind == mirror::entry_kind::reset ? 0 : file;
        held_bytes_ += e.meta.stream_bytes + e.meta.content_bytes;
        last_ = e.packed.empty() ? log_.append(std::move(e)) : log_.append_packed(e.meta, e.packed);
        ++held_entries_;
    }
    // Everything to the socket, an epoch, an acknowledgement of it.
    void finish() {
        log_.take_events(events_);
        for (const pair::log_event& e : events_)
            fsm_.on_entry(e.meta, now_);
        act();
        fsm_.close_epoch(++now_);
        act();
        require(sent_ == last_, "the log is not held up");
        fsm_.on_message(mirror::ack{.received = last_,
                                    .executed = last_,
                                    .committed_epoch = epoch_,
                                    .freed_bytes = held_bytes_,
                                    .freed_entries = held_entries_},
                        now_);
        act();
    }

private:
    void act() {
        mirror::primary_action a;
        while (fsm_.next(a)) {
            if (const auto* batch = std::get_if<mirror::act_send_entries>(&a)) {
                mirror::log_sequence next = batch->first;
                pair::outgoing out;
                while (next <= batch->last && log_.take_entries(next, batch->last, out)) {
                    send(out.what, out.payload);
                    out = {};
                }
                sent_ = batch->last;
            } else if (const auto* m = std::get_if<mirror::act_send>(&a)) {
                if (const auto* mark = std::get_if<mirror::marker>(&m->what))
                    epoch_ = mark->epoch;
                send(m->what, {});
            } else if (const auto* d = std::get_if<mirror::act_drop_log>(&a)) {
                log_.drop(d->up_to);
            }
        }
    }
    void send(const mirror::message& m, const std::vector<std::span<const std::byte>>& payload) {
        head_.clear();
        messages::encode(m, head_);
        socket_.send(head_, payload);
        fsm_.on_sent(0);
    }

    mirror::replication_primary_fsm fsm_;
    pair::op_log log_;
    drain socket_;
    std::vector<pair::log_event> events_;
    std::vector<std::byte> head_;
    mirror::log_sequence last_ = 0, sent_ = 0;
    std::uint64_t epoch_ = 0, held_bytes_ = 0, held_entries_ = 0, now_ = 0;
};

void primary(benchmark::State& state) {
    const auto ops = static_cast<std::uint64_t>(state.range(0));
    const std::uint64_t requests = ops_at_once / ops;
    const codec::stream_builder b = launches(ops);
    mirrored_file f(0);
    primary_path path;
    for (auto _ : state) {
        for (std::uint64_t i = 0; i < requests; ++i)
            for (mirror::log_entry& e : f.rewrite(b, mirror::mirror_mode::on))
                path.append(std::move(e));
        path.finish();
    }
    const std::uint64_t n = state.iterations() * requests;
    report(state, n * ops, n, 0);
}

// A standby's state machine and its device on the null backend.
class standby_path {
public:
    standby_path() : fsm_({.vm = "bench", .gpu = "null", .limits = {}}, 0), arena_(region_bytes) {
        kagemusha_device_config config;
        kagemusha_device_config_init(&config);
        config.name = "bench";
        config.backend = "null";
        config.in_process = 1;
        config.max_requests_per_file = mirror::default_running_per_file;
        config.callbacks.request_done = [](void* self, std::uint64_t token, const vgpu_response* r) {
            require(r->status == VGPU_STATUS_OK && r->result == 0, "a request failed");
            static_cast<standby_path*>(self)->done_.push_back(token);
        };
        config.callbacks.record = [](void*, const void*, std::size_t) { return 0; };
        config.callbacks.log = [](void*, int level, const char* line) {
            if (level <= KAGEMUSHA_LOG_WARNING)
                std::fprintf(stderr, "%s\n", line);
        };
        config.user_data = this;
        char error[512] = "";
        require(kagemusha_device_create(&config, &device_, error, sizeof(error)) == 0, error);
        require(kagemusha_device_add_region(device_, 0, -1, 0, region_bytes, arena_.data(), error,
                                            sizeof(error)) == 0,
                error);
        replay_.place({}, 0, 0);

        fsm_.on_connected(0);
        mirror::hello h;
        h.vm = "bench";
        h.heartbeat_budget_ms = mirror::default_heartbeat_budget_ms;
        fsm_.on_message(h, 0);
        mirror::entries first;
        const auto add = [&](const mirror::entry_meta& meta) {
            first.list.push_back({meta, {}});
            first.list.back().meta.sequence = first.list.size();
        };
        mirror::entry_meta m;
        m.kind = mirror::entry_kind::reset;
        add(m);
        m.kind = mirror::entry_kind::open_file;
        m.file = file;
        add(m);
        const auto calls = set_up_calls(0);
        for (const auto& b : calls) {
            add(meta_of(b, 1));
            streams_.push_back(copy_of(b));
        }
        // Streams are found by number.
        streams_.insert(streams_.begin(), 2, {});
        take(std::move(first));
    }
    ~standby_path() { kagemusha_device_destroy(device_); }

    mirror::log_sequence next() const { return last_ + 1; }
    static std::vector<std::uint64_t> copy_of(const codec::stream_builder& b) {
        std::vector<std::uint64_t> stream(b.stream().size() / 8);
        std::memcpy(stream.data(), b.stream().data(), b.stream().size());
        return stream;
    }
    // The stream of the next entry.
    void add_stream(const codec::stream_builder& b) { streams_.push_back(copy_of(b)); }

    // Entries, an epoch, until all have run.
    void take(mirror::entries m) {
        first_ = last_ + 1;
        last_ = m.list.back().meta.sequence;
        ran_ = 0;
        fsm_.on_message(std::move(m), now_);
        fsm_.on_message(mirror::marker{++epoch_, last_}, now_);
        for (;;) {
            act();
            if (ran_ == last_ - first_ + 1)
                break;
            pollfd p{kagemusha_device_poll_fd(device_), POLLIN, 0};
            poll(&p, 1, -1);
            kagemusha_device_dispatch(device_);
        }
        streams_.clear();
    }

private:
    void act() {
        mirror::standby_action a;
        for (;;) {
            if (fsm_.next(a)) {
                if (const auto* r = std::get_if<mirror::act_run>(&a)) {
                    run(r->sequence);
                } else if (const auto* m = std::get_if<mirror::act_send>(&a)) {
                    head_.clear();
                    messages::encode(m->what, head_);
                }
            } else if (!done_.empty()) {
                executed_.swap(done_);
                for (const mirror::log_sequence s : executed_)
                    fsm_.on_executed(s, 0, now_);
                ran_ += executed_.size();
                executed_.clear();
            } else {
                break;
            }
        }
    }
    void run(mirror::log_sequence s) {
        const std::vector<std::uint64_t>& stream = streams_[s - first_];
        if (!stream.empty()) {
            const kagemusha_request request = replay_.request(file, s, std::as_bytes(std::span(stream)));
            kagemusha_device_submit(device_, &request);
        } else if (s == 1) {
            done_.push_back(s); // a reset, and nothing was open
        } else {
            kagemusha_device_open_file(device_, file, s);
        }
    }

    mirror::replication_standby_fsm fsm_;
    kagemusha_device* device_ = nullptr;
    std::vector<std::byte> arena_, head_;
    std::vector<std::vector<std::uint64_t>> streams_; // of entries from first_ on
    std::vector<mirror::log_sequence> done_, executed_;
    mirror::replay_request replay_;
    mirror::log_sequence first_ = 0, last_ = 0;
    std::uint64_t ran_ = 0, epoch_ = 0, now_ = 0;
};

void standby(benchmark::State& state) {
    const auto ops = static_cast<std::uint64_t>(state.range(0));
    const codec::stream_builder b = launches(ops);
    const mirror::message m = full_message(b, ops);
    const std::uint64_t entries = std::get<mirror::entries>(m).list.size();
    const frame f(m);
    standby_path path;
    for (auto _ : state) {
        mirror::message out;
        require(messages::decode(f.header, f.protobuf, out).empty(), "a message was refused");
        auto& batch = std::get<mirror::entries>(out);
        const mirror::log_sequence first = path.next();
        for (std::size_t i = 0; i < batch.list.size(); ++i) {
            batch.list[i].meta.sequence = first + i; // the frame is always the same one
            path.add_stream(b);                      // private memory, where a socket's bytes would go
        }
        path.take(std::move(batch));
    }
    const std::uint64_t n = state.iterations() * entries;
    report(state, n * ops, n, 0);
}

void register_all() {
    const auto add = [](const char* name, auto&& f) {
        return benchmark::RegisterBenchmark(name, f)->ArgName("ops_per_request")->Arg(1)->Arg(16)->Arg(128);
    };
    add("rewrite", [](benchmark::State& s) { rewrite(s, static_cast<std::uint64_t>(s.range(0)), 0); });
    for (const std::uint64_t objects : {10, 1'000, 100'000}) {
        benchmark::RegisterBenchmark(("rewrite/objects:" + std::to_string(objects)).c_str(),
                                     [=](benchmark::State& s) { rewrite(s, 1, objects); });
    }
    add("encode", encode);
    add("decode", decode);
    add("primary", primary);
    add("standby", standby)->MeasureProcessCPUTime();
}

const bool registered = (register_all(), true); // before benchmark_main runs what there is

} // namespace
