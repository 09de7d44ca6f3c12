// SPDX-License-Identifier: GPL-2.0-or-later
//
// A guest program whose kernel gives something else each time, for a VM that loses its host again and again
// (../test_differences.py).
//
// A round is what programs with tables on the GPU do. A kernel gives each work item a slot of a table. A race
// of atomics decides which one, and the memory's address, which no two processes have alike. The program
// reads the slots and a sum of each, and never the table itself. The next round begins with the question
// whether the GPU still has what the program was told: the table must have each item in the slot that the
// program knows, and the sums must be the same.
//
// The first contradiction ends the program. With "counts" it prints how much was contradicted, believes the
// GPU and goes on.
#include "statements.hpp"

#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t count = 4096, items_in_group = 64;
constexpr unsigned rounds_apart_ms = 20; // at most

const char* source = R"(
kernel void take(global uint* taken, global uint* owner, global uint* slots, global ulong* sums, ulong add)
{
    uint me = get_global_id(0);
    uint slot = (atomic_inc(taken) + (uint)((ulong)sums >> 12)) % get_global_size(0);
    owner[slot] = me;
    slots[me] = slot;
    sums[slot] = sums[slot] * 6364136223846793005UL + (ulong)sums + me + add;
}
kernel void find(global const uint* owner, global const uint* known, global uint* lost)
{
    uint me = get_global_id(0);
    if (owner[known[me]] != me)
        atomic_inc(lost);
}
)";

class program {
public:
    program(const char* address, const char* stream, bool strict)
        : stream_(stream), strict_(strict), wire_(address, static_cast<std::uint16_t>(std::atoi(stream))) {
        const cl_program built = gpu_.build(source);
        take_ = gpu_.kernel(built, "take");
        find_ = gpu_.kernel(built, "find");
        owner_ = gpu_.buffer(count * sizeof(cl_uint));
        slots_ = gpu_.buffer(count * sizeof(cl_uint));
        sums_ = gpu_.buffer(count * sizeof(cl_ulong));
        taken_ = gpu_.buffer(sizeof(cl_uint));
        lost_ = gpu_.buffer(sizeof(cl_uint));
        cl_int error;
        known_ = clCreateBuffer(gpu_.context, CL_MEM_READ_ONLY, count * sizeof(cl_uint), nullptr, &error);
        need(error, "clCreateBuffer");
        for (const cl_mem memory : {owner_, slots_, sums_, taken_})
            zero(memory);
        const cl_mem of_take[] = {taken_, owner_, slots_, sums_}, of_find[] = {owner_, known_, lost_};
        for (cl_uint i = 0; i < std::size(of_take); ++i)
            argument(take_, i, of_take[i]);
        for (cl_uint i = 0; i < std::size(of_find); ++i)
            argument(find_, i, of_find[i]);
    }

    void run(const char* stop_file) {
        std::uint64_t rounds = 0;
        for (; ::access(stop_file, F_OK) != 0; ++rounds) {
            if (rounds != 0)
                check();
            round(rounds % 2 != 0);
            wire_.answer();
            std::this_thread::sleep_for(std::chrono::milliseconds(random_number() % rounds_apart_ms));
        }
        std::printf("%llu rounds are right\n", static_cast<unsigned long long>(rounds));
    }

private:
    void zero(cl_mem memory) const {
        std::size_t bytes = 0;
        need(clGetMemObjectInfo(memory, CL_MEM_SIZE, sizeof bytes, &bytes, nullptr), "clGetMemObjectInfo");
        const std::vector<char> zeros(bytes);
        need(clEnqueueWriteBuffer(gpu_.queue, memory, CL_TRUE, 0, bytes, zeros.data(), 0, nullptr, nullptr),
             "write");
    }
    template <class T>
    void read(cl_mem memory, std::vector<T>& to, cl_bool waits) const {
        need(clEnqueueReadBuffer(gpu_.queue, memory, waits, 0, to.size() * sizeof(T), to.data(), 0, nullptr,
                                 nullptr),
             "read");
    }
    void launch(cl_kernel kernel) const {
        need(clEnqueueNDRangeKernel(gpu_.queue, kernel, 1, nullptr, &count, &items_in_group, 0, nullptr,
                                    nullptr),
             "launch");
    }

    // `apart`: launch and reads are requests of their own; else one flush has both.
    void round(bool apart) {
        const std::uint64_t input = random_number();
        argument(take_, 4, static_cast<cl_ulong>(input));
        launch(take_);
        if (apart)
            need(clFinish(gpu_.queue), "clFinish");
        read(slots_, slots_told_, CL_FALSE);
        read(sums_, sums_told_, CL_TRUE);
        std::vector<bool> used(count);
        for (const cl_uint slot : slots_told_) {
            if (slot >= count || used[slot])
                wrong("slots that no run of the kernel gives");
            used[slot] = true;
        }
        const statement made{{}, ++number_, said_, digest(), input};
        said_ = made.after;
        std::printf("made %llu %016llx in stream %s\n", static_cast<unsigned long long>(number_),
                    static_cast<unsigned long long>(made.after), stream_);
        wire_.say(made);
    }

    // Whether the GPU has what we were told.
    void check() {
        zero(lost_);
        need(clEnqueueWriteBuffer(gpu_.queue, known_, CL_FALSE, 0, count * sizeof(cl_uint),
                                  slots_told_.data(), 0, nullptr, nullptr),
             "write");
        launch(find_);
        read(sums_, sums_now_, CL_FALSE);
        read(lost_, items_lost_, CL_TRUE);
        std::size_t sums_lost = 0;
        for (std::size_t i = 0; i < count; ++i)
            sums_lost += sums_now_[i] != sums_told_[i];
        if (sums_lost + items_lost_[0] == 0)
            return;
        std::printf("CONTRADICTED %zu sums, %u slots of %zu in stream %s\n", sums_lost, items_lost_[0], count,
                    stream_);
        if (strict_)
            wrong("the GPU has something else than we were told");
    }

    [[noreturn]] void wrong(const char* what) const {
        std::printf("WRONG in stream %s after statement %llu: %s\n", stream_,
                    static_cast<unsigned long long>(number_), what);
        fail(what);
    }

    // Of all that we know.
    std::uint64_t digest() const {
        std::uint64_t x = 1;
        for (std::size_t i = 0; i < count; ++i)
            x = (x * 0x9e3779b97f4a7c15u ^ sums_told_[i]) * 0xbf58476d1ce4e5b9u ^ slots_told_[i];
        return x;
    }

    gpu gpu_;
    const char* stream_;
    const bool strict_;
    wire wire_;
    cl_kernel take_{}, find_{};
    cl_mem owner_{}, slots_{}, sums_{}, taken_{}, known_{}, lost_{};
    std::vector<cl_uint> slots_told_ = std::vector<cl_uint>(count), items_lost_ = std::vector<cl_uint>(1);
    std::vector<cl_ulong> sums_told_ = std::vector<cl_ulong>(count), sums_now_ = sums_told_;
    std::uint64_t number_ = 0, said_ = 0;
};

} // namespace

// differ_job [counts] STREAM ADDRESS STOP_FILE
int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    const bool counts = argc == 5 && std::strcmp(argv[1], "counts") == 0;
    if (argc != 4 && !counts)
        fail("usage: differ_job [counts] STREAM ADDRESS STOP_FILE");
    char** const words = argv + argc - 3;
    program(words[1], words[0], !counts).run(words[2]);
    return 0;
}
