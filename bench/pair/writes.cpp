// SPDX-License-Identifier: GPL-2.0-or-later
// What big writes lose to a standby, which gets the same bytes over the link. Guests take turns, and plain
// Asio beside them: the link can't be faster than that on the same machine.
//
//   after a pause      one write, when the log is empty
//   without a pause    writes until the log is full several times: then the link's rate is that of the guest
//   a round            what a program that moves much does: write, compute, read
#include <functional>
#include <string>

#include "bed.hpp"
#include "bench/net/plain_transfer.hpp"

namespace kagemusha::bench {

namespace {

constexpr const char* source = R"(
    kernel void add(global uint* out, uint a) {
        out[get_global_id(0)] += a;
    })";
constexpr std::uint32_t turns = 3, after_pause = 8, without_pause = 72, rounds = 24;
constexpr std::uint64_t plain_bytes = std::uint64_t{4} << 20, plain_count = 256, plain_places = 64;

struct writer {
    const char* name;
    protected_guest g;
    std::uint64_t queue = 0, out = 0, kernel = 0;
    std::vector<double> single = {}; // seconds of a write after a pause
    double seconds = 0, complete = 0, round_seconds = 0;

    void prepare() {
        test::guest& guest = *g.guest;
        const auto context = guest.context();
        queue = guest.queue(context);
        out = guest.buffer(context, guest_bytes);
        kernel = guest.kernel(context, source, "add");
        for (std::uint64_t i = 0; i < guest_bytes; i += 8)
            *guest.memory_as<std::uint64_t>(i) = i * 0x9e3779b97f4a7c15u;
        one_round(); // pages, the compiler
        settle();
    }
    void write() { g.guest->write(queue, out, 0, guest_bytes); }
    void one_round() {
        codec::launch_size size;
        size.global[0] = guest_bytes / 4;
        codec::stream_builder b;
        b.launch({queue, 0, {}}, kernel, size,
                 codec::argument_builder{}.memory(0, out).scalar(1, std::uint32_t{1}));
        write();
        g.guest->ok(b);
        g.guest->read(queue, out, 0, guest_bytes);
    }
    void forget() {
        single.clear();
        seconds = complete = round_seconds = 0;
    }
    void settle() {
        if (g.standby)
            g.wait_executed();
    }
    static double timed(const std::function<void()>& f) {
        const auto start = clock::now();
        f();
        return seconds_since(start);
    }
    void take_turn() {
        for (std::uint32_t i = 0; i < after_pause; ++i) {
            single.push_back(timed([this] { write(); }));
            settle();
        }
        const auto start = clock::now();
        for (std::uint32_t i = 0; i < without_pause; ++i)
            write();
        seconds += seconds_since(start);
        settle();
        complete += seconds_since(start);
        round_seconds += timed([this] {
            for (std::uint32_t i = 0; i < rounds; ++i)
                one_round();
        });
        settle();
    }
};

} // namespace

void measure_writes(const options& o, report& r) {
    r.heading("writes of 64 MiB from guest memory");
    writer writers[] = {{"no standby", make_guest(o, protection::none)},
                        {"standby", make_guest(o, protection::standby)}};
    for (writer& w : writers) {
        w.prepare();
        w.take_turn(); // pages of the log and of the standby, which stay
        r.figure(std::string(w.name) + ": without a pause, the first time",
                 static_cast<double>(guest_bytes) * without_pause / w.seconds / 1e9, "GB/s");
        w.forget();
    }
    double plain = 0, plain_cached = 0;
    for (std::uint32_t turn = 0; turn < turns; ++turn) {
        for (std::size_t i = 0; i < std::size(writers); ++i)
            writers[(i + turn) % std::size(writers)].take_turn();
        plain += plain_transfer(o.keys, plain_bytes, plain_count, plain_places).wall_s;
        plain_cached += plain_transfer(o.keys, plain_bytes, plain_count).wall_s;
    }
    constexpr double one = static_cast<double>(guest_bytes);
    double single[2];
    for (std::size_t i = 0; i < std::size(writers); ++i) {
        writer& w = writers[i];
        const std::string name = w.name;
        single[i] = quantile(w.single, 0.5);
        r.figure(name + ": after a pause, median", one / single[i] / 1e9, "GB/s");
        r.figure(name + ": after a pause, slowest", one / quantile(w.single, 1) / 1e9, "GB/s");
        r.figure(name + ": without a pause", one * without_pause * turns / w.seconds / 1e9, "GB/s");
        r.figure(name + ": a round of write, compute, read", w.round_seconds / (rounds * turns) * 1e3, "ms");
    }
    const double complete = one * without_pause * turns / writers[1].complete / 1e9;
    const double plain_total = static_cast<double>(plain_bytes * plain_count * turns) / 1e9;
    r.figure("without a pause, until the standby has executed it", complete, "GB/s");
    r.figure("plain Asio, of 256 MiB into 256 MiB", plain_total / plain, "GB/s");
    r.figure("plain Asio, 4 MiB that stay in a cache", plain_total / plain_cached, "GB/s");
    r.figure("time with standby : without, after a pause", single[1] / single[0], "");
    r.figure("time with standby : without, without a pause", writers[1].seconds / writers[0].seconds, "");
    r.figure("time with standby : without, a round", writers[1].round_seconds / writers[0].round_seconds, "");
    r.figure("rate until the standby has executed it : plain Asio", complete * plain / plain_total, "");
}

} // namespace kagemusha::bench
