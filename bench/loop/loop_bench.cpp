// SPDX-License-Identifier: GPL-2.0-or-later
// loop_bench: what a device loop's look at its token costs: the example servers' callbacks on this machine's OpenCL
// device, with a loop that looks and one that does not, in turns. Each launch gets the same events. Times are for one
// callback: on the device, and from the launch's submission to its outbox, as a server's client waits for it (and then
// for its sockets, which would only hide the look).
//
//     loop_bench [ROUNDS [ITEMS]]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <poll.h>

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
    workload echo{"echo, 64 bytes", examples::echo, "", 0, {}, {}};
    for (int i = 0; i < 200; ++i)
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

private:
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

} // namespace

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 300;
    const auto items = static_cast<std::uint32_t>(argc > 2 ? std::atoi(argv[2]) : 0);
    if (rounds < 10 || argc > 3) {
        std::fputs("usage: loop_bench [ROUNDS (10 or more) [ITEMS]]\n", stderr);
        return 2;
    }
    try {
        std::printf("%-28s %-8s %10s %10s %10s %20s\n", "", "time", "looks, ns", "never, ns", "cost", "95 %");
        for (const workload& w : workloads())
            compare(w, rounds, items);
    } catch (const failure& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
    return 0;
}
