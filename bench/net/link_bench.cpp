// SPDX-License-Identifier: GPL-2.0-or-later
// What a link costs on one machine, over a Unix socket and over TCP with TLS, each figure beside that of
// plain Asio in the same run:
//
//   bulk     content messages of 4 MiB from one place into one place
//   lanes    the same from 128 MiB into 128 MiB, over one connection and over lanes of the link
//   small    messages a second of the size of an acknowledgement
//   latency  a heartbeat there and back
//
//   link_bench [MIB_PER_ROUND [ROUNDS]]
//
// Rounds alternate between both, and medians are compared: other work on the machine hits both. The ratio by
// CPU time is the one to trust on a machine that is not idle.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "bench/net/plain_transfer.hpp"
#include "control/keys/keys.hpp"
#include "mirror/log/limits.hpp"
#include "net/link.hpp"

using namespace kagemusha;
using bench::transfer_cost;

namespace {

std::string directory; // of this run: keys, sockets

[[noreturn]] void die(const std::string& why) {
    std::fprintf(stderr, "link_bench: %s\n", why.c_str());
    std::exit(1);
}

// One end of a link on a thread of its own.
struct end : net::link_sink {
    net::event_loop loop;
    std::unique_ptr<net::link> link;
    std::unique_ptr<net::listener> listener;
    // Content goes to them in turn.
    std::vector<std::vector<std::byte>> places{std::vector<std::byte>(mirror::content_piece_bytes)};
    std::size_t next_place = 0;
    std::function<void()> connected = [] {};
    std::function<void(const mirror::message&)> message = [](const mirror::message&) {};
    std::function<void()> sent = [] {};
    bool leaving = false;

    void on_connected(const std::string&) override { connected(); }
    net::receive_buffers on_payload(const mirror::message&, std::uint64_t bytes) override {
        return {{std::span(places[next_place++ % places.size()].data(), bytes)}};
    }
    void on_message(const mirror::message& m) override { message(m); }
    void on_sent(std::uint64_t) override { sent(); }
    void on_closed(const std::string& why) override {
        if (!leaving)
            die(why);
    }
};

// Connects two ends and runs both until the receiver's loop is stopped; the sender starts with its hello.
transfer_cost run_pair(const std::string& keys, end& sender, end& receiver, std::uint32_t lanes = 0) {
    net::link_options options;
    // A port is served with keys only.
    options.address = keys.empty() ? "unix:" + directory + "/link" : "127.0.0.1:0";
    if (!keys.empty())
        options.tls = {keys, "bench", net::link_part::qemu};
    options.lanes = lanes;
    std::string error;
    receiver.listener = net::listen(
        receiver.loop, options,
        [&](std::unique_ptr<net::link> c, const std::string&) {
            receiver.link = std::move(c);
            return &receiver;
        },
        [](const std::string& line) { die(line); }, error);
    if (!receiver.listener)
        die(error);
    options.address = receiver.listener->address();
    sender.link = net::connect(sender.loop, options, sender);
    mirror::hello hello;
    hello.vm = "bench";
    sender.link->send(hello);
    hello.role = mirror::role::standby;
    receiver.connected = [&] { receiver.link->send(hello); };

    const bench::stopwatch watch;
    std::thread thread([&] { sender.loop.run(); });
    receiver.loop.run();
    const auto cost = watch.read();
    sender.loop.stop();
    thread.join();
    sender.leaving = receiver.leaving = true;
    return cost;
}

transfer_cost link_bulk(const std::string& keys, std::size_t bytes, std::uint64_t count,
                        std::size_t places = 1, std::uint32_t lanes = 0) {
    end sender, receiver;
    receiver.places.assign(places, std::vector<std::byte>(bytes));
    const std::vector<std::vector<std::byte>> memory(places, std::vector<std::byte>(bytes, std::byte{0x5a}));
    std::uint64_t left = count, arrived = 0;
    const auto fill = [&] {
        while (left > 0 && sender.link->can_send()) {
            mirror::content m;
            m.sequence = 1;
            m.bytes = bytes;
            sender.link->send(m, {memory[left % places]});
            --left;
        }
    };
    sender.sent = fill;
    sender.message = [&](const mirror::message&) { fill(); }; // the hello
    receiver.message = [&](const mirror::message& m) {
        if (std::holds_alternative<mirror::content>(m) && ++arrived == count)
            receiver.loop.stop();
    };
    return run_pair(keys, sender, receiver, lanes);
}

transfer_cost link_small(const std::string& keys, std::uint64_t count) {
    end sender, receiver;
    std::uint64_t left = count, arrived = 0;
    const auto fill = [&] {
        while (left > 0 && sender.link->queued_bytes() < (1 << 18)) {
            sender.link->send(mirror::ack{left, left, left, left});
            --left;
        }
    };
    sender.connected = sender.sent = fill;
    receiver.message = [&](const mirror::message& m) {
        if (std::holds_alternative<mirror::ack>(m) && ++arrived == count)
            receiver.loop.stop();
    };
    return run_pair(keys, sender, receiver);
}

transfer_cost link_round_trips(const std::string& keys, std::uint64_t count) {
    end sender, receiver;
    std::uint64_t done = 0;
    sender.connected = [&] { sender.link->send(mirror::heartbeat{1, 0}); };
    sender.message = [&](const mirror::message& m) {
        if (std::holds_alternative<mirror::heartbeat>(m))
            sender.link->send(mirror::heartbeat{1, 0});
    };
    receiver.message = [&](const mirror::message& m) {
        if (!std::holds_alternative<mirror::heartbeat>(m))
            return;
        if (++done == count)
            receiver.loop.stop();
        else
            receiver.link->send(mirror::heartbeat{1, 1});
    };
    return run_pair(keys, sender, receiver);
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

struct series {
    std::vector<double> wall, cpu;
    void add(const transfer_cost& cost) {
        wall.push_back(cost.wall_s);
        cpu.push_back(cost.cpu_s);
    }
};

void compare_bulk(const std::string& keys, const char* name, std::uint64_t mib, unsigned rounds) {
    constexpr std::size_t bytes = mirror::content_piece_bytes;
    const std::uint64_t count = std::max<std::uint64_t>(1, (mib << 20) / bytes);
    series plain, link;
    for (unsigned i = 0; i < rounds; ++i) {
        plain.add(bench::plain_transfer(keys, bytes, count));
        link.add(link_bulk(keys, bytes, count));
    }
    const double sent_mib = static_cast<double>(count * bytes) / (1 << 20);
    std::printf("bulk %-4s  plain %6.0f MiB/s, %5.3f CPU ms/MiB   link %6.0f MiB/s, %5.3f CPU ms/MiB   "
                "ratio %3.0f %% by time, %3.0f %% by CPU\n",
                name, sent_mib / median(plain.wall), median(plain.cpu) / sent_mib * 1e3,
                sent_mib / median(link.wall), median(link.cpu) / sent_mib * 1e3,
                median(plain.wall) / median(link.wall) * 100, median(plain.cpu) / median(link.cpu) * 100);
}

void compare_lanes(const std::string& keys, const char* name, std::uint64_t mib, unsigned rounds) {
    constexpr std::size_t bytes = mirror::content_piece_bytes, places = (std::size_t{128} << 20) / bytes;
    const std::uint64_t count = std::max<std::uint64_t>(places, (mib << 20) / bytes);
    constexpr std::uint32_t lanes[] = {0, 1, 2, 4, 8};
    series of[std::size(lanes)];
    for (unsigned i = 0; i < rounds; ++i)
        for (std::size_t k = 0; k < std::size(lanes); ++k)
            of[k].add(link_bulk(keys, bytes, count, places, lanes[k]));
    const double sent_mib = static_cast<double>(count * bytes) / (1 << 20);
    for (std::size_t k = 0; k < std::size(lanes); ++k)
        std::printf("lanes %-4s %u: %6.0f MiB/s, %5.3f CPU ms/MiB   ratio to none %.2f by time\n", name,
                    lanes[k], sent_mib / median(of[k].wall), median(of[k].cpu) / sent_mib * 1e3,
                    median(of[0].wall) / median(of[k].wall));
}

} // namespace

int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0); // what was measured is told also if this is ended early
    const std::uint64_t mib = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1024;
    const unsigned rounds = argc > 2 ? static_cast<unsigned>(std::strtoul(argv[2], nullptr, 10)) : 5;
    if (mib == 0 || rounds == 0)
        die("link_bench [MIB_PER_ROUND [ROUNDS]]");
    directory = (std::filesystem::temp_directory_path() / "kagemusha-bench-XXXXXX").string();
    if (!::mkdtemp(directory.data()))
        die("no temporary directory");
    control::keys_request request;
    request.directory = directory + "/keys";
    request.hosts = {{"localhost"}};
    request.vms = {"bench"};
    const auto made = control::make_keys(request);
    if (!made.error.empty())
        die(made.error);
    for (const auto& [name, keys] :
         {std::pair<const char*, std::string>{"unix", ""},
          {"tls", net::keys_directory(made.host_directories[0], "bench", net::link_part::qemu)}}) {
        compare_bulk(keys, name, mib, rounds);
        compare_lanes(keys, name, mib, rounds);
        series small, trips;
        constexpr std::uint64_t messages = 1'000'000, round_trips = 20'000;
        for (unsigned i = 0; i < rounds; ++i) {
            small.add(link_small(keys, messages));
            trips.add(link_round_trips(keys, round_trips));
        }
        std::printf("small %-4s %.2f million messages/s, %.0f CPU ns each (both ends)   round trip %.1f us\n",
                    name, static_cast<double>(messages) / median(small.wall) / 1e6,
                    median(small.cpu) / static_cast<double>(messages) * 1e9,
                    median(trips.wall) / static_cast<double>(round_trips) * 1e6);
    }
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
}
