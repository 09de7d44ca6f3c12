// SPDX-License-Identifier: GPL-2.0-or-later
#include "peers/cuda_driver.hpp"

#include <dlfcn.h>

#include <cstring>

namespace kagemusha::bench::cuda {

namespace {

template <typename Function>
bool find(void* library, const char* name, Function& out, std::string& missing) {
    void* const found = dlsym(library, name);
    static_assert(sizeof found == sizeof out);
    std::memcpy(&out, &found, sizeof out); // POSIX: a function's address fits
    if (!found)
        missing = name;
    return found != nullptr;
}

} // namespace

std::string driver::load() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); // stays until the process ends
    if (!library) {
        const char* const why = dlerror();
        return std::string("there is no NVIDIA driver here: ") + (why ? why : "libcuda.so.1");
    }
    std::string missing;
    const bool all = find(library, "cuInit", init, missing) &&
                     find(library, "cuDriverGetVersion", version, missing) &&
                     find(library, "cuDeviceGet", device_get, missing) &&
                     find(library, "cuDeviceGetName", device_name, missing) &&
                     find(library, "cuDeviceGetUuid_v2", device_uuid, missing) &&
                     find(library, "cuDevicePrimaryCtxRetain", context_retain, missing) &&
                     find(library, "cuCtxSetCurrent", context_set, missing) &&
                     find(library, "cuMemAlloc_v2", allocate, missing) &&
                     find(library, "cuMemcpyHtoD_v2", to_device, missing) &&
                     find(library, "cuMemcpyDtoH_v2", to_host, missing) &&
                     find(library, "cuGetErrorName", error_name, missing) &&
                     find(library, "cuGetErrorString", error_text, missing) &&
                     find(library, "cuCheckpointProcessGetState", process_state, missing) &&
                     find(library, "cuCheckpointProcessLock", process_lock, missing) &&
                     find(library, "cuCheckpointProcessCheckpoint", process_checkpoint, missing) &&
                     find(library, "cuCheckpointProcessRestore", process_restore, missing) &&
                     find(library, "cuCheckpointProcessUnlock", process_unlock, missing);
    if (!all)
        return "NVIDIA's driver has no " + missing + ": it is older than 570";
    return "";
}

std::string driver::wrong(const char* what, result r) const {
    if (r == 0)
        return "";
    const char *name = nullptr, *text = nullptr;
    error_name(r, &name);
    error_text(r, &text);
    return std::string(what) + ": " + (name ? name : std::to_string(r).c_str()) + " (" + (text ? text : "?") +
           ")";
}

} // namespace kagemusha::bench::cuda
