// SPDX-License-Identifier: GPL-2.0-or-later
//
// How long the choice of hosts for a node takes in a pool of 1,000 hosts with 10,000 nodes, and how long it
// takes until all nodes of a host that died have new standbys: percentiles, because a person waits for one.
#include "control/cluster/placement.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>

namespace {

using namespace kagemusha::control::cluster;

placement::request drawn(std::mt19937& random, unsigned cluster) {
    return {fmt::format("c{}", cluster),
            {1 + random() % 8, 1024u << random() % 5, random() % 2 == 0 ? 0 : 5 * (1 + random() % 5)},
            random() % 2 == 0};
}

placement full_pool(std::mt19937& random) {
    std::vector<host_offer> hosts;
    for (std::size_t i = 0; i < 1000; ++i)
        hosts.push_back({fmt::format("host{}", i), {192, 512u << 10, 400}});
    placement pool(std::move(hosts));
    for (std::uint64_t number = 0; number < 10000; ++number) {
        std::string why;
        if (auto placed = pool.place(drawn(random, static_cast<unsigned>(number / 8)), why))
            pool.add(number, std::move(*placed));
    }
    return pool;
}

void percentiles(benchmark::State& state, std::vector<double>& took_us) {
    std::sort(took_us.begin(), took_us.end());
    const auto at = [&](double part) {
        return took_us[static_cast<std::size_t>(part * (took_us.size() - 1))];
    };
    state.counters["p50_us"] = at(0.5);
    state.counters["p99_us"] = at(0.99);
    state.counters["most_us"] = took_us.back();
}

template <class Work>
double microseconds(const Work& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

void place_one(benchmark::State& state) {
    std::mt19937 random(1);
    auto pool = full_pool(random);
    std::vector<double> took_us;
    for (auto _ : state) {
        const auto wanted = drawn(random, static_cast<unsigned>(random() % 1250));
        std::optional<placed_node> placed;
        std::string why;
        took_us.push_back(microseconds([&] { placed = pool.place(wanted, why); }));
        benchmark::DoNotOptimize(placed);
    }
    percentiles(state, took_us);
}

void host_dies(benchmark::State& state) {
    std::mt19937 random(1);
    const auto pool = full_pool(random);
    std::vector<double> took_us;
    std::size_t moved = 0;
    for (auto _ : state) {
        state.PauseTiming();
        auto copy = pool;
        state.ResumeTiming();
        std::vector<std::uint64_t> lost;
        took_us.push_back(microseconds([&] { moved += copy.host_died(random() % 1000, lost).size(); }));
    }
    percentiles(state, took_us);
    state.counters["nodes"] = static_cast<double>(moved) / static_cast<double>(state.iterations());
}

BENCHMARK(place_one)->Iterations(20000);
BENCHMARK(host_dies)->Iterations(200);

} // namespace
