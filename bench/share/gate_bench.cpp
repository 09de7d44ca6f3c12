// SPDX-License-Identifier: GPL-2.0-or-later
// gate_bench: what the gate of a shared GPU costs a worker for each request: begin() and end() of a task, when
// it has the GPU and nobody else wants it, and with a window because others may.
#include <benchmark/benchmark.h>
#include <sys/socket.h>

#include "share/gate/gate.hpp"

namespace {

using namespace kagemusha::share;

void begin_and_end(benchmark::State& state, bool bounded) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
        return state.SkipWithError("no socket pair");
    share_page page{};
    page.word = SHARE_GRANTED;
    page.bounded = bounded;
    gate g(page, ends[0], [](const std::string&) {});
    for (auto step : state) {
        g.begin(false);
        g.end();
    }
    close(ends[0]);
    close(ends[1]);
}

void alone(benchmark::State& state) {
    begin_and_end(state, false);
}
void among_others(benchmark::State& state) {
    begin_and_end(state, true);
}
BENCHMARK(alone);
BENCHMARK(among_others);

} // namespace

BENCHMARK_MAIN();
