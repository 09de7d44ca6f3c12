// SPDX-License-Identifier: GPL-2.0-or-later
//
// Many short launches with work between them that depends on data: a bitonic sort, a breadth-first search.
#include "suite/program.hpp"

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace suite {
namespace {

// ---- bitonic sort: a launch for each of its steps ----

const char* sort_source = R"(
kernel void exchange(global uint* key, uint distance, uint run)
{
    const uint i = get_global_id(0);
    const uint low = ((i & ~(distance - 1)) << 1) | (i & (distance - 1)), high = low + distance;
    const uint a = key[low], b = key[high];
    if ((a > b) == ((low & run) == 0)) {
        key[low] = b;
        key[high] = a;
    }
}
)";

class sort final : public work {
public:
    sort(const gpu& device, std::size_t scale)
        : gpu_(device)
        , count_(power(scale))
        , host_(keys(count_))
        , input_(device.upload(host_))
        , keys_(device.make(count_ * sizeof(cl_uint)))
        , kernels_(device.build(sort_source, {"exchange"})) {}

    void once() override {
        gpu_.copy(input_, keys_);
        for (std::size_t run = 2; run <= count_; run *= 2)
            for (std::size_t distance = run / 2; distance > 0; distance /= 2) {
                kernels_[0].with(keys_, static_cast<cl_uint>(distance), static_cast<cl_uint>(run));
                gpu_.launch(kernels_[0], count_ / 2);
            }
        gpu_.finish();
    }

    std::string check() override {
        auto expected = host_;
        std::sort(expected.begin(), expected.end());
        return gpu_.download<cl_uint>(keys_) == expected ? "" : "the keys are not sorted";
    }

private:
    static std::size_t power(std::size_t scale) {
        std::size_t n = std::size_t{1} << 16;
        while (n < (scale << 16))
            n *= 2;
        return n;
    }
    static std::vector<cl_uint> keys(std::size_t count) {
        numbers random(21);
        std::vector<cl_uint> all(count);
        std::generate(all.begin(), all.end(), [&] { return random.next(); });
        return all;
    }

    const gpu& gpu_;
    std::size_t count_;
    std::vector<cl_uint> host_;
    buffer input_, keys_;
    std::vector<kernel> kernels_;
};

// ---- breadth-first search, level by level; the host reads after each whether there is another one ----

constexpr cl_uint unseen = 0xffffffff;
constexpr std::size_t degree = 4;

const char* search_source = R"(
kernel void level(global const uint* neighbour, global uint* distance, global uint* more, uint now)
{
    const size_t me = get_global_id(0);
    if (distance[me] != now)
        return;
    for (uint i = 0; i < 4; ++i) {
        const uint other = neighbour[4 * me + i];
        if (distance[other] == 0xffffffff) {
            distance[other] = now + 1;
            *more = 1;
        }
    }
}
)";

class search final : public work {
public:
    search(const gpu& device, std::size_t scale)
        : gpu_(device)
        , count_((std::size_t{1} << 15) * scale)
        , host_(edges(count_))
        , start_(count_, unseen)
        , neighbour_(device.upload(host_))
        , start_buffer_(upload_start())
        , distance_(device.make(count_ * sizeof(cl_uint)))
        , more_(device.make(sizeof(cl_uint)))
        , kernels_(device.build(search_source, {"level"})) {}

    void once() override {
        gpu_.copy(start_buffer_, distance_);
        cl_uint more = 1;
        for (cl_uint now = 0; more; ++now) {
            more = 0;
            gpu_.write(more_, &more);
            kernels_[0].with(neighbour_, distance_, more_, now);
            gpu_.launch(kernels_[0], count_);
            gpu_.read(more_, &more);
        }
    }

    std::string check() override {
        std::vector<cl_uint> expected = start_, front{0}, next;
        for (cl_uint now = 1; !front.empty(); ++now, front.swap(next), next.clear())
            for (const cl_uint me : front)
                for (std::size_t i = 0; i < degree; ++i)
                    if (cl_uint& there = expected[host_[degree * me + i]]; there == unseen) {
                        there = now;
                        next.push_back(host_[degree * me + i]);
                    }
        return gpu_.download<cl_uint>(distance_) == expected ? "" : "the distances are not those of the CPU";
    }

private:
    static std::vector<cl_uint> edges(std::size_t count) {
        numbers random(22);
        std::vector<cl_uint> all(count * degree);
        std::generate(all.begin(), all.end(),
                      [&] { return random.below(static_cast<std::uint32_t>(count)); });
        return all;
    }
    buffer upload_start() {
        start_[0] = 0;
        return gpu_.upload(start_);
    }

    const gpu& gpu_;
    std::size_t count_;
    std::vector<cl_uint> host_, start_;
    buffer neighbour_, start_buffer_, distance_, more_;
    std::vector<kernel> kernels_;
};

constexpr program programs[] = {
    {"sort", "launch", "bitonic sort of 65,536 keys, 136 launches", made<sort>},
    {"bfs", "launch", "breadth-first search, a read after each level", made<search>},
};

} // namespace

std::span<const program> irregular_programs() {
    return programs;
}

} // namespace suite
