// SPDX-License-Identifier: GPL-2.0-or-later
// share_bench: what sharing one GPU gives and costs. Workers as VMs have them (a process with its sandbox for
// each), the real share arbiter, the real GPU; no guests, so that nothing but the GPU is short. Each "VM" has
// kernels of one length and keeps some of them in its queue.
//
//     share_bench --vm 75:1 --vm 25:10 --policy fair --seconds 10      shares 75 and 25 %, kernels of 1 and 10 ms
//
//     share_bench --fps 30 --vm 0:8 --vm 0:8     each VM renders a frame of 8 ms every 1/30 s
//
// Shares are read from the arbiter's accounts, latencies are from a launch to its completion. A frame is a launch,
// so turns end at frames' ends.
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "frames/path_tracer.hpp"
#include "share/core/terms.hpp"
#include "worker/share_join.hpp"
#include "worker/test_guest_session.hpp"

extern char** environ;

namespace {

using namespace kagemusha;
using clock_type = std::chrono::steady_clock;

constexpr std::uint64_t items = 64 * 512;
// Arithmetic alone: its length is the number of rounds.
constexpr char source[] = R"(
kernel void k(global long* out, long rounds) {
    float x = (float)get_global_id(0);
    for (long i = 0; i < rounds; ++i)
        x = mad(x, 0.9999f, 0.5f);
    if (x == 12345.0f)
        out[0] = 1;
}
)";

struct vm_options {
    std::uint32_t share = 0, priority = 0;
    double task_ms = 1;
    unsigned depth = 16; // launches in flight at most
    double think_ms = 0; // after each of them, with a depth of 1
};

struct options {
    std::string gpu;
    std::string policy = "fair";
    std::vector<vm_options> vms;
    double seconds = 5;
    bool arbiter = true;
    double fps = 0; // of a renderer; 0: kernels one after the other
};

double ms_since(clock_type::time_point from) {
    return std::chrono::duration<double, std::milli>(clock_type::now() - from).count();
}

// Beside this program (a bundle), else where it was built.
std::string program(const char* name, const char* built) {
    std::error_code error;
    const auto beside = std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / name;
    return std::filesystem::exists(beside, error) ? beside.string() : std::string(built);
}

// ---- the arbiter

class arbiter_process {
public:
    arbiter_process() {
        char path[] = "/tmp/kagemusha-share-bench-XXXXXX";
        directory_ = mkdtemp(path);
        int ends[2];
        if (pipe(ends) != 0)
            std::abort();
        const auto socket = this->socket(), ready = std::to_string(ends[1]);
        const auto path_of_arbiter = program("kagemusha-gpu", KAGEMUSHA_GPU_ARBITER);
        const char* arguments[] = {path_of_arbiter.c_str(), "--socket", socket.c_str(), "--ready-fd",
                                   ready.c_str(),           nullptr};
        if (posix_spawn(&pid_, arguments[0], nullptr, nullptr, const_cast<char**>(arguments), environ) != 0)
            std::abort();
        close(ends[1]);
        char byte;
        [[maybe_unused]] const auto end = read(ends[0], &byte, 1);
        close(ends[0]);
    }
    ~arbiter_process() {
        kill(pid_, SIGTERM);
        waitpid(pid_, nullptr, 0);
        std::filesystem::remove_all(directory_);
    }
    std::string socket() const { return directory_ + "/gpu"; }
    std::vector<share_row> rows() const {
        share_hello asks{};
        asks.magic = SHARE_MAGIC;
        asks.version = SHARE_VERSION;
        asks.role = SHARE_ASKER;
        const auto joined = worker::join_share(socket(), asks);
        std::vector<share_row> out;
        for (std::uint32_t i = 0; i < joined.answer.rows; ++i) {
            share_row row{};
            pollfd event{joined.socket.get(), POLLIN, 0};
            if (poll(&event, 1, 1000) != 1 || recv(joined.socket.get(), &row, sizeof row, 0) != sizeof row)
                break;
            out.push_back(row);
        }
        return out;
    }

private:
    std::string directory_;
    pid_t pid_ = 0;
};

share_hello hello_of(const vm_options& vm, std::size_t number, const std::string& policy) {
    share_hello hello{};
    hello.magic = SHARE_MAGIC;
    hello.version = SHARE_VERSION;
    hello.role = SHARE_VM;
    hello.flags = SHARE_HAS_POLICY;
    hello.policy = static_cast<std::uint32_t>(share::policy_named(policy).value_or(share::policy_kind::fair));
    hello.share_permille = vm.share * 10;
    hello.cap_permille = share::whole_permille;
    hello.priority = vm.priority;
    std::snprintf(hello.vm, sizeof hello.vm, "vm%zu", number);
    return hello;
}

// ---- a VM

struct measured {
    std::uint64_t tasks = 0;
    double seconds = 0;
    std::vector<double> latencies_ms;
    std::uint64_t frames = 0, missed = 0;

    double per_second() const { return seconds > 0 ? static_cast<double>(tasks) / seconds : 0; }
    double latency(double part) {
        if (latencies_ms.empty())
            return 0;
        std::ranges::sort(latencies_ms);
        return latencies_ms[std::min(
            latencies_ms.size() - 1,
            static_cast<std::size_t>(part * static_cast<double>(latencies_ms.size())))];
    }
};

class guest {
public:
    guest(const std::string& gpu, const std::string& share, bool renders)
        : session_(std::make_unique<worker::guest_session>(gpu, worker::sandbox_mode::required, share,
                                                           frames::image_bytes))
        , items_(renders ? frames::pixels : items) {
        if (!session_->opened() || session_->build(renders ? frames::source : source) != 0) {
            std::fprintf(stderr, "no session: %s%s\n", session_->whole_log().c_str(),
                         session_->build_log().c_str());
            std::exit(1);
        }
    }
    // Until `stop`; what began after `from` and ended counts.
    measured run(const vm_options& vm, std::int64_t rounds, const std::atomic<bool>& stop,
                 const std::atomic<bool>& counts) {
        measured out;
        std::deque<std::pair<std::uint64_t, clock_type::time_point>> flying;
        std::uint64_t ended = 0;
        bool counting = false;
        clock_type::time_point from{};
        while (!stop) {
            if (!counting && counts) {
                counting = true;
                from = clock_type::now();
                out = {};
            }
            while (flying.size() < vm.depth) {
                flying.emplace_back(session_->launch_with_event(rounds, items_, ended), clock_type::now());
                ended = 0;
            }
            if (!wait_for(flying.front().first))
                break;
            ++out.tasks;
            out.latencies_ms.push_back(ms_since(flying.front().second));
            ended = flying.front().first;
            flying.pop_front();
            if (vm.think_ms > 0)
                std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(vm.think_ms));
        }
        out.seconds = counting ? ms_since(from) / 1000 : 0;
        for (const auto& one : flying)
            wait_for(one.first);
        return out;
    }
    // The same, with a frame every 1/fps s; `phase`: which part of that later than others it begins.
    measured render(double fps, double phase, std::int64_t paths, const std::atomic<bool>& stop,
                    const std::atomic<bool>& counts) {
        while (!counts && !stop)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const auto ns_of = [](clock_type::time_point at) {
            return static_cast<std::uint64_t>(
                std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count());
        };
        const auto from = clock_type::now();
        const double frame_ns = 1e9 / fps;
        frames::pacer pace(ns_of(from) + static_cast<std::uint64_t>(phase * frame_ns),
                           static_cast<std::uint64_t>(frame_ns));
        measured out;
        std::uint64_t ended = 0;
        while (!stop) {
            std::this_thread::sleep_until(clock_type::time_point(std::chrono::nanoseconds(pace.due_ns())));
            const auto begin = clock_type::now();
            const auto event = session_->launch_with_event(
                frames::argument(pace.frame(), static_cast<std::uint32_t>(paths)), items_, ended);
            if (!wait_for(event))
                break;
            ended = event;
            out.latencies_ms.push_back(ms_since(begin));
            pace.shown(ns_of(clock_type::now()));
        }
        out.seconds = ms_since(from) / 1000;
        out.tasks = pace.rendered();
        out.frames = pace.frames();
        out.missed = pace.missed();
        return out;
    }
    // One launch, alone.
    double once_ms(std::int64_t rounds) {
        const auto begin = clock_type::now();
        wait_for(session_->launch_with_event(rounds, items_, 0));
        return ms_since(begin);
    }

private:
    bool wait_for(std::uint64_t event) {
        auto& sink = session_->sink();
        const auto seen = [&] {
            for (auto at = sink.records.begin(); at != sink.records.end(); ++at) {
                vgpu_record_completion record{};
                std::memcpy(&record, at->data(), std::min(sizeof record, at->size()));
                if (record.record.type == VGPU_RECORD_COMPLETION && record.event == event) {
                    sink.records.erase(at);
                    return true;
                }
            }
            return !sink.lost.empty();
        };
        sink.done.clear();
        return worker::drain_until(session_->worker(), sink, seen) && sink.lost.empty();
    }

    std::unique_ptr<worker::guest_session> session_;
    const std::uint64_t items_;
};

// Rounds that take so long, when nobody else is there.
std::int64_t rounds_for(guest& g, double ms, std::int64_t least) {
    std::int64_t rounds = least;
    double took = 0;
    for (int i = 0; i < 20; ++i) {
        took = g.once_ms(rounds);
        for (int again = 0; again < 3; ++again)
            took = std::min(took, g.once_ms(rounds));
        if (took > 20 || took > ms)
            break;
        rounds *= 2;
    }
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(rounds) * ms / took));
}

std::vector<measured> run_together(const options& o, const std::vector<vm_options>& vms,
                                   const std::vector<std::int64_t>& rounds, const arbiter_process* arbiter,
                                   std::vector<share_row>& before, std::vector<share_row>& after) {
    std::vector<worker::joined_share> registrations;
    std::vector<std::unique_ptr<guest>> guests;
    for (std::size_t i = 0; i < vms.size(); ++i) {
        std::string share;
        if (arbiter != nullptr) {
            const auto hello = hello_of(vms[i], i, o.policy);
            registrations.push_back(worker::join_share(arbiter->socket(), hello));
            if (!registrations.back().refusal.empty()) {
                std::fprintf(stderr, "%s\n", registrations.back().refusal.c_str());
                std::exit(1);
            }
            share = worker::share_text(arbiter->socket(), hello);
        }
        guests.push_back(std::make_unique<guest>(o.gpu, share, o.fps > 0));
        if (o.fps > 0) // a renderer's first launch may compile: it has one frame before those that count
            guests.back()->once_ms(frames::argument(0, static_cast<std::uint32_t>(rounds[i])));
    }
    std::atomic<bool> stop = false, counts = false;
    std::vector<measured> out(vms.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < vms.size(); ++i)
        threads.emplace_back([&, i] {
            const double phase = static_cast<double>(i) / static_cast<double>(vms.size());
            out[i] = o.fps > 0 ? guests[i]->render(o.fps, phase, rounds[i], stop, counts)
                               : guests[i]->run(vms[i], rounds[i], stop, counts);
        });
    std::this_thread::sleep_for(std::chrono::seconds(1));
    if (arbiter != nullptr)
        before = arbiter->rows();
    counts = true;
    std::this_thread::sleep_for(std::chrono::duration<double>(o.seconds));
    if (arbiter != nullptr)
        after = arbiter->rows();
    stop = true;
    for (auto& thread : threads)
        thread.join();
    return out;
}

bool parse_vm(const std::string& text, vm_options& vm) {
    const char* at = text.data();
    const char* const end = at + text.size();
    const auto take = [&](auto& value) {
        const auto [rest, error] = std::from_chars(at, end, value);
        const bool whole = error == std::errc{} && (rest == end || *rest == ':');
        at = whole && rest != end ? rest + 1 : rest;
        return whole;
    };
    const auto take_optional = [&](auto& value) { return at == end || take(value); };
    return take(vm.share) && take(vm.task_ms) && take_optional(vm.depth) && take_optional(vm.think_ms) &&
           take_optional(vm.priority) && at == end && vm.task_ms > 0 && vm.depth > 0 && vm.share <= 100;
}

int usage() {
    std::puts(
        "usage: share_bench [--gpu GPU] [--policy fair|round-robin|fixed|priority] [--seconds N]\n"
        "                   [--without-arbiter] [--fps N] --vm SHARE:MS[:DEPTH[:THINK_MS[:PRIORITY]]]…\n"
        "SHARE in percent (0: of what is left); MS: a kernel's length; DEPTH (16): launches in the queue.");
    return 2;
}

void print(const options& o, std::vector<measured>& alone, std::vector<measured>& together,
           const std::vector<share_row>& before, const std::vector<share_row>& after) {
    double held = 0, sum = 0, squares = 0;
    std::vector<double> had(o.vms.size());
    for (std::size_t i = 0; i < o.vms.size() && i < before.size() && i < after.size(); ++i)
        held += had[i] = static_cast<double>(after[i].held_ns - before[i].held_ns);
    std::printf("%4s %7s %9s %7s %11s %11s %9s %9s %11s %11s\n", "VM", "asked", "kernel", "got", "tasks/s",
                "alone/s", "P50 ms", "P99 ms", "alone P50", "alone P99");
    double whole = 0;
    for (std::size_t i = 0; i < o.vms.size(); ++i) {
        const double part = alone[i].per_second() > 0 ? together[i].per_second() / alone[i].per_second() : 0;
        whole += part;
        sum += part;
        squares += part * part;
        std::printf("%4zu %6u%% %6.2f ms %6.2f%% %11.1f %11.1f %9.2f %9.2f %11.2f %11.2f\n", i,
                    o.vms[i].share, o.vms[i].task_ms, held > 0 ? 100 * had[i] / held : 100 * part,
                    together[i].per_second(), alone[i].per_second(), together[i].latency(0.5),
                    together[i].latency(0.99), alone[i].latency(0.5), alone[i].latency(0.99));
    }
    std::printf("sum of throughput against alone: %.3f; Jain's index of it: %.4f\n", whole,
                squares > 0 ? sum * sum / (static_cast<double>(o.vms.size()) * squares) : 0.0);
}

void print_frames(const options& o, std::vector<measured>& together) {
    std::printf("%4s %9s %9s %9s %9s %9s %9s\n", "VM", "a frame", "frames", "missed", "missed %", "P50 ms",
                "P99 ms");
    std::uint64_t frames = 0, missed = 0;
    for (std::size_t i = 0; i < o.vms.size(); ++i) {
        measured& m = together[i];
        frames += m.frames;
        missed += m.missed;
        std::printf("%4zu %6.2f ms %9llu %9llu %9.2f %9.2f %9.2f\n", i, o.vms[i].task_ms,
                    static_cast<unsigned long long>(m.frames), static_cast<unsigned long long>(m.missed),
                    m.frames != 0 ? 100.0 * static_cast<double>(m.missed) / static_cast<double>(m.frames)
                                  : 0.0,
                    m.latency(0.5), m.latency(0.99));
    }
    std::printf("missed of all: %.2f %%\n",
                frames != 0 ? 100.0 * static_cast<double>(missed) / static_cast<double>(frames) : 0.0);
}

} // namespace

int main(int argc, char** argv) {
    options o;
    for (int i = 1; i < argc; ++i) {
        const std::string a = argv[i];
        const bool more = i + 1 < argc;
        vm_options vm;
        if (a == "--gpu" && more)
            o.gpu = argv[++i];
        else if (a == "--policy" && more && share::policy_named(argv[i + 1]))
            o.policy = argv[++i];
        else if (a == "--seconds" && more)
            o.seconds = std::strtod(argv[++i], nullptr);
        else if (a == "--fps" && more)
            o.fps = std::strtod(argv[++i], nullptr);
        else if (a == "--without-arbiter")
            o.arbiter = false;
        else if (a == "--vm" && more && parse_vm(argv[i + 1], vm))
            o.vms.push_back(vm), ++i;
        else
            return usage();
    }
    if (o.vms.empty() || o.seconds <= 0)
        return usage();
    setenv("KAGEMUSHA_WORKER", program("kagemusha-worker", KAGEMUSHA_WORKER_PROGRAM).c_str(), 0);
    std::vector<std::int64_t> rounds;
    std::vector<measured> alone;
    {
        guest one(o.gpu, "", o.fps > 0);
        for (const vm_options& vm : o.vms)
            rounds.push_back(rounds_for(one, vm.task_ms, o.fps > 0 ? 1 : 64));
    }
    std::vector<share_row> before, after;
    // Of VMs that are the same, one is measured.
    for (std::size_t i = 0; i < o.vms.size(); ++i) {
        const auto same = [&](const vm_options& v) {
            return v.task_ms == o.vms[i].task_ms && v.depth == o.vms[i].depth &&
                   v.think_ms == o.vms[i].think_ms;
        };
        const auto first = static_cast<std::size_t>(std::ranges::find_if(o.vms, same) - o.vms.begin());
        rounds[i] = rounds[first];
        if (o.fps > 0)
            continue; // frames are due at times, alone or not
        alone.push_back(first < i ? alone[first]
                                  : run_together(o, {o.vms[i]}, {rounds[i]}, nullptr, before, after)[0]);
    }
    std::unique_ptr<arbiter_process> arbiter;
    if (o.arbiter)
        arbiter = std::make_unique<arbiter_process>();
    auto together = run_together(o, o.vms, rounds, arbiter.get(), before, after);
    std::printf("%s, %.0f s:\n", o.arbiter ? ("policy " + o.policy).c_str() : "without an arbiter",
                o.seconds);
    if (o.fps > 0)
        print_frames(o, together);
    else
        print(o, alone, together, before, after);
    return 0;
}
