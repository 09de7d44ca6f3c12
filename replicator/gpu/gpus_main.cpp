// SPDX-License-Identifier: GPL-2.0-or-later
// kagemusha-gpus: prints the host's GPUs, or the one that a selector names, as a table or as JSON. A process
// of its own, because vendors' OpenCL drivers are what crashes most.
#include <cstdio>
#include <cstring>
#include <string>

#include "gpu/gpus.hpp"
#include "gpu/own_selector.hpp"

int main(int argc, char** argv) {
    bool json = false;
    std::string backend = "opencl", options;
    int first = 1;
    for (; first < argc && argv[first][0] == '-'; ++first) {
        const bool has_value = first + 1 < argc;
        if (std::strcmp(argv[first], "--json") == 0)
            json = true;
        else if (std::strcmp(argv[first], "--backend") == 0 && has_value)
            backend = argv[++first];
        else if (std::strcmp(argv[first], "--options") == 0 && has_value)
            options = argv[++first];
        else
            first = argc + 1;
    }
    if (argc > first + 1 || first > argc) {
        std::fprintf(stderr,
                     "usage: kagemusha-gpus [--json] [--backend NAME] [--options KEY=VALUE,…] [GPU]\n");
        return 2;
    }
    if (argc > first)
        kagemusha::gpu::see_only(argv[first]);
    kagemusha::gpu::gpu_list list = kagemusha::gpu::list_gpus(backend, options);
    if (argc > first)
        list = choose_gpu(list, argv[first]);
    std::fputs((json ? gpu_json(list) : gpu_table(list)).c_str(),
               json || !list.gpus.empty() ? stdout : stderr);
    return list.gpus.empty() ? 1 : 0;
}
