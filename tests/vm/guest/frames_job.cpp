// SPDX-License-Identifier: GPL-2.0-or-later
//
// frames_job FPS PATHS STOP-FILE: renders a frame every 1/FPS s (bench/frames/path_tracer.hpp) until the file is there,
// or, with 0 for FPS, each of its frames once. Prints the sums of its eight frames first, then, each second, how many were due
// and how many were missed. A frame whose sum is another one than at first ends it with FAILED.
#include "cl_gpu.hpp"
#include "frames/path_tracer.hpp"

#include <cinttypes>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace kagemusha;

constexpr std::uint64_t different = 8; // frames that it repeats

class renderer {
public:
    explicit renderer(std::uint32_t paths)
        : paths_(paths)
        , kernel_(gpu_.kernel(gpu_.build(frames::source), "k"))
        , image_(gpu_.buffer(frames::image_bytes))
        , pixels_(frames::pixels) {
        argument(kernel_, 0, image_);
    }
    // A sum of the frame's pixels.
    std::uint64_t render(std::uint64_t frame) {
        const cl_long which = frames::argument(frame % different, paths_);
        argument(kernel_, 1, which);
        const std::size_t all = frames::pixels, group = 64;
        need(clEnqueueNDRangeKernel(gpu_.queue, kernel_, 1, nullptr, &all, &group, 0, nullptr, nullptr),
             "launch");
        need(clEnqueueReadBuffer(gpu_.queue, image_, CL_TRUE, 0, frames::image_bytes, pixels_.data(), 0,
                                 nullptr, nullptr),
             "read");
        std::uint64_t sum = 0;
        for (const std::uint64_t pixel : pixels_)
            sum = (sum ^ pixel) * 0x100000001b3u;
        return sum;
    }

private:
    gpu gpu_;
    const std::uint32_t paths_;
    cl_kernel kernel_;
    cl_mem image_;
    std::vector<std::uint64_t> pixels_;
};

std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(clock_type::now().time_since_epoch()).count());
}

void show(renderer& one, double fps, const char* stop_file, const std::vector<std::uint64_t>& sums) {
    frames::pacer pace(now_ns(), static_cast<std::uint64_t>(1e9 / fps));
    auto next_line = clock_type::now();
    while (::access(stop_file, F_OK) != 0) {
        std::this_thread::sleep_until(clock_type::time_point(std::chrono::nanoseconds(pace.due_ns())));
        const std::uint64_t frame = pace.frame();
        if (one.render(frame) != sums[frame % different])
            fail("a frame is another one than at first");
        pace.shown(now_ns());
        if (clock_type::now() >= next_line) {
            std::printf("frames %" PRIu64 " rendered %" PRIu64 " missed %" PRIu64 "\n", pace.frames(),
                        pace.rendered(), pace.missed());
            std::fflush(stdout);
            next_line += std::chrono::seconds(1);
        }
    }
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 4) {
        std::fputs("usage: frames_job FPS PATHS STOP-FILE\n", stderr);
        return 2;
    }
    renderer one(static_cast<std::uint32_t>(std::strtoul(argv[2], nullptr, 10)));
    std::vector<std::uint64_t> sums;
    std::printf("sums");
    for (std::uint64_t frame = 0; frame < different; ++frame) {
        sums.push_back(one.render(frame));
        std::printf(" %016" PRIx64, sums.back());
    }
    std::printf("\n");
    std::fflush(stdout);
    if (const double fps = std::strtod(argv[1], nullptr); fps > 0)
        show(one, fps, argv[3], sums);
    return 0;
}
