// SPDX-License-Identifier: GPL-2.0-or-later
// cuGetProcAddress: the function behind a name without its version. Names that CUDA gave a new form have it
// here; the forms with a per-thread stream are the same, because every call completes before it returns.
#include "api.hpp"

#include <dlfcn.h>

#include <string>

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int cuda_version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
    if (symbol == nullptr || function == nullptr || cuda_version < 0 || flags > 2) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *function = nullptr;
    // The library that this function lies in, wherever it was loaded from and however.
    Dl_info here;
    void* self = nullptr;
    if (dladdr(reinterpret_cast<void*>(&cuInit), &here) != 0) {
        self = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }
    const std::string name(symbol);
    for (const char* version : {"_v2", ""}) {
        const std::string full = name + version;
        if (self != nullptr && *function == nullptr && name.starts_with("cu")) {
            *function = dlsym(self, full.c_str());
        }
    }
    if (self != nullptr) {
        dlclose(self);
    }
    if (status != nullptr) {
        *status = *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char* symbol, void** function, int cuda_version, cuuint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, cuda_version, flags, nullptr);
}
