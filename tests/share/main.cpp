// SPDX-License-Identifier: GPL-2.0-or-later
// kagemusha_share_sim: runs simulated mixes of VMs on one GPU. A mix that breaks a rule prints the command
// that runs it again, and its rule.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "share/checkers/bounds.hpp"
#include "share/simulator.hpp"

namespace {

using namespace kagemusha::share;
using namespace kagemusha::share::sim;

int usage() {
    std::puts(
        "usage: kagemusha_share_sim [--seed N] [--count N] [--break RULE] [--trace] [--expect-failure]\n"
        "Runs COUNT mixes with the seeds N, N+1, …\n"
        "--break breaks a rule on purpose; --expect-failure then succeeds if a checker finds it.");
    return 2;
}

bool number(const char* text, std::uint64_t& out) {
    char* end = nullptr;
    out = std::strtoull(text, &end, 10);
    return end != text && *end == 0;
}

std::string checked(const options& o, const record& r) {
    if (!r.broken_rule.empty())
        return r.broken_rule;
    for (const auto check : {check_starvation, check_shares, check_conservation, check_priorities})
        if (auto error = check(o, r); !error.empty())
            return error;
    return "";
}

// Figures of the mixes whose VMs always have work, with tasks of a millisecond or less and fair or
// round-robin turns: what the scheduler itself adds to the error.
struct figures {
    std::uint64_t mixes = 0, switches = 0, short_mixes = 0;
    double worst_share_error = 0, least_jain = 1, least_use = 1;

    void add(const options& o, const record& r) {
        ++mixes;
        switches += r.switches;
        const bool counts = (o.policy == policy_kind::fair || o.policy == policy_kind::round_robin) &&
                            std::ranges::all_of(o.vms, [](const vm_options& vm) {
                                return vm.how == conduct::busy && vm.task_ns <= 1 * ms && vm.joins_ns == 0 &&
                                       vm.terms.cap_permille == whole_permille;
                            });
        if (!counts || r.used_ns == 0)
            return;
        ++short_mixes;
        const auto weights = weights_of(o);
        double all = 0, sum = 0, squares = 0;
        for (const auto weight : weights)
            all += static_cast<double>(weight);
        for (std::size_t i = 0; i < weights.size(); ++i) {
            const double asked = o.policy == policy_kind::round_robin
                                     ? 1.0 / static_cast<double>(weights.size())
                                     : static_cast<double>(weights[i]) / all;
            const double got = static_cast<double>(r.vms[i].used_ns) / static_cast<double>(r.used_ns);
            worst_share_error = std::max(worst_share_error, std::abs(got - asked));
            sum += got / asked;
            squares += got / asked * got / asked;
        }
        if (o.policy == policy_kind::round_robin ||
            std::ranges::count(weights, weights[0]) == static_cast<std::ptrdiff_t>(weights.size()))
            least_jain = std::min(least_jain, sum * sum / (static_cast<double>(weights.size()) * squares));
        least_use = std::min(least_use, static_cast<double>(r.used_ns) / static_cast<double>(r.measured_ns));
    }

    void print() const {
        std::printf(
            "%llu mixes, %llu turns. %llu mixes of busy VMs with tasks of at most 1 ms: share error at "
            "most %.2f %% of the GPU, Jain's index of equal ones at least %.4f, GPU busy at least %.1f %%\n",
            static_cast<unsigned long long>(mixes), static_cast<unsigned long long>(switches),
            static_cast<unsigned long long>(short_mixes), 100 * worst_share_error, least_jain,
            100 * least_use);
    }
};

} // namespace

int main(int argc, char** argv) {
    std::uint64_t seed = 1, count = 1;
    std::string broken_name = "none";
    bool trace = false, expect_failure = false;
    for (int i = 1; i < argc; ++i) {
        const std::string a = argv[i];
        const bool more = i + 1 < argc;
        if (a == "--seed" && more && number(argv[i + 1], seed))
            ++i;
        else if (a == "--count" && more && number(argv[i + 1], count))
            ++i;
        else if (a == "--break" && more)
            broken_name = argv[++i];
        else if (a == "--trace")
            trace = true;
        else if (a == "--expect-failure")
            expect_failure = true;
        else
            return usage();
    }
    breach broken = breach::none;
    if (!parse(broken_name, broken)) {
        std::fprintf(stderr, "no such rule to break: %s\n", broken_name.c_str());
        return 2;
    }
    figures total;
    for (std::uint64_t s = seed; s < seed + count; ++s) {
        const options o = drawn(s, broken);
        const record r = simulator(o, trace).run();
        total.add(o, r);
        const std::string error = checked(o, r);
        if (error.empty())
            continue;
        if (expect_failure) {
            std::printf("found after %llu mixes: %s\n", static_cast<unsigned long long>(s - seed + 1),
                        error.c_str());
            return 0;
        }
        std::printf("seed %llu (%s, %zu VMs): %s\n  kagemusha_share_sim --seed %llu --trace\n",
                    static_cast<unsigned long long>(s), std::string(name_of(o.policy)).c_str(), o.vms.size(),
                    error.c_str(), static_cast<unsigned long long>(s));
        for (std::size_t i = 0; i < o.vms.size(); ++i)
            std::printf(
                "  VM %zu: conduct %u, share %u, cap %u, priority %u, tasks %s ms, think %s ms; used %s ms, "
                "waited %s ms at most\n",
                i, static_cast<unsigned>(o.vms[i].how), o.vms[i].terms.share_permille,
                o.vms[i].terms.cap_permille, o.vms[i].terms.priority, in_ms(o.vms[i].task_ns).c_str(),
                in_ms(o.vms[i].think_ns).c_str(), in_ms(r.vms[i].used_ns).c_str(),
                in_ms(r.vms[i].longest_wait_ns).c_str());
        return 1;
    }
    total.print();
    if (expect_failure)
        std::printf("no checker found that %s is broken\n", broken_name.c_str());
    return expect_failure ? 1 : 0;
}
