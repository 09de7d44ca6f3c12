// SPDX-License-Identifier: GPL-2.0-or-later
// kagemusha-gpus: prints the host's GPUs, as a table or as JSON. A process of its own, because vendors'
// OpenCL drivers are what crashes most.
#include <cstdio>
#include <cstring>

#include "gpu/gpus.hpp"

int main(int argc, char** argv) {
    const bool json = argc == 2 && std::strcmp(argv[1], "--json") == 0;
    if (argc > 1 && !json) {
        std::fprintf(stderr, "usage: kagemusha-gpus [--json]\n");
        return 2;
    }
    const kagemusha::gpu::gpu_list list = kagemusha::gpu::list_gpus("opencl");
    std::fputs((json ? gpu_json(list) : gpu_table(list)).c_str(),
               json || !list.gpus.empty() ? stdout : stderr);
    return list.gpus.empty() ? 1 : 0;
}
