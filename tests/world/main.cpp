// SPDX-License-Identifier: GPL-2.0-or-later
// kagemusha_world: runs schedules of the simulated world (world.hpp). One that breaks a rule prints what
// broke, its faults, and the command that runs it again.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "world/shrink.hpp"
#include "world/world.hpp"

namespace {

using namespace kagemusha::world;

int usage() {
    std::puts(
        "usage: kagemusha_world [--seed N] [--count N] [--arbiter lock|etcd|fence] [--hosts 2|3] [--trace]\n"
        "                       [--shrink] [--break RULE] [--expect-failure [CHECKER]] [--keep-going]\n"
        "Runs COUNT schedules with the seeds N, N+1, …\n"
        "--shrink drops faults while the schedule still fails in the same way; with --trace it shows what "
        "is\n"
        "left. --break breaks a rule on purpose; --expect-failure then succeeds if a checker (of that name)\n"
        "finds it. --keep-going counts failures instead of ending with the first one.");
    return 2;
}

bool number(const char* text, std::uint64_t& out) {
    char* end = nullptr;
    out = std::strtoull(text, &end, 10);
    return end != text && *end == 0;
}

struct wishes {
    std::uint64_t seed = 1, count = 1, hosts = 0;
    bool any_arbiter = true, trace = false, shrink = false, expect_failure = false, keep_going = false;
    arbiter_kind arbiter = arbiter_kind::lock;
    mutation broken = mutation::none;
    std::string expected;
};

bool parse(int argc, char** argv, wishes& w) {
    for (int i = 1; i < argc; ++i) {
        const std::string a = argv[i];
        const bool more = i + 1 < argc;
        if (a == "--seed" && more && number(argv[i + 1], w.seed)) {
            ++i;
        } else if (a == "--count" && more && number(argv[i + 1], w.count)) {
            ++i;
        } else if (a == "--hosts" && more && number(argv[i + 1], w.hosts) && (w.hosts == 2 || w.hosts == 3)) {
            ++i;
        } else if (a == "--arbiter" && more && kagemusha::world::parse(argv[i + 1], w.arbiter)) {
            w.any_arbiter = false;
            ++i;
        } else if (a == "--break" && more && kagemusha::world::parse(argv[i + 1], w.broken)) {
            ++i;
        } else if (a == "--trace") {
            w.trace = true;
        } else if (a == "--shrink") {
            w.shrink = true;
        } else if (a == "--keep-going") {
            w.keep_going = true;
        } else if (a == "--expect-failure") {
            w.expect_failure = true;
            if (more && argv[i + 1][0] != '-')
                w.expected = argv[++i];
        } else {
            return false;
        }
    }
    return true;
}

void report(const wishes& how, options o, const std::string& failure) {
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(o.seed), failure.c_str());
    if (how.shrink) {
        o = shrunk(o, failure);
        if (how.trace) {
            world again(o, true);
            again.run();
        }
    }
    for (const auto& f : o.faults)
        std::printf("  %s\n", to_text(f).c_str());
    std::string more;
    if (!how.any_arbiter)
        more += std::string(" --arbiter ") + name_of(how.arbiter);
    if (how.hosts != 0)
        more += " --hosts " + std::to_string(how.hosts);
    if (how.broken != mutation::none)
        more += std::string(" --break ") + name_of(how.broken);
    std::printf("again: kagemusha_world --seed %llu%s%s --trace\n", static_cast<unsigned long long>(o.seed),
                more.c_str(), how.shrink ? " --shrink" : "");
    std::fflush(stdout);
}

} // namespace

int main(int argc, char** argv) {
    wishes how;
    if (!parse(argc, argv, how))
        return usage();
    const auto begin = std::chrono::steady_clock::now();
    statistics total;
    std::uint64_t failures = 0;
    for (std::uint64_t seed = how.seed; seed < how.seed + how.count; ++seed) {
        auto o = drawn(seed, how.any_arbiter, how.arbiter, static_cast<std::uint8_t>(how.hosts));
        o.broken = how.broken;
        world w(o, how.trace && !how.shrink);
        w.run();
        w.stats.slowest_seed = seed;
        total.add(w.stats);
        if (w.ok())
            continue;
        if (how.expect_failure) {
            if (!how.expected.empty() && checker_of(w.failure()) != how.expected)
                continue; // found, and not as it should be: others may be
            std::printf("found with seed %llu: %s\n", static_cast<unsigned long long>(seed),
                        w.failure().c_str());
            return 0;
        }
        ++failures;
        report(how, o, w.failure());
        if (!how.keep_going)
            return 1;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::printf("%s\n%.1f s, %.0f schedules a second\n", total.text().c_str(), took.count(),
                static_cast<double>(total.schedules) / took.count());
    if (how.expect_failure) {
        std::printf("a broken rule (%s) was not found\n", name_of(how.broken));
        return 1;
    }
    if (failures != 0)
        std::printf("%llu schedules failed\n", static_cast<unsigned long long>(failures));
    return failures != 0 ? 1 : 0;
}
