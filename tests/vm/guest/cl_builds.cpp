// SPDX-License-Identifier: GPL-2.0-or-later
#include <deque>
#include <string>
#include <vector>

#include "cl_gpu.hpp"
#include "cl_pulse.hpp"

namespace {

constexpr unsigned kernels = 2; // of each program

struct step {
    cl_uint factor, term;
};

// No two are alike, so no cache of a compiler has one before.
step step_of(unsigned program, unsigned kernel) {
    return {2 * (program * kernels + kernel) + 3, program * 7 + kernel + 1};
}

std::string source_of(unsigned program) {
    std::string text;
    for (unsigned k = 0; k < kernels; ++k) {
        const step s = step_of(program, k);
        text += "kernel void k" + std::to_string(k) + "(global uint* v) {\n" +
                "    uint x = v[get_global_id(0)];\n" + "    for (uint i = 0; i < 8; ++i) x = x * " +
                std::to_string(s.factor) + "u + " + std::to_string(s.term) +
                "u;\n    v[get_global_id(0)] = x;\n}\n";
    }
    return text;
}

} // namespace

void build_programs(double seconds, const char* stop_file, std::size_t live) {
    gpu g;
    const std::size_t count = 256;
    cl_mem values = g.buffer(count * sizeof(cl_uint));
    cl_uint value = 1; // of each element
    need(clEnqueueFillBuffer(g.queue, values, &value, sizeof value, 0, count * sizeof value, 0, nullptr,
                             nullptr),
         "fill");
    std::deque<cl_program> programs;
    std::vector<cl_uint> got(count);
    const auto end = clock_type::now() + std::chrono::duration<double>(seconds);
    unsigned built = 0;
    do {
        programs.push_back(g.build(source_of(built).c_str()));
        for (unsigned k = 0; k < kernels; ++k) {
            cl_kernel kernel = g.kernel(programs.back(), ("k" + std::to_string(k)).c_str());
            argument(kernel, 0, values);
            need(clEnqueueNDRangeKernel(g.queue, kernel, 1, nullptr, &count, nullptr, 0, nullptr, nullptr),
                 "launch");
            clReleaseKernel(kernel);
            const step s = step_of(built, k);
            for (unsigned i = 0; i < 8; ++i)
                value = value * s.factor + s.term;
        }
        need(clEnqueueReadBuffer(g.queue, values, CL_TRUE, 0, count * sizeof(cl_uint), got.data(), 0, nullptr,
                                 nullptr),
             "read");
        if (got != std::vector<cl_uint>(count, value))
            fail("a wrong value");
        if (++built == 1)
            std::printf("computing\n");
        if (programs.size() > live) {
            clReleaseProgram(programs.front());
            programs.pop_front();
        }
    } while (may_go_on(end, stop_file));
    std::printf("%u programs are right\n", built);
}
