// SPDX-License-Identifier: GPL-2.0-or-later
// opencl_api: see opencl_api.hpp.
#include "gpu/opencl/opencl_api.hpp"

#include <dlfcn.h>

namespace kagemusha::gpu {

namespace {

struct loaded {
    opencl_api api;
    std::string error;
};

loaded load() {
    loaded out;
    void* library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        out.error = "no OpenCL on this host: install an ICD loader and a driver "
                    "(Debian: apt install ocl-icd-libopencl1 pocl-opencl-icd)";
        return out;
    }
#define KAGEMUSHA_OPENCL_LOAD(name)                                                                          \
    out.api.name = reinterpret_cast<decltype(out.api.name)>(dlsym(library, #name));
#define KAGEMUSHA_OPENCL_CHECK(name)                                                                         \
    if (!out.api.name)                                                                                       \
        out.error =                                                                                          \
            "this host's libOpenCL.so.1 has no " #name                                                       \
            ": it is older than OpenCL 1.2; install a newer ICD loader (Debian: ocl-icd-libopencl1)";
    KAGEMUSHA_OPENCL_REQUIRED(KAGEMUSHA_OPENCL_LOAD)
    KAGEMUSHA_OPENCL_OPTIONAL(KAGEMUSHA_OPENCL_LOAD)
    KAGEMUSHA_OPENCL_REQUIRED(KAGEMUSHA_OPENCL_CHECK)
#undef KAGEMUSHA_OPENCL_CHECK
#undef KAGEMUSHA_OPENCL_LOAD
    return out;
}

} // namespace

const opencl_api* opencl_api::get(std::string& error) {
    static const loaded once = load();
    error = once.error;
    return error.empty() ? &once.api : nullptr;
}

} // namespace kagemusha::gpu
