// SPDX-License-Identifier: GPL-2.0-or-later
// kagemusha-gpus: prints the host's GPUs, or the one that a selector names, as a table or as JSON. A process
// of its own, because vendors' OpenCL drivers are what crashes most.
#include <cstdio>
#include <cstring>

#include "gpu/gpus.hpp"

int main(int argc, char** argv) {
    const bool json = argc > 1 && std::strcmp(argv[1], "--json") == 0;
    const int first = json ? 2 : 1;
    if (argc > first + 1 || (argc > first && argv[first][0] == '-')) {
        std::fprintf(stderr, "usage: kagemusha-gpus [--json] [GPU]\n");
        return 2;
    }
    kagemusha::gpu::gpu_list list = kagemusha::gpu::list_gpus("opencl");
    if (argc > first)
        list = choose_gpu(list, argv[first]);
    std::fputs((json ? gpu_json(list) : gpu_table(list)).c_str(),
               json || !list.gpus.empty() ? stdout : stderr);
    return list.gpus.empty() ? 1 : 0;
}
