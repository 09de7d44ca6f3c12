// SPDX-License-Identifier: GPL-2.0-or-later
// kagemusha_sim: runs simulated schedules of replication. A schedule that breaks a rule prints the command
// that runs it again, and its rule.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "sim/simulator.hpp"

namespace {

using namespace kagemusha::sim;

int usage() {
    std::puts(
        "usage: kagemusha_sim [--seed N] [--count N] [--scenario FILE] [--break RULE] [--kill-each-step]\n"
        "                     [--trace] [--expect-failure]\n"
        "Runs COUNT schedules with the seeds N, N+1, …; a scenario's options replace the drawn ones.\n"
        "--break breaks a rule on purpose; --expect-failure then succeeds if a checker finds it.\n"
        "--kill-each-step runs each seed once for every step, at which the primary dies.");
    return 2;
}

bool number(const char* text, std::uint64_t& out) {
    char* end = nullptr;
    out = std::strtoull(text, &end, 10);
    return end != text && *end == 0;
}

} // namespace

int main(int argc, char** argv) {
    std::uint64_t seed = 1, count = 1;
    std::string scenario, broken = "none";
    bool trace = false, expect_failure = false, kill_each_step = false;
    for (int i = 1; i < argc; ++i) {
        const std::string a = argv[i];
        const bool more = i + 1 < argc;
        if (a == "--seed" && more && number(argv[i + 1], seed))
            ++i;
        else if (a == "--count" && more && number(argv[i + 1], count))
            ++i;
        else if (a == "--scenario" && more)
            scenario = argv[++i];
        else if (a == "--break" && more)
            broken = argv[++i];
        else if (a == "--trace")
            trace = true;
        else if (a == "--expect-failure")
            expect_failure = true;
        else if (a == "--kill-each-step")
            kill_each_step = true;
        else
            return usage();
    }
    const auto begin = std::chrono::steady_clock::now();
    statistics total;
    for (std::uint64_t s = seed; s < seed + count; ++s) {
        options o = drawn(s);
        std::string error;
        if (!scenario.empty() && !read_file(scenario, o, error)) {
            std::fprintf(stderr, "%s\n", error.c_str());
            return 2;
        }
        o.seed = s;
        if (broken != "none" && !parse(broken, o.broken)) {
            std::fprintf(stderr, "no such rule to break: %s\n", broken.c_str());
            return 2;
        }
        std::uint64_t steps = 1;
        for (std::uint32_t step = kill_each_step ? 1 : 0; step <= (kill_each_step ? steps : 0); ++step) {
            o.kill_at = kill_each_step ? step : o.kill_at;
            const outcome_of_schedule r = simulator(o, trace).run(total);
            // As long as the schedule lasted to that step.
            if (kill_each_step && r.steps >= step)
                steps = step + 1;
            if (r.failure.empty())
                continue;
            std::printf("seed %llu: %s\nagain: kagemusha_sim --seed %llu%s%s%s%s%s --trace\n",
                        static_cast<unsigned long long>(s), r.failure.c_str(),
                        static_cast<unsigned long long>(s), scenario.empty() ? "" : " --scenario ",
                        scenario.c_str(), broken == "none" ? "" : " --break ",
                        broken == "none" ? "" : broken.c_str(),
                        kill_each_step ? (" --kill-each-step # step " + std::to_string(step)).c_str() : "");
            return expect_failure ? 0 : 1;
        }
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::printf("%s\n%.1f s\n", total.text().c_str(), took.count());
    if (expect_failure) {
        std::printf("a broken rule (%s) was not found\n", broken.c_str());
        return 1;
    }
    return 0;
}
