// SPDX-License-Identifier: GPL-2.0-or-later
// Libraries: code that belongs to no context and is loaded into each that uses it, when it does. A kernel
// is a name in a library; in a context it is a function.
#include "device.hpp"
#include "image.hpp"

#include <algorithm>

using namespace kagemusha::ptx_driver;

struct CUkern_st {
    CUlib_st* of = nullptr;
    std::string name;
    int dynamic_limit = -1; // set for it, wherever it is loaded; -1: not set
};
struct CUlib_st {
    std::vector<std::uint8_t> image; // as a link makes it, which may be one text
    std::map<std::string, std::unique_ptr<CUkern_st>> kernels;
    std::map<context*, CUmodule> loaded;
};

namespace {

std::mutex tables; // before the device's lock
// Never destroyed: programs call from exit handlers, too.
auto& libraries = *new std::map<CUlibrary, std::unique_ptr<CUlib_st>>;
auto& kernels = *new std::map<CUkernel, CUlib_st*>;

// The library's module in the calling thread's context, loaded there if need be.
CUresult module_of(CUlib_st& library, CUmodule& out) {
    context* where = nullptr;
    {
        const call c(call::needs::working_context);
        if (c.result != CUDA_SUCCESS)
            return c.result;
        where = c.c;
        const auto it = library.loaded.find(where);
        if (it != library.loaded.end() &&
            c.c->modules.contains(reinterpret_cast<loaded_module*>(it->second))) {
            out = it->second;
            return CUDA_SUCCESS;
        }
    }
    const CUresult r = cuModuleLoadData(&out, library.image.data());
    if (r == CUDA_SUCCESS)
        library.loaded[where] = out;
    return r;
}

CUkern_st* kernel_of(CUlib_st& library, const std::string& name) {
    auto& made = library.kernels[name];
    if (made == nullptr) {
        made = std::make_unique<CUkern_st>();
        made->of = &library;
        made->name = name;
        kernels[made.get()] = &library;
    }
    return made.get();
}

CUresult with_module(CUlibrary h, const auto& use) {
    const std::lock_guard locked(tables);
    if (!libraries.contains(h))
        return CUDA_ERROR_INVALID_HANDLE;
    CUmodule module = nullptr;
    const CUresult r = module_of(*h, module);
    return r == CUDA_SUCCESS ? use(*h, module) : r;
}

CUresult with_function(CUkernel h, const auto& use) {
    CUfunction function = nullptr;
    const CUresult r = cuKernelGetFunction(&function, h);
    return r == CUDA_SUCCESS ? use(function) : r;
}

} // namespace

namespace kagemusha::ptx_driver {

bool is_kernel(CUfunction h) {
    const std::lock_guard locked(tables);
    return kernels.contains(reinterpret_cast<CUkernel>(h));
}

} // namespace kagemusha::ptx_driver

CUresult cuLibraryLoadData(CUlibrary* out, const void* image, CUjit_option*, void**, unsigned int,
                           CUlibraryOption*, void**, unsigned int) {
    {
        const call c(call::needs::driver);
        if (c.result != CUDA_SUCCESS)
            return c.result;
    }
    if (out == nullptr || image == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    auto made = std::make_unique<CUlib_st>();
    std::vector<std::string> texts;
    if (const CUresult r = texts_of(image, unknown_length, texts); r != CUDA_SUCCESS)
        return r;
    made->image = linked_image(texts);
    const std::lock_guard locked(tables);
    CUlib_st* const library = made.get();
    libraries[library] = std::move(made);
    *out = library;
    return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary h) {
    const std::lock_guard locked(tables);
    const auto it = libraries.find(h);
    if (it == libraries.end())
        return CUDA_ERROR_INVALID_HANDLE;
    {
        const call c(call::needs::driver);
        for (const auto& [where, module] : h->loaded) {
            auto* const m = reinterpret_cast<loaded_module*>(module);
            if (c.d.contexts.contains(where) && where->modules.contains(m)) {
                for (CUdeviceptr v : m->variables)
                    device::one().give_back(v);
                where->modules.erase(m);
            }
        }
    }
    for (const auto& [name, k] : h->kernels)
        kernels.erase(k.get());
    libraries.erase(it);
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* out, CUlibrary h, const char* name) {
    if (out == nullptr || name == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    return with_module(h, [&](CUlib_st& library, CUmodule module) {
        CUfunction function = nullptr;
        const CUresult r = cuModuleGetFunction(&function, module, name);
        if (r == CUDA_SUCCESS)
            *out = kernel_of(library, name);
        return r;
    });
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary h) {
    return with_module(h,
                       [&](CUlib_st&, CUmodule module) { return cuModuleGetFunctionCount(count, module); });
}

CUresult cuLibraryEnumerateKernels(CUkernel* out, unsigned int room, CUlibrary h) {
    return with_module(h, [&](CUlib_st& library, CUmodule module) {
        std::vector<CUfunction> functions(room);
        unsigned int count = 0;
        CUresult r = cuModuleEnumerateFunctions(functions.data(), room, module);
        if (r == CUDA_SUCCESS)
            r = cuModuleGetFunctionCount(&count, module);
        for (unsigned int k = 0; r == CUDA_SUCCESS && out != nullptr && k < std::min(room, count); k++) {
            const char* name = nullptr;
            r = cuFuncGetName(&name, functions[k]);
            if (r == CUDA_SUCCESS)
                out[k] = kernel_of(library, name);
        }
        return r;
    });
}

CUresult cuLibraryGetModule(CUmodule* out, CUlibrary h) {
    if (out == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    return with_module(h, [&](CUlib_st&, CUmodule module) {
        *out = module;
        return CUDA_SUCCESS;
    });
}

CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary h, const char* name) {
    return with_module(
        h, [&](CUlib_st&, CUmodule module) { return cuModuleGetGlobal_v2(address, bytes, module, name); });
}

CUresult cuKernelGetFunction(CUfunction* out, CUkernel h) {
    const std::lock_guard locked(tables);
    if (out == nullptr || !kernels.contains(h))
        return out == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    CUmodule module = nullptr;
    CUresult r = module_of(*h->of, module);
    if (r == CUDA_SUCCESS)
        r = cuModuleGetFunction(out, module, h->name.c_str());
    if (r == CUDA_SUCCESS && h->dynamic_limit >= 0)
        r = cuFuncSetAttribute(*out, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, h->dynamic_limit);
    return r;
}

CUresult cuKernelGetLibrary(CUlibrary* out, CUkernel h) {
    const std::lock_guard locked(tables);
    if (out == nullptr || !kernels.contains(h))
        return out == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *out = h->of;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char** out, CUkernel h) {
    const std::lock_guard locked(tables);
    if (out == nullptr || !kernels.contains(h))
        return out == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *out = h->name.c_str();
    return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel h, CUdevice number) {
    if (number != 0)
        return CUDA_ERROR_INVALID_DEVICE;
    return with_function(h, [&](CUfunction f) { return cuFuncGetAttribute(value, attribute, f); });
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel h, CUdevice number) {
    if (number != 0)
        return CUDA_ERROR_INVALID_DEVICE;
    const CUresult r =
        with_function(h, [&](CUfunction f) { return cuFuncSetAttribute(f, attribute, value); });
    if (r == CUDA_SUCCESS && attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        const std::lock_guard locked(tables);
        h->dynamic_limit = value;
    }
    return r;
}

CUresult cuKernelSetCacheConfig(CUkernel h, CUfunc_cache, CUdevice number) {
    if (number != 0)
        return CUDA_ERROR_INVALID_DEVICE;
    return with_function(h, [](CUfunction) { return CUDA_SUCCESS; }); // a hint
}

CUresult cuKernelGetParamInfo(CUkernel h, size_t index, size_t* offset, size_t* bytes) {
    return with_function(h, [&](CUfunction f) { return cuFuncGetParamInfo(f, index, offset, bytes); });
}
