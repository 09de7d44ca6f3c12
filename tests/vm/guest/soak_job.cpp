// SPDX-License-Identifier: GPL-2.0-or-later
//
// A guest program for the soak (../soak/): computes on the GPU in rounds, and tells a peer in the network
// what came out.
//
// Each round takes random bits and changes numbers on the GPU with them, so that a command that is lost, done
// twice or done on other memory leaves other numbers for ever. All of them are read and compared with what
// the CPU has counted. Then a statement is made: its number, two of the numbers on the GPU before and after,
// and the random bits. The peer can count it again (../soak/ledger.py has the same formulas), and a round
// that is made a second time, by a VM that was set back, says something else. Packets get lost: the peer may
// ask for a statement again. The console, which nobody holds back, gets a line for each round.
#include "statements.hpp"

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

constexpr std::uint32_t factor = 1664525;
const char* source = R"(
kernel void rounds(global uint* values, uint add, uint times)
{
    uint x = values[get_global_id(0)];
    for (uint i = 0; i < times; ++i)
        x = x * 1664525u + add;
    values[get_global_id(0)] = x;
}
kernel void take(global uint* values, global const uint* input)
{
    size_t i = get_global_id(0);
    values[i] = values[i] * 1664525u + input[i];
}
)";

// The numbers on the GPU, and the same on the CPU. What changes them is the programs' matter.
class work {
public:
    explicit work(std::size_t count) : expected_(count), got_(count) {
        cl_int error;
        cl_platform_id platform;
        cl_device_id device;
        need(clGetPlatformIDs(1, &platform, nullptr), "clGetPlatformIDs");
        need(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, nullptr), "clGetDeviceIDs");
        context_ = clCreateContext(nullptr, 1, &device, nullptr, nullptr, &error);
        need(error, "clCreateContext");
        for (auto& queue : queues_) {
            queue = clCreateCommandQueueWithProperties(context_, device, nullptr, &error);
            need(error, "clCreateCommandQueueWithProperties");
        }
        cl_program program = clCreateProgramWithSource(context_, 1, &source, nullptr, &error);
        need(error, "clCreateProgramWithSource");
        need(clBuildProgram(program, 1, &device, "", nullptr, nullptr), "clBuildProgram");
        rounds_ = clCreateKernel(program, "rounds", &error);
        need(error, "rounds");
        take_ = clCreateKernel(program, "take", &error);
        need(error, "take");
        for (std::size_t i = 0; i < count; ++i)
            expected_[i] = static_cast<cl_uint>(i);
        values_ = clCreateBuffer(context_, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes(),
                                 expected_.data(), &error);
        need(error, "clCreateBuffer");
        argument(rounds_, 0, values_);
        argument(take_, 0, values_);
    }
    virtual ~work() = default;

    virtual void round(std::uint64_t input) = 0; // enqueues it, and does the same to expected_

    void check() {
        need(clEnqueueReadBuffer(queues_[0], values_, CL_TRUE, 0, bytes(), got_.data(), 0, nullptr, nullptr),
             "read");
        for (std::size_t i = 0; i < got_.size(); ++i) {
            if (got_[i] != expected_[i]) {
                std::printf("element %zu of %zu is %08x and not %08x\n", i, got_.size(), got_[i],
                            expected_[i]);
                fail("a wrong value");
            }
        }
    }
    // Of what is on the GPU: the first and the last one.
    std::uint64_t result() const { return std::uint64_t{got_.front()} << 32 | got_.back(); }

protected:
    std::size_t count() const { return expected_.size(); }
    std::size_t bytes() const { return count() * sizeof(cl_uint); }
    void launch(cl_kernel kernel, cl_command_queue queue, const cl_event* after, cl_event* done) {
        const std::size_t size = count();
        need(clEnqueueNDRangeKernel(queue, kernel, 1, nullptr, &size, nullptr, after ? 1 : 0, after, done),
             "launch");
    }

    cl_context context_{};
    std::array<cl_command_queue, 2> queues_{};
    cl_kernel rounds_{}, take_{};
    cl_mem values_{};
    std::vector<cl_uint> expected_, got_;
};

// One launch of some milliseconds.
class compute final : public work {
public:
    compute() : work(256) {
        for (cl_uint i = 0; i < times; ++i) {
            add_factor_ = add_factor_ * factor + 1;
            power_ *= factor;
        }
        argument(rounds_, 2, times);
    }
    void round(std::uint64_t input) override {
        const auto add = static_cast<cl_uint>(input);
        argument(rounds_, 1, add);
        launch(rounds_, queues_[0], nullptr, nullptr);
        for (auto& value : expected_)
            value = value * power_ + add * add_factor_;
    }

private:
    static constexpr cl_uint times = 4096;
    cl_uint power_ = 1, add_factor_ = 0;
};

// New content for a buffer, all of it, then a launch that reads it.
class transfers final : public work {
public:
    transfers() : work(128 * 1024), data_(count()) {
        cl_int error;
        input_ = clCreateBuffer(context_, CL_MEM_READ_ONLY, bytes(), nullptr, &error);
        need(error, "clCreateBuffer");
        argument(take_, 1, input_);
    }
    void round(std::uint64_t input) override {
        for (std::size_t i = 0; i < count(); ++i) {
            data_[i] = static_cast<cl_uint>(input + i);
            expected_[i] = expected_[i] * factor + data_[i];
        }
        need(
            clEnqueueWriteBuffer(queues_[0], input_, CL_FALSE, 0, bytes(), data_.data(), 0, nullptr, nullptr),
            "write");
        launch(take_, queues_[0], nullptr, nullptr);
    }

private:
    cl_mem input_{};
    std::vector<cl_uint> data_;
};

// Many small launches on two queues, each waiting for the one before.
class commands final : public work {
public:
    commands() : work(64) { argument(rounds_, 2, cl_uint{1}); }
    void round(std::uint64_t input) override {
        std::array<cl_event, 64> done{};
        for (cl_uint i = 0; i < done.size(); ++i) {
            const auto add = static_cast<cl_uint>(input + i);
            argument(rounds_, 1, add);
            launch(rounds_, queues_[(i + 1) % 2], i ? &done[i - 1] : nullptr, &done[i]);
            need(clFlush(queues_[(i + 1) % 2]), "flush");
            for (auto& value : expected_)
                value = value * factor + add;
        }
        // The last one was on the queue that the result is read on.
        for (cl_event event : done)
            need(clReleaseEvent(event), "release");
    }
};

// Two buffers that stay mapped: one is stored into while a launch reads the other.
class mapped final : public work {
public:
    mapped() : work(16 * 1024) {
        for (std::size_t i = 0; i < 2; ++i) {
            cl_int error;
            input_[i] =
                clCreateBuffer(context_, CL_MEM_READ_ONLY | CL_MEM_ALLOC_HOST_PTR, bytes(), nullptr, &error);
            need(error, "clCreateBuffer");
            view_[i] = static_cast<cl_uint*>(clEnqueueMapBuffer(queues_[0], input_[i], CL_TRUE,
                                                                CL_MAP_WRITE_INVALIDATE_REGION, 0, bytes(), 0,
                                                                nullptr, nullptr, &error));
            need(error, "map");
            std::memset(view_[i], 0, bytes());
            stored_[i].resize(count());
        }
    }
    void round(std::uint64_t input) override {
        if (done_[side_]) { // what read this one
            need(clWaitForEvents(1, &done_[side_]), "wait");
            need(clReleaseEvent(done_[side_]), "release");
        }
        auto random = static_cast<cl_uint>(input >> 16);
        for (int i = 0; i < 40; ++i) {
            random = random * factor + 1013904223u;
            store((random >> 8) % count(), random);
        }
        store(0, static_cast<cl_uint>(input));
        store(count() - 1, static_cast<cl_uint>(input >> 32));
        for (std::size_t i = 0; i < count(); ++i)
            expected_[i] = expected_[i] * factor + stored_[side_][i];
        argument(take_, 1, input_[side_]);
        launch(take_, queues_[0], nullptr, &done_[side_]);
        need(clFlush(queues_[0]), "flush");
        side_ = 1 - side_;
    }

private:
    void store(std::size_t index, cl_uint value) { view_[side_][index] = stored_[side_][index] = value; }
    std::array<cl_mem, 2> input_{};
    std::array<cl_uint*, 2> view_{};
    std::array<std::vector<cl_uint>, 2> stored_; // what must be in the views
    std::array<cl_event, 2> done_{};
    std::size_t side_ = 0;
};

void run(work& w, wire& peer, const char* stream, const char* stop_file) {
    using clock = std::chrono::steady_clock;
    std::uint64_t number = 0;
    w.check();
    auto before = w.result();
    while (::access(stop_file, F_OK) != 0) {
        const auto begin = clock::now();
        const std::uint64_t input = random_number();
        w.round(input);
        w.check();
        statement made{{}, ++number, before, w.result(), input};
        before = made.after;
        std::printf("made %llu %016llx in stream %s\n", static_cast<unsigned long long>(number),
                    static_cast<unsigned long long>(made.after), stream);
        peer.say(made);
        // A busy machine is the test's own doing: about half of the time is left to others.
        std::this_thread::sleep_for(
            std::min<clock::duration>(clock::now() - begin, std::chrono::milliseconds(50)));
    }
    std::printf("%llu rounds are right\n", static_cast<unsigned long long>(number));
}

} // namespace

// soak_job compute|transfers|commands|mapped STREAM ADDRESS STOP_FILE
int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    if (argc != 5)
        fail("usage: soak_job compute|transfers|commands|mapped STREAM ADDRESS STOP_FILE");
    const std::string what = argv[1];
    wire peer(argv[3], static_cast<std::uint16_t>(std::atoi(argv[2])));
    const auto start = [&](auto&& w) { run(w, peer, argv[2], argv[4]); };
    if (what == "compute")
        start(compute());
    else if (what == "transfers")
        start(transfers());
    else if (what == "commands")
        start(commands());
    else if (what == "mapped")
        start(mapped());
    else
        fail("no such program");
    return 0;
}
