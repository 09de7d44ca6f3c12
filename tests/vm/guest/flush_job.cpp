// SPDX-License-Identifier: GPL-2.0-or-later
//
// A guest program for a VM that loses its host again and again (../test_flush.py). It believes what an event
// tells it while the rest of the same flush is still under way.
//
// A round is one flush: a kernel, a first transfer into the program's memory, a kernel that takes long,
// another kernel, and a second transfer. The program waits for the first transfer's event only, tells the
// peer what it found, and looks at that memory for a while: every word must be what the CPU has counted, and
// stay so. Then the same for the second one. Rounds differ in
//   how a transfer gets there   reads into the program's own memory (`reads`), into a mapping from before
//                               (`window`), new mappings (`maps`), reads of an image (`image`)
//   what it waits for           nothing, or a user event that the program sets later: the first transfer's or
//                               what comes behind it
//   who else writes             nobody, or the program stores into the first transfer's memory as soon as it
//                               has it; then these words must stay, and where the memory is a mapping, be on
//                               the GPU
#include "statements.hpp"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

using std::chrono::milliseconds;

constexpr cl_uint factor = 1664525; // as in ../soak/ledger.py
constexpr std::size_t count = 16 * 1024, bytes = count * sizeof(cl_uint), image_side = 64;
constexpr std::size_t own_stride = 64,
                      own_first = 5;        // the program's own words: neither the first nor the last
constexpr cl_uint long_rounds = 60'000'000; // about 80 ms

const char* source = R"(
kernel void advance(global uint* values, uint add)
{
    size_t i = get_global_id(0);
    values[i] = values[i] * 1664525u + add + (uint)i;
}
)";

class program {
public:
    program(const char* address, const char* stream)
        : stream_(stream), wire_(address, static_cast<std::uint16_t>(std::atoi(stream))) {
        advance_ = gpu_.kernel(gpu_.build(source), "advance");
        busy_ = gpu_.kernel(gpu_.build(busy_source), "busy");
        values_ = gpu_.buffer(bytes);
        scratch_ = gpu_.buffer(sizeof(cl_uint));
        argument(advance_, 0, values_);
        argument(busy_, 0, scratch_);
        argument(busy_, 1, long_rounds);
        cl_int error;
        window_ = mappable(2 * bytes);
        for (auto& target : mapped_)
            target = mappable(bytes);
        view_ =
            static_cast<cl_uint*>(clEnqueueMapBuffer(gpu_.queue, window_, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE,
                                                     0, 2 * bytes, 0, nullptr, nullptr, &error));
        need(error, "map");
        const cl_image_format format{CL_RGBA, CL_UNSIGNED_INT32};
        cl_image_desc shape{};
        shape.image_type = CL_MEM_OBJECT_IMAGE2D;
        shape.image_width = shape.image_height = image_side;
        image_ = clCreateImage(gpu_.context, CL_MEM_READ_WRITE, &format, &shape, nullptr, &error);
        need(error, "clCreateImage");
        static_assert(image_side * image_side * 4 == count);
        for (std::size_t i = 0; i < count; ++i)
            expected_[i] = static_cast<cl_uint>(i);
        need(clEnqueueWriteBuffer(gpu_.queue, values_, CL_TRUE, 0, bytes, expected_.data(), 0, nullptr,
                                  nullptr),
             "write");
        said_ = ends_of(expected_.data());
    }

    void run(const char* stop_file) {
        std::uint64_t rounds = 0;
        for (auto turn = std::strtoull(stream_, nullptr, 10) * 6; ::access(stop_file, F_OK) != 0;
             ++turn, ++rounds)
            round(static_cast<way>(turn % 4), static_cast<gate>(turn / 4 % 3), turn / 12 % 2 != 0);
        std::printf("%llu rounds are right\n", static_cast<unsigned long long>(rounds));
    }

private:
    enum class way { reads, window, maps, image };
    enum class gate { none, first, rest };

    cl_mem mappable(std::size_t size) const {
        cl_int error;
        cl_mem made =
            clCreateBuffer(gpu_.context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, size, nullptr, &error);
        need(error, "clCreateBuffer");
        return made;
    }

    void advance(cl_uint add) const {
        argument(advance_, 1, add);
        need(clEnqueueNDRangeKernel(gpu_.queue, advance_, 1, nullptr, &count, nullptr, 0, nullptr, nullptr),
             "launch");
    }

    // Enqueues what brings the values into the program's memory, and says where they will be.
    cl_uint* transfer(way how, int which, const cl_event* wait_list, cl_event* done) {
        const cl_uint waits = wait_list ? 1 : 0;
        const auto half = static_cast<std::size_t>(which);
        const std::size_t origin[3]{}, region[3]{image_side, image_side, 1};
        cl_uint* where = own_[which].data();
        cl_int error = CL_SUCCESS;
        switch (how) {
        case way::window:
            where = view_ + half * count;
            [[fallthrough]];
        case way::reads:
            error =
                clEnqueueReadBuffer(gpu_.queue, values_, CL_FALSE, 0, bytes, where, waits, wait_list, done);
            break;
        case way::maps:
            need(clEnqueueCopyBuffer(gpu_.queue, values_, mapped_[half], 0, 0, bytes, waits, wait_list,
                                     nullptr),
                 "copy");
            where = map(mapped_[half], CL_FALSE, bytes, done);
            break;
        case way::image:
            need(clEnqueueCopyBufferToImage(gpu_.queue, values_, image_, 0, origin, region, waits, wait_list,
                                            nullptr),
                 "copy to the image");
            error = clEnqueueReadImage(gpu_.queue, image_, CL_FALSE, origin, region, 0, 0, where, 0, nullptr,
                                       done);
            break;
        }
        need(error, "transfer");
        return where;
    }

    void round(way how, gate gated, bool own_stores) {
        const std::uint64_t inputs[2]{random_number(), random_number()};
        cl_int error;
        cl_event gate_event = gated == gate::none ? nullptr : clCreateUserEvent(gpu_.context, &error);
        cl_event done[2]{};
        const cl_event* const waits_first = gated == gate::first ? &gate_event : nullptr;
        const cl_event* const waits_rest = gated == gate::rest ? &gate_event : nullptr;
        advance(static_cast<cl_uint>(inputs[0]));
        cl_uint* const first = transfer(how, 0, waits_first, &done[0]);
        const std::size_t one = 1;
        need(clEnqueueNDRangeKernel(gpu_.queue, busy_, 1, nullptr, &one, nullptr, waits_rest ? 1 : 0,
                                    waits_rest, nullptr),
             "launch");
        advance(static_cast<cl_uint>(inputs[1]));
        cl_uint* const second = transfer(how, 1, nullptr, &done[1]);
        need(clFlush(gpu_.queue), "flush");
        if (gated == gate::first) {
            std::this_thread::sleep_for(milliseconds(random_number() % 30));
            need(clSetUserEventStatus(gate_event, CL_COMPLETE), "clSetUserEventStatus");
        }
        name_ = std::string(name_of(how)) +
                (gated == gate::none    ? ""
                 : gated == gate::first ? ", the first part waits"
                                        : ", the rest waits") +
                (own_stores ? ", own stores" : "");

        need(clWaitForEvents(1, &done[0]), "wait");
        count_on(inputs[0]);
        auto present = expected_; // of the memory of the first transfer, with our own words
        check(first, present, "when its event was complete");
        tell(first, inputs[0]);
        if (own_stores)
            for (std::size_t i = own_first; i < count; i += own_stride)
                first[i] = present[i] = static_cast<cl_uint>(random_number());
        const auto until = clock_type::now() + milliseconds(random_number() % 150);
        do {
            check(first, present, "later");
            wire_.answer();
            std::this_thread::sleep_for(milliseconds(4));
        } while (clock_type::now() < until);

        if (gated == gate::rest)
            need(clSetUserEventStatus(gate_event, CL_COMPLETE), "clSetUserEventStatus");
        need(clWaitForEvents(1, &done[1]), "wait");
        count_on(inputs[1]);
        check(second, expected_, "of the second transfer");
        check(first, present, "of the first transfer after the second one");
        on_gpu(how, first, second, present);
        tell(expected_.data(), inputs[1]);
        need(clReleaseEvent(done[0]), "release");
        need(clReleaseEvent(done[1]), "release");
        if (gate_event)
            need(clReleaseEvent(gate_event), "release");
    }

    // What came into a mapping is in its buffer when that is unmapped: the transfer, and our own words.
    void on_gpu(way how, cl_uint* first, cl_uint* second, const std::vector<cl_uint>& present) {
        if (how == way::window) {
            unmap(window_, view_);
            compare(window_, 0, present);
            compare(window_, bytes, expected_);
            view_ = map(window_, CL_TRUE, 2 * bytes, nullptr);
        } else if (how == way::maps) {
            unmap(mapped_[0], first);
            unmap(mapped_[1], second);
            compare(mapped_[0], 0, present);
            compare(mapped_[1], 0, expected_);
        }
    }
    cl_uint* map(cl_mem of, cl_bool waits, std::size_t size, cl_event* done) const {
        cl_int error;
        void* const view = clEnqueueMapBuffer(gpu_.queue, of, waits, CL_MAP_READ | CL_MAP_WRITE, 0, size, 0,
                                              nullptr, done, &error);
        need(error, "map");
        return static_cast<cl_uint*>(view);
    }
    void unmap(cl_mem of, cl_uint* view) const {
        need(clEnqueueUnmapMemObject(gpu_.queue, of, view, 0, nullptr, nullptr), "unmap");
    }
    void compare(cl_mem of, std::size_t offset, const std::vector<cl_uint>& should) {
        need(clEnqueueReadBuffer(gpu_.queue, of, CL_TRUE, offset, bytes, got_.data(), 0, nullptr, nullptr),
             "read");
        check(got_.data(), should, "on the GPU");
    }

    void count_on(std::uint64_t input) {
        for (std::size_t i = 0; i < count; ++i)
            expected_[i] = expected_[i] * factor + static_cast<cl_uint>(input) + static_cast<cl_uint>(i);
    }

    void check(const cl_uint* have, const std::vector<cl_uint>& should, const char* when) const {
        if (std::memcmp(have, should.data(), bytes) == 0)
            return;
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < count; ++i)
            if (const cl_uint word = have[i]; word != should[i] && wrong++ < 4)
                std::printf("WRONG word %zu: %08x, not %08x\n", i, word, should[i]);
        std::printf("WRONG %zu of %zu words in stream %s, %s, %s; statement %llu\n", wrong, count, stream_,
                    name_.c_str(), when, static_cast<unsigned long long>(number_));
        fail("wrong words");
    }

    // What the program found in its memory, and not what it should have found.
    void tell(const cl_uint* values, std::uint64_t input) {
        const statement made{{}, ++number_, said_, ends_of(values), input};
        said_ = made.after;
        std::printf("made %llu %016llx in stream %s\n", static_cast<unsigned long long>(number_),
                    static_cast<unsigned long long>(made.after), stream_);
        wire_.say(made);
    }

    static std::uint64_t ends_of(const cl_uint* values) {
        return std::uint64_t{values[0]} << 32 | values[count - 1];
    }
    static const char* name_of(way how) {
        static constexpr const char* names[] = {"reads", "window", "maps", "image"};
        return names[static_cast<int>(how)];
    }

    gpu gpu_;
    const char* stream_;
    wire wire_;
    cl_kernel advance_{}, busy_{};
    cl_mem values_{}, scratch_{}, window_{}, mapped_[2]{}, image_{};
    cl_uint* view_ = nullptr;
    std::vector<cl_uint> expected_ = std::vector<cl_uint>(count), got_ = expected_, own_[2]{got_, got_};
    std::uint64_t number_ = 0, said_ = 0;
    std::string name_;
};

} // namespace

// flush_job STREAM ADDRESS STOP_FILE
int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    if (argc != 4)
        fail("usage: flush_job STREAM ADDRESS STOP_FILE");
    program(argv[2], argv[1]).run(argv[3]);
    return 0;
}
