// SPDX-License-Identifier: GPL-2.0-or-later
// loop_bench: what a device loop's look at its token costs: the example servers' callbacks on this machine's OpenCL
// device, with a loop that looks and one that does not, in turns. Each launch gets the same events. Times are for one
// callback: on the device; from the launch's submission to its outbox; and of a request to a whole server, as a client
// sees it that keeps 64 of them under way (grep: one file at a time).
//
// A compiler lays two loops out in two ways, and on a GPU that alone makes one of them slower by one or two percent
// (Mytkowicz and others, "Producing wrong data without doing anything obviously wrong!", ASPLOS 2009). So each is
// built several times, behind a different amount of code that never runs, and the figures are over these builds.
//
//     loop_bench [ROUNDS [ITEMS]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
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
namespace fs = std::filesystem;

struct workload {
    const char* name;
    const char* source;
    const char* build_options;
    std::uint64_t state_bytes;
    std::vector<event> first, each; // of the first launch, and of each after it
    // Of a whole server: what a client says to be answered by a line, and how many of them are under way.
    std::string line;
    std::uint32_t flags;
    int under_way, requests;
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
    workload echo{"echo, 64 bytes", examples::echo, "", 0, {}, {}, std::string(63, 'x') + "\n", 0, 64, 1000};
    for (int i = 0; i < 160; ++i)
        echo.each.push_back(event_of(LOOP_RECEIVED, 1, std::string(64, 'x')));
    all.push_back(echo);
    workload kv{"kv, GET and ADD",
                examples::kv,
                "-DKV_ENTRIES=4096u",
                4096 * 128,
                {},
                {},
                "ADD key\n",
                KAGEMUSHA_LOOP_LINES,
                64,
                1000};
    for (int i = 0; i < 200; ++i)
        kv.each.push_back(
            event_of(LOOP_RECEIVED, 1, (i % 2 != 0 ? "ADD key" : "GET key") + std::to_string(i / 2)));
    all.push_back(kv);
    // A block of 4 KiB without a line that fits is searched in eight steps.
    workload grep{"grep, blocks without a find",
                  examples::grep,
                  "",
                  16 * 4224,
                  {},
                  {},
                  "needle file\n",
                  KAGEMUSHA_LOOP_LINES,
                  1,
                  4};
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

// `source` with a callback that has so much more code, which no event reaches.
std::string laid_out(const char* source, int layout) {
    std::string out = "void program_arrived(struct loop *l, const struct loop_event *e);\n"
                      "#define loop_arrived program_arrived\n";
    out += source;
    out += "\n#undef loop_arrived\nvoid loop_arrived(struct loop *l, const struct loop_event *e)\n{\n"
           "\tif (e->kind > 1000u) {\n";
    for (int i = 0; i < layout; ++i)
        out += "\t\tloop_close(l, e->kind * " + std::to_string(i + 3) + "u);\n";
    return out + "\t}\n\tprogram_arrived(l, e);\n}\n";
}

class lane {
public:
    lane(const workload& w, bool looks, std::uint32_t items)
        : device_(make_device_loop(options(w, looks, items))) {
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
        device_->start(max_callbacks, pack_inbox(box, packed));
        pollfd end{device_->ended_fd(), POLLIN, 0};
        poll(&end, 1, -1);
        const auto times = device_->finish();
        const auto report = read_outbox(device_->outbox(0), packed[0], UINT32_MAX);
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
    std::unique_ptr<device_loop> device_;
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

// Medians of one layout's rounds: with and without.
std::pair<cost, cost> compare_layout(const workload& w, int rounds, std::uint32_t items) {
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
    return {{median(with_device), median(with)}, {median(without_device), median(without)}};
}

void compare(workload w, int rounds, std::uint32_t items) {
    std::vector<double> with_device, with, without_device, without;
    const char* const source = w.source;
    const int layouts = std::clamp(rounds / 10, 1, 12); // each is compiled twice
    for (int i = 0; i < layouts; ++i) {
        const std::string one = laid_out(source, i);
        w.source = one.c_str();
        const auto [looks, never] = compare_layout(w, rounds / layouts, items);
        with_device.push_back(looks.device_ns), without_device.push_back(never.device_ns);
        with.push_back(looks.elapsed_ns), without.push_back(never.elapsed_ns);
    }
    print(w.name, "device", with_device, without_device);
    print("", "launch", with, without);
}

// A server on a thread of its own, and a client.
class server {
public:
    server(const workload& w, bool looks, std::uint32_t items, int root) {
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
        o.root = root;
        o.flags |= w.flags;
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

    // Nanoseconds for one of w.requests lines, each of which is answered by a line.
    double ask(const workload& w) {
        const auto begin = std::chrono::steady_clock::now();
        int sent = 0, heard = 0;
        char answers[65536];
        while (heard < w.requests) {
            std::string more;
            for (; sent < w.requests && sent - heard < w.under_way; ++sent)
                more += w.line;
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
               w.requests;
    }

private:
    int listener_ = -1, client_ = -1;
    kagemusha_loop* loop_ = nullptr;
    std::thread thread_;
};

void compare_servers(const workload& w, int rounds, std::uint32_t items, int root) {
    server looks(w, true, items, root), never(w, false, items, root);
    std::vector<double> with, without;
    const auto least = [&](server& one) {
        double ns = one.ask(w);
        for (int i = 0; i < 4; ++i)
            ns = std::min(ns, one.ask(w));
        return ns;
    };
    least(looks), least(never);
    for (int i = 0; i < rounds; ++i) {
        const bool first = i % 2 == 0;
        const double a = least(first ? looks : never), b = least(first ? never : looks);
        with.push_back(first ? a : b);
        without.push_back(first ? b : a);
    }
    print("", "request", with, without);
}

// A directory with the file that grep's client asks for; it ends with the object.
class searched_directory {
public:
    searched_directory() : path_(fs::temp_directory_path() / "kagemusha-loop-bench-XXXXXX") {
        if (mkdtemp(path_.data()) == nullptr)
            throw failure(errno, "no temporary directory");
        std::ofstream file(fs::path(path_) / "file");
        for (int i = 0; i < 1500; ++i)
            file << "some words in a line\n";
        fd_ = open(path_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    }
    ~searched_directory() {
        close(fd_);
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    searched_directory(const searched_directory&) = delete;
    searched_directory& operator=(const searched_directory&) = delete;

    int fd() const { return fd_; }

private:
    std::string path_;
    int fd_ = -1;
};

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
        const searched_directory root;
        for (const workload& w : workloads()) {
            compare(w, rounds, items);
            compare_servers(w, rounds, items, root.fd());
        }
    } catch (const failure& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
    return 0;
}
