// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_api: see cuda_api.hpp.
#include "gpu/cuda/cuda_api.hpp"

#include <dlfcn.h>

#include <map>
#include <mutex>

#include "proto/abi/vgpu_cuda.h"

namespace kagemusha::gpu {

namespace {

const cuda_api* load(const std::string& path, std::string& error) {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        error = "the CUDA driver library " + path +
                " cannot be opened: install NVIDIA's driver (Debian: libcuda1) " +
                "or name another library with the option driver=PATH";
        return nullptr;
    }
    static std::map<std::string, cuda_api> loaded; // by path; get() holds the lock
    cuda_api api{};
    const char* missing = nullptr;
    const auto find = [&]<class Function>(Function& function, const char* name) {
        function = reinterpret_cast<Function>(dlsym(library, name));
        if (!function && !missing)
            missing = name;
    };
#define KAGEMUSHA_CUDA_FIND(name) find(api.name, #name);
    KAGEMUSHA_CUDA_FUNCTIONS(KAGEMUSHA_CUDA_FIND)
#undef KAGEMUSHA_CUDA_FIND
    if (missing) {
        error = "the CUDA driver library " + path + " has no " + missing +
                ": it is older than CUDA 12.4; install a newer driver";
        dlclose(library);
        return nullptr;
    }
    if (const CUresult result = api.cuInit(0); result != CUDA_SUCCESS) {
        const char* name = nullptr;
        api.cuGetErrorName(result, &name);
        error = "the CUDA driver library " + path + " does not start: " + (name ? name : "an unknown error");
        return nullptr; // stays open: it may have started threads
    }
    return &loaded.emplace(path, api).first->second;
}

} // namespace

const cuda_api* cuda_api::get(const std::string& path, std::string& error) {
    static std::mutex mutex;
    static std::map<std::string, const cuda_api*> known;
    const std::lock_guard held(mutex);
    const cuda_api*& api = known[path];
    if (!api)
        api = load(path, error);
    return api;
}

std::int32_t cuda_error(CUresult result) {
    return result == CUDA_SUCCESS ? 0 : VGPU_CUDA_ERROR_BASE - static_cast<std::int32_t>(result);
}

} // namespace kagemusha::gpu
