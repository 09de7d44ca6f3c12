// SPDX-License-Identifier: GPL-2.0-or-later
// loop_bench: what a device loop's look at its token costs: the example servers' callbacks on this machine's OpenCL
// device, with a loop that looks and one that does not, in turns. Each launch gets the same events. Times are for one
// callback: on the device; from the launch's submission to its outbox; and of a request to a whole server, as a client
// sees it that keeps 64 of them under way.
//
//     loop_bench [ROUNDS [ITEMS]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "loop/core/mailbox.hpp"
#include "loop/host/device_loop.hpp"
#include "loop_examples.hpp"

namespace {

using namespace kagemusha::loop;

struct workload {
    const char* name;
    const char* source;
    const char* build_options;
    std::uint64_t state_bytes;
    std::vector<event> first, each; // of the first launch, and of each after it
};

event event_of(loop_u32 kind, std::uint32_t source, const std::string& data, std::uint64_t cookie = 0) {
    event one;
    one.head.kind = kind;
    one.head.source = source;
    one.head.cookie = cookie;
    const auto bytes = std::as_bytes(std::span(data));
    one.data.assign(bytes.begin(), bytes.end());
    return one;
}

std::vector<workload> workloads() {
    std::vector<workload> all;
    // Their answers have room in one outbox.
    workload echo{"echo, 64 bytes", examples::echo, "", 0, {}, {}};
    for (int i = 0; i < 160; ++i)
        echo.each.push_back(event_of(LOOP_RECEIVED, 1, std::string(64, 'x')));
    all.push_back(echo);
    workload kv{"kv, GET and ADD", examples::kv, "-DKV_ENTRIES=4096u", 4096 * 128, {}, {}};
    for (int i = 0; i < 200; ++i)
        kv.each.push_back(
            event_of(LOOP_RECEIVED, 1, (i % 2 != 0 ? "ADD key" : "GET key") + std::to_string(i / 2)));
    all.push_back(kv);
    // A block of 4 KiB without a line that fits is searched in eight steps.
    workload grep{"grep, blocks without a find", examples::grep, "", 16 * 4224, {}, {}};
    std::string block;
    while (block.size() < LOOP_DATA_BYTES)
        block += "some words in a line\n";
    grep.first.push_back(event_of(LOOP_RECEIVED, 1, "needle file"));
    grep.first.push_back(event_of(LOOP_OPENED, 1, ""));
    for (int i = 0; i < 7; ++i)
        grep.each.push_back(event_of(LOOP_READ, 1, block.substr(0, LOOP_DATA_BYTES)));
    all.push_back(grep);
    return all;
}

struct cost {
    double device_ns, elapsed_ns;
};

class lane {
public:
    lane(const workload& w, bool looks, std::uint32_t items) : device_(options(w, looks, items)) {
        if (!w.first.empty())
            launch(w.first);
    }
    // Nanoseconds for one callback.
    cost launch(const std::vector<event>& events) {
        std::vector<mailbox> box(1);
        for (const event& one : events)
            if (!box[0].push(one))
                std::abort();
        std::vector<std::uint32_t> packed;
        device_.start(pack_inbox(max_callbacks, box, packed));
        pollfd end{device_.ended_fd(), POLLIN, 0};
        poll(&end, 1, -1);
        const auto times = device_.finish();
        const auto report = read_outbox(device_.outbox(0), packed[0], UINT32_MAX);
        if (!report.error.empty() || report.head.callbacks < events.size() ||
            report.head.consumed != events.size()) {
            std::fprintf(stderr, "%s: %u callbacks for %zu events\n", report.error.c_str(),
                         report.head.callbacks, events.size());
            std::exit(1);
        }
        return {static_cast<double>(times.device_ns) / report.head.callbacks,
                static_cast<double>(times.elapsed_ns) / report.head.callbacks};
    }

    static kagemusha_loop_options options(const workload& w, bool looks, std::uint32_t items) {
        kagemusha_loop_options o{};
        o.size = sizeof o;
        o.source = w.source;
        o.build_options = w.build_options;
        o.lanes = 1;
        o.items = items;
        o.state_bytes = w.state_bytes;
        o.flags = looks ? 0 : KAGEMUSHA_LOOP_NEVER_LOOKS;
        return o;
    }

private:
    device_loop device_;
};

double median(std::vector<double> of) {
    std::ranges::sort(of);
    return of[of.size() / 2];
}

// 95 % of the medians of samples drawn from `of`.
std::pair<double, double> interval(const std::vector<double>& of) {
    std::mt19937 random(1);
    std::vector<double> medians;
    for (int i = 0; i < 1000; ++i) {
        std::vector<double> drawn(of.size());
        for (double& one : drawn)
            one = of[random() % of.size()];
        medians.push_back(median(std::move(drawn)));
    }
    std::ranges::sort(medians);
    return {medians[25], medians[974]};
}

void print(const char* name, const char* what, const std::vector<double>& with,
           const std::vector<double>& without) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < with.size(); ++i)
        ratios.push_back(with[i] / without[i]);
    const auto [low, high] = interval(ratios);
    std::printf("%-28s %-8s %10.1f %10.1f %8.2f %% %9.2f to %.2f %%\n", name, what, median(with),
                median(without), 100 * (median(ratios) - 1), 100 * (low - 1), 100 * (high - 1));
}

void compare(const workload& w, int rounds, std::uint32_t items) {
    lane looks(w, true, items), never(w, false, items);
    // The least of a few launches: what else this machine does is no cost of the look.
    const auto least = [&](lane& one) {
        cost all = one.launch(w.each);
        for (int i = 0; i < 4; ++i) {
            const cost next = one.launch(w.each);
            all = {std::min(all.device_ns, next.device_ns), std::min(all.elapsed_ns, next.elapsed_ns)};
        }
        return all;
    };
    least(looks), least(never);
    std::vector<double> with_device, with, without_device, without;
    for (int i = 0; i < rounds; ++i) {
        const bool first = i % 2 == 0; // who is first changes
        const cost a = least(first ? looks : never), b = least(first ? never : looks);
        const cost &l = first ? a : b, &n = first ? b : a;
        with_device.push_back(l.device_ns), without_device.push_back(n.device_ns);
        with.push_back(l.elapsed_ns), without.push_back(n.elapsed_ns);
    }
    print(w.name, "device", with_device, without_device);
    print("", "launch", with, without);
}

// A server on a thread of its own, and a client.
class server {
public:
    server(const workload& w, bool looks, std::uint32_t items) {
        sockaddr_in at{};
        at.sin_family = AF_INET;
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t bytes = sizeof at;
        listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        client_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const int on = 1;
        auto* const address = reinterpret_cast<sockaddr*>(&at);
        if (bind(listener_, address, bytes) != 0 || listen(listener_, 1) != 0 ||
            getsockname(listener_, address, &bytes) != 0 || connect(client_, address, bytes) != 0 ||
            setsockopt(client_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
            throw failure(errno, "no connection on this machine");
        auto o = lane::options(w, looks, items);
        o.listener = listener_;
        o.root = -1;
        o.flags |= KAGEMUSHA_LOOP_LINES;
        char error[1000];
        if (kagemusha_loop_create(&o, &loop_, error, sizeof error) != 0)
            throw failure(EIO, error);
        thread_ = std::thread([this] {
            char text[1000];
            if (kagemusha_loop_run(loop_, text, sizeof text) != 0)
                std::fprintf(stderr, "%s\n", text);
        });
    }
    ~server() {
        kagemusha_loop_stop(loop_);
        thread_.join();
        kagemusha_loop_destroy(loop_);
        close(client_);
        close(listener_);
    }
    server(const server&) = delete;
    server& operator=(const server&) = delete;

    // Nanoseconds for one of `requests` lines, each of which is answered by a line.
    double ask(const std::string& line, int requests) {
        constexpr int under_way = 64;
        const auto begin = std::chrono::steady_clock::now();
        int sent = 0, heard = 0;
        char answers[65536];
        while (heard < requests) {
            std::string more;
            for (; sent < requests && sent - heard < under_way; ++sent)
                more += line;
            for (std::size_t at = 0; at < more.size();) {
                const auto put = send(client_, more.data() + at, more.size() - at, MSG_NOSIGNAL);
                if (put <= 0)
                    throw failure(errno, "the server is gone");
                at += static_cast<std::size_t>(put);
            }
            const auto got = recv(client_, answers, sizeof answers, 0);
            if (got <= 0)
                throw failure(errno, "the server is gone");
            heard += static_cast<int>(std::count(answers, answers + got, '\n'));
        }
        return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() /
               requests;
    }

private:
    int listener_ = -1, client_ = -1;
    kagemusha_loop* loop_ = nullptr;
    std::thread thread_;
};

void compare_servers(const workload& w, const std::string& line, int rounds) {
    constexpr int requests = 1000;
    server looks(w, true, 0), never(w, false, 0);
    std::vector<double> with, without;
    const auto least = [&](server& one) {
        double ns = one.ask(line, requests);
        for (int i = 0; i < 4; ++i)
            ns = std::min(ns, one.ask(line, requests));
        return ns;
    };
    least(looks), least(never);
    for (int i = 0; i < rounds; ++i) {
        const bool first = i % 2 == 0;
        const double a = least(first ? looks : never), b = least(first ? never : looks);
        with.push_back(first ? a : b);
        without.push_back(first ? b : a);
    }
    print(w.name, "request", with, without);
}

} // namespace

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? static_cast<int>(std::strtol(argv[1], nullptr, 10)) : 300;
    const auto items = static_cast<std::uint32_t>(argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 0);
    if (rounds < 10 || argc > 3) {
        std::fputs("usage: loop_bench [ROUNDS (10 or more) [ITEMS]]\n", stderr);
        return 2;
    }
    try {
        std::printf("%-28s %-8s %10s %10s %10s %20s\n", "", "time", "looks, ns", "never, ns", "cost", "95 %");
        for (const workload& w : workloads())
            compare(w, rounds, items);
        compare_servers(workloads()[1], "ADD key\n", rounds);
    } catch (const failure& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
    return 0;
}
