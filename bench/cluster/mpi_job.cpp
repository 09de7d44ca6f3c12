// SPDX-License-Identifier: GPL-2.0-or-later
//
// MPI programs whose processes compute on a GPU each, for clusters (docs/clusters.md) or any other machines:
//
//   kagemusha_mpi_job halo ROWS COLUMNS STEPS WORK [check]   a grid in strips, whose borders go to the neighbours after
//                                                            each step: communicates
//   kagemusha_mpi_job sums ITEMS ROUNDS LAUNCHES [check]     a generator of random numbers per item, one sum at the end:
//                                                            computes
//   kagemusha_mpi_job wire BYTES TIMES                       what process 0 and 1 measure of their connection
//
// Numbers are whole ones modulo 2^32, so the result is the same for any number of processes, to the bit. `check`:
// process 0 compares it with what its processor computes. Status 0: all is right; else a line says what is not.
#include "suite/gpu.hpp"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

using suite::need;
using seconds = std::chrono::duration<double>;
using cells = std::vector<std::uint32_t>;

constexpr std::uint32_t factor = 1664525, addend = 1013904223; // Numerical Recipes' generator

// MPI's own waits keep a processor busy. Virtual nodes share the host's: who has nothing to do would take them
// from those who compute, which no node of a physical cluster does.
template <std::size_t count>
void wait_asleep(std::array<MPI_Request, count> requests) {
    for (int over = 0; over == 0;) {
        MPI_Testall(count, requests.data(), &over, MPI_STATUSES_IGNORE);
        if (over == 0)
            std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
}

struct world {
    int rank = 0, size = 1;
    world() {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
    }
    void together() const {
        std::array<MPI_Request, 1> request;
        MPI_Ibarrier(MPI_COMM_WORLD, request.data());
        wait_asleep(request);
    }
    std::uint64_t sum(std::uint64_t of_mine) const {
        std::uint64_t all = 0;
        std::array<MPI_Request, 1> request;
        MPI_Iallreduce(&of_mine, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD, request.data());
        wait_asleep(request);
        return all;
    }
};

[[noreturn]] void give_up(const char* why) {
    std::fprintf(stderr, "kagemusha_mpi_job: %s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::abort();
}

std::uint32_t number(const char* text, std::uint32_t most) {
    char* end = nullptr;
    const auto value = std::strtoull(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < 1 || value > most)
        give_up("a number is missing, or too large");
    return static_cast<std::uint32_t>(value);
}

class stop_watch {
public:
    double now() const { return seconds(std::chrono::steady_clock::now() - begin_).count(); }

private:
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Of all processes together the same line, in a form that a script reads.
void report(const world& w, const char* what, std::uint64_t result, double took, bool checked) {
    if (w.rank == 0)
        std::printf("%s processes=%d result=%016llx seconds=%.3f%s\n", what, w.size,
                    static_cast<unsigned long long>(result), took, checked ? " checked" : "");
}

// ---- halo

constexpr char halo_source[] = R"(
kernel void advance(global const uint* from, global uint* to, uint columns, uint work)
{
    const uint at = get_global_id(0) + columns;
    const uint column = at % columns, row = at - column;
    uint value = from[at - columns] + from[at + columns] + from[at] + from[row + (column + columns - 1) % columns] +
                 from[row + (column + 1) % columns];
    for (uint i = 0; i < work; ++i)
        value = value * 1664525u + 1013904223u;
    to[at] = value;
}
)";

struct grid {
    std::uint32_t rows, columns, steps, work;
};

std::uint32_t first_value(std::uint64_t at) {
    return static_cast<std::uint32_t>(at * 2654435761u);
}

// Depends on where each value is.
std::uint64_t weighed(const std::uint32_t* values, std::size_t count, std::uint64_t first) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count; ++i)
        sum += (values[i] + 1ull) * ((first + i) * 0x9e3779b97f4a7c15u | 1);
    return sum;
}

std::uint64_t halo_on_the_processor(const grid& g) {
    cells from(std::size_t{g.rows} * g.columns), to(from.size());
    for (std::size_t i = 0; i < from.size(); ++i)
        from[i] = first_value(i);
    for (std::uint32_t step = 0; step < g.steps; ++step) {
        for (std::size_t row = 0; row < g.rows; ++row) {
            const auto* here = &from[row * g.columns];
            const auto* above = &from[(row + g.rows - 1) % g.rows * g.columns];
            const auto* below = &from[(row + 1) % g.rows * g.columns];
            for (std::size_t column = 0; column < g.columns; ++column) {
                auto value = above[column] + below[column] + here[column] +
                             here[(column + g.columns - 1) % g.columns] + here[(column + 1) % g.columns];
                for (std::uint32_t i = 0; i < g.work; ++i)
                    value = value * factor + addend;
                to[row * g.columns + column] = value;
            }
        }
        std::swap(from, to);
    }
    return weighed(from.data(), from.size(), 0);
}

class strip {
public:
    strip(const world& w, const grid& g)
        : w_(w)
        , columns_(g.columns)
        , rows_(g.rows / static_cast<std::uint32_t>(w.size))
        , row_bytes_(std::size_t{g.columns} * sizeof(std::uint32_t))
        , kernels_(gpu_.build(halo_source, {"advance"}))
        , from_(gpu_.make((rows_ + 2) * row_bytes_))
        , to_(gpu_.make((rows_ + 2) * row_bytes_))
        , above_(g.columns)
        , below_(g.columns) {
        const auto first = first_cell();
        cells mine(std::size_t{rows_} * columns_);
        for (std::size_t i = 0; i < mine.size(); ++i)
            mine[i] = first_value(first + i);
        need(clEnqueueWriteBuffer(gpu_.queue(), from_.get(), CL_TRUE, row_bytes_,
                                  mine.size() * sizeof mine[0], mine.data(), 0, nullptr, nullptr),
             "write the strip");
    }

    void step(std::uint32_t number, std::uint32_t work) {
        const auto& source = number % 2 == 0 ? from_ : to_;
        const auto& target = number % 2 == 0 ? to_ : from_;
        exchange(source.get());
        kernels_[0].with(source, target, columns_, work);
        gpu_.launch(kernels_[0], std::size_t{rows_} * columns_);
    }

    std::uint64_t result(std::uint32_t steps) const {
        const auto all = gpu_.download<std::uint32_t>(steps % 2 == 0 ? from_ : to_);
        return weighed(&all[columns_], std::size_t{rows_} * columns_, first_cell());
    }

private:
    std::uint64_t first_cell() const {
        return std::uint64_t{rows_} * columns_ * static_cast<unsigned>(w_.rank);
    }
    void move(cl_mem memory, std::uint32_t row, cells& line, bool out) const {
        const auto at = row * row_bytes_;
        need(out ? clEnqueueReadBuffer(gpu_.queue(), memory, CL_TRUE, at, row_bytes_, line.data(), 0, nullptr,
                                       nullptr)
                 : clEnqueueWriteBuffer(gpu_.queue(), memory, CL_TRUE, at, row_bytes_, line.data(), 0,
                                        nullptr, nullptr),
             "move a border");
    }
    // The first row goes up, the last one down; the grid's upper border is the lower one's neighbour.
    void exchange(cl_mem memory) {
        const int up = (w_.rank + w_.size - 1) % w_.size, down = (w_.rank + 1) % w_.size;
        move(memory, 1, above_, true);
        move(memory, rows_, below_, true);
        cells from_below(columns_), from_above(columns_);
        const auto count = static_cast<int>(columns_);
        std::array<MPI_Request, 4> requests;
        MPI_Irecv(from_below.data(), count, MPI_UINT32_T, down, 1, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(from_above.data(), count, MPI_UINT32_T, up, 2, MPI_COMM_WORLD, &requests[1]);
        MPI_Isend(above_.data(), count, MPI_UINT32_T, up, 1, MPI_COMM_WORLD, &requests[2]);
        MPI_Isend(below_.data(), count, MPI_UINT32_T, down, 2, MPI_COMM_WORLD, &requests[3]);
        wait_asleep(requests);
        move(memory, 0, from_above, false);
        move(memory, rows_ + 1, from_below, false);
    }

    const world& w_;
    suite::gpu gpu_;
    const std::uint32_t columns_, rows_;
    const std::size_t row_bytes_;
    std::vector<suite::kernel> kernels_;
    suite::buffer from_, to_;
    cells above_, below_;
};

bool run_halo(const world& w, const grid& g, bool check) {
    if (g.rows % static_cast<unsigned>(w.size) != 0)
        give_up("ROWS must be a multiple of the number of processes");
    strip mine(w, g);
    w.together();
    const stop_watch watch;
    for (std::uint32_t step = 0; step < g.steps; ++step) {
        mine.step(step, g.work);
        if (w.rank == 0 && g.steps >= 10 && step % (g.steps / 10) == 0) {
            std::printf("@step %u\n", step);
            std::fflush(stdout);
        }
    }
    const auto result = w.sum(mine.result(g.steps));
    const auto took = watch.now();
    const bool right = !check || w.rank != 0 || result == halo_on_the_processor(g);
    report(w, right ? "halo" : "WRONG: halo", result, took, check);
    return right;
}

// ---- sums

constexpr char sums_source[] = R"(
kernel void advance(global uint* values, uint rounds)
{
    uint x = values[get_global_id(0)];
    for (uint i = 0; i < rounds; ++i)
        x = x * 1664525u + 1013904223u;
    values[get_global_id(0)] = x;
}
)";

// Of so many rounds at once: x → a x + b.
struct jump {
    std::uint32_t a = 1, b = 0;
};

jump many(std::uint64_t rounds) {
    jump out, power{factor, addend};
    for (; rounds > 0; rounds /= 2) {
        if (rounds % 2 != 0)
            out = {out.a * power.a, out.b * power.a + power.b};
        power = {power.a * power.a, power.b * power.a + power.b};
    }
    return out;
}

bool run_sums(const world& w, std::uint32_t items, std::uint32_t rounds, std::uint32_t launches, bool check) {
    const auto count = items / static_cast<unsigned>(w.size);
    if (items % static_cast<unsigned>(w.size) != 0)
        give_up("ITEMS must be a multiple of the number of processes");
    const auto first = std::uint64_t{count} * static_cast<unsigned>(w.rank);
    suite::gpu gpu;
    auto kernels = gpu.build(sums_source, {"advance"});
    cells mine(count);
    for (std::size_t i = 0; i < count; ++i)
        mine[i] = first_value(first + i);
    const auto values = gpu.upload(mine);
    w.together();
    const stop_watch watch;
    kernels[0].with(values, rounds);
    for (std::uint32_t i = 0; i < launches; ++i) {
        gpu.launch(kernels[0], count);
        gpu.finish();
        if (w.rank == 0 && launches >= 10 && i % (launches / 10) == 0) {
            std::printf("@step %u\n", i);
            std::fflush(stdout);
        }
    }
    mine = gpu.download<std::uint32_t>(values);
    const auto result = w.sum(weighed(mine.data(), count, first));
    const auto took = watch.now();
    bool right = true;
    if (check && w.rank == 0) {
        const auto all = many(std::uint64_t{rounds} * launches);
        std::uint64_t expected = 0;
        for (std::uint32_t i = 0; i < items; ++i) {
            const std::uint32_t value = first_value(i) * all.a + all.b;
            expected += weighed(&value, 1, i);
        }
        right = result == expected;
    }
    report(w, right ? "sums" : "WRONG: sums", result, took, check);
    return right;
}

// ---- wire

bool run_wire(const world& w, std::uint32_t bytes, std::uint32_t times) {
    if (w.size != 2)
        give_up("wire is for two processes");
    std::vector<char> data(bytes, 'k');
    const auto there_and_back = [&](int count, bool all_back) {
        if (w.rank == 0) {
            MPI_Send(data.data(), count, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(data.data(), all_back ? count : 1, MPI_CHAR, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(data.data(), count, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(data.data(), all_back ? count : 1, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
        }
    };
    there_and_back(1, true); // connects them
    std::vector<double> trips;
    for (std::uint32_t i = 0; i < times; ++i) {
        const stop_watch watch;
        there_and_back(1, true);
        trips.push_back(watch.now());
    }
    std::sort(trips.begin(), trips.end());
    const stop_watch watch;
    there_and_back(static_cast<int>(bytes), false);
    const auto took = watch.now();
    if (w.rank == 0)
        std::printf("wire processes=2 round_trip_ms=%.3f mbit_s=%.3f seconds=%.3f\n",
                    trips[trips.size() / 2] * 1e3, bytes * 8e-6 / took, took);
    return true;
}

bool run(const std::vector<char*>& words) {
    const world w;
    const auto is = [&](const char* name, std::size_t count) {
        return !words.empty() && std::strcmp(words[0], name) == 0 && words.size() == count + 1;
    };
    const bool check = !words.empty() && std::strcmp(words.back(), "check") == 0;
    constexpr std::uint32_t most = 1u << 30, most_side = 1u << 14;
    if (is("halo", check ? 5 : 4))
        return run_halo(w,
                        {number(words[1], most_side), number(words[2], most_side), number(words[3], most),
                         number(words[4], most)},
                        check);
    if (is("sums", check ? 4 : 3))
        return run_sums(w, number(words[1], 1u << 26), number(words[2], most), number(words[3], most), check);
    if (is("wire", 2))
        return run_wire(w, number(words[1], most), number(words[2], 1u << 20));
    give_up("usage: halo ROWS COLUMNS STEPS WORK | sums ITEMS ROUNDS LAUNCHES | wire BYTES TIMES");
}

} // namespace

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    const bool right = run({argv + 1, argv + argc});
    MPI_Finalize();
    return right ? 0 : 1;
}
