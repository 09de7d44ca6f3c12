// SPDX-License-Identifier: GPL-2.0-or-later
// kagemusha_cuda_check [LIBRARY [PART…]]: see check.hpp. Without a library: libcuda.so.1.
#include "check.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

namespace check {

api cu;
int failures = 0;

static bool load(const char* path) {
    cu.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!cu.library) {
        std::printf("%s\n", dlerror());
        return false;
    }
    bool all = true;
    const auto find = [&]<class Function>(Function& function, const char* name) {
        function = reinterpret_cast<Function>(dlsym(cu.library, name));
        if (!function) {
            std::printf("%s has no %s\n", path, name);
            all = false;
        }
    };
#define CHECK_FIND(name) find(cu.name, #name);
    CHECK_FUNCTIONS(CHECK_FIND)
#undef CHECK_FIND
    return all;
}

static bool has_graphs() {
    bool all = true;
    const auto find = [&]<class Function>(Function& function, const char* name) {
        function = reinterpret_cast<Function>(dlsym(cu.library, name));
        all = all && function;
    };
#define CHECK_FIND(name) find(cu.name, #name);
    CHECK_GRAPH_FUNCTIONS(CHECK_FIND)
#undef CHECK_FIND
    return all;
}

struct check_part {
    const char* name;
    void (*run)();
};
constexpr check_part faults[] = {{"assert", fault_assert},
                                 {"trap", fault_trap},
                                 {"address", fault_address},
                                 {"graph-abuse", graph_abuse},
                                 {"exit", leaves_everything}};

static bool run(const check_part& part) {
    const int before = failures;
    if (part.run == graphs || part.run == graph_nodes || part.run == graph_objects || part.run == graph_abuse)
        EXPECT(has_graphs());
    if (failures == before)
        part.run();
    std::printf("%-11s %s\n", part.name, failures == before ? "ok" : "FAILED");
    return failures == before;
}

} // namespace check

int main(int count, char** arguments) {
    using namespace check;
    std::atexit(at_exit);
    if (!load(count > 1 ? arguments[1] : "libcuda.so.1"))
        return 1;
    int number = 0;
    EXPECT_RESULT(cuDeviceGetCount(&number), CUDA_ERROR_NOT_INITIALIZED);
    NEED(cuInit(0));
    CUcontext primary = nullptr;
    NEED(cuDevicePrimaryCtxRetain(&primary, 0));
    NEED(cuCtxSetCurrent(primary));
    if (count == 3)
        for (const check_part& fault : faults)
            if (std::strcmp(arguments[2], fault.name) == 0)
                return run(fault) ? 0 : 1;
    const check_part parts[] = {{"devices", devices},
                                {"memory", memory},
                                {"streams", streams},
                                {"errors", errors},
                                {"names", names},
                                {"kernels", kernels},
                                {"boxes", boxes},
                                {"arrays", arrays},
                                {"links", links},
                                {"prints", prints},
                                {"launches", launches},
                                {"more-memory", more_memory},
                                {"order", order},
                                {"graphs", graphs},
                                {"graph-nodes", graph_nodes},
                                {"graph-objects", graph_objects},
                                {"tensor-maps", tensor_maps},
                                {"tables", tables},
                                {"pinned", pinned}};
    int ran = 0;
    for (const check_part& part : parts) {
        bool wanted = count < 3;
        for (int i = 2; i < count; ++i)
            wanted = wanted || std::strcmp(arguments[i], part.name) == 0;
        if (!wanted)
            continue;
        run(part);
        ++ran;
    }
    NEED(cuDevicePrimaryCtxRelease_v2(0));
    return failures == 0 && ran > 0 ? 0 : 1;
}
