// SPDX-License-Identifier: GPL-2.0-or-later
//
// Libraries: code that belongs to no context. It is loaded into each context that uses it, when it does; a kernel
// is a name in a library, and in a context a function.
#include "driver.hpp"
#include "image.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

namespace kagemusha::cuda {
namespace {

struct library;

struct kernel {
    library* of = nullptr;
    std::string name;
    std::map<CUfunction_attribute, int> attributes; // set for it, wherever it is loaded
};

struct library {
    std::string image; // ends with 0
    std::map<std::string, std::unique_ptr<kernel>> kernels;
    std::map<std::uint64_t, module*> loaded; // by the context's number
};

std::mutex libraries_mutex; // before context::mutex

// Its module in this context, loaded if need be. libraries_mutex is held.
CUresult module_in(library& of, context& where, module*& out) {
    out = nullptr;
    if (const auto found = of.loaded.find(where.number);
        found != of.loaded.end() && the_driver().modules.has(found->second)) {
        out = found->second;
        return CUDA_SUCCESS;
    }
    CUmodule made = nullptr;
    if (const CUresult error = cuModuleLoadData(&made, of.image.data()))
        return error;
    out = reinterpret_cast<module*>(made);
    of.loaded[where.number] = out;
    return CUDA_SUCCESS;
}

kernel& kernel_named(library& of, const std::string& name) {
    auto& made = of.kernels[name];
    if (!made) {
        made = std::make_unique<kernel>();
        made->of = &of;
        made->name = name;
        the_driver().kernels.add(made.get());
    }
    return *made;
}

CUresult function_in(kernel& of, context& where, function*& out) {
    module* in = nullptr;
    CUresult error = module_in(*of.of, where, in);
    if (!error)
        error = find_function(*in, of.name.c_str(), out);
    for (const auto& [attribute, value] : of.attributes)
        if (!error)
            error = cuFuncSetAttribute(reinterpret_cast<CUfunction>(out), attribute, value);
    return error;
}

// About a library, with its module in the current context.
template <class Body>
CUresult of_library(CUlibrary handle, Body&& body) noexcept {
    return in_context([&](context& where) {
        const std::lock_guard held(libraries_mutex);
        auto* const one = object_of<library>(the_driver().libraries, handle);
        if (!one)
            return CUDA_ERROR_INVALID_HANDLE;
        module* in = nullptr;
        const CUresult error = module_in(*one, where, in);
        return error ? error : body(*one, reinterpret_cast<CUmodule>(in));
    });
}

template <class Body>
CUresult of_kernel(CUkernel handle, Body&& body) noexcept {
    return guarded([&] {
        if (!the_driver().ready)
            return CUDA_ERROR_NOT_INITIALIZED;
        const std::lock_guard held(libraries_mutex);
        auto* const one = object_of<kernel>(the_driver().kernels, handle);
        return one ? body(*one) : CUDA_ERROR_INVALID_HANDLE;
    });
}

// The same with its function on a device: in the current context, if that is of it, else in its primary one.
template <class Body>
CUresult of_kernel_on(CUkernel handle, CUdevice number, Body&& body) noexcept {
    return of_kernel(handle, [&](kernel& one) {
        device* const gpu = device_of(number);
        if (!gpu)
            return CUDA_ERROR_INVALID_DEVICE;
        CUresult error = CUDA_SUCCESS;
        context* where = current(error);
        if (!where || where->gpu != gpu) {
            const std::lock_guard held(gpu->mutex);
            where = gpu->primary.get();
        }
        if (!where || !the_driver().contexts.has(where))
            return CUDA_ERROR_INVALID_CONTEXT;
        function* found = nullptr;
        error = function_in(one, *where, found);
        return error ? error : body(reinterpret_cast<CUfunction>(found));
    });
}

} // namespace

CUresult read_image(const char* path, std::string& image) {
    if (!path)
        return CUDA_ERROR_INVALID_VALUE;
    std::ifstream file(path, std::ios::binary);
    if (!file)
        return CUDA_ERROR_FILE_NOT_FOUND;
    image.assign(std::istreambuf_iterator<char>(file), {});
    if (image.empty() || image.size() > VGPU_MAX_PROGRAM_BYTES)
        return CUDA_ERROR_INVALID_IMAGE;
    // What an image says about its own length is believed elsewhere: a file that is cut off must not be.
    image.append(64, '\0');
    const auto bytes = image_at(image.data());
    return bytes && bytes->size() <= image.size() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

function* function_of(CUfunction handle, context& where, CUresult& error) {
    error = CUDA_SUCCESS;
    if (auto* const known = object_of<function>(the_driver().functions, handle)) [[likely]]
        return known;
    error = CUDA_ERROR_INVALID_HANDLE;
    if (!object_of<kernel>(the_driver().kernels, handle))
        return nullptr;
    const std::lock_guard held(libraries_mutex);
    auto* const one = object_of<kernel>(the_driver().kernels, handle);
    function* found = nullptr;
    if (one)
        error = function_in(*one, where, found);
    return found;
}

// Options of the compiler: as for modules. The image is always kept.
KAGEMUSHA_EXPORT CUresult cuLibraryLoadData(CUlibrary* handle, const void* image, CUjit_option*, void**,
                                            unsigned int, CUlibraryOption*, void**, unsigned int) {
    return guarded([&] {
        if (!the_driver().ready)
            return CUDA_ERROR_NOT_INITIALIZED;
        if (!handle || !image)
            return CUDA_ERROR_INVALID_VALUE;
        const auto bytes = image_at(image);
        if (!bytes)
            return CUDA_ERROR_INVALID_IMAGE;
        auto made = std::make_unique<library>();
        made->image.assign(reinterpret_cast<const char*>(bytes->data()), bytes->size());
        CUresult error = CUDA_SUCCESS;
        if (context* const where = current(error)) { // an image that is no good is known at once
            const std::lock_guard held(libraries_mutex);
            module* in = nullptr;
            if ((error = module_in(*made, *where, in)))
                return error;
        }
        the_driver().libraries.add(made.get());
        *handle = reinterpret_cast<CUlibrary>(made.release());
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary* handle, const char* path,
                                                CUjit_option* jit_options, void** jit_values,
                                                unsigned int jit_count, CUlibraryOption* options,
                                                void** values, unsigned int count) {
    return guarded([&] {
        std::string image;
        const CUresult error = read_image(path, image);
        return error ? error
                     : cuLibraryLoadData(handle, image.data(), jit_options, jit_values, jit_count, options,
                                         values, count);
    });
}

KAGEMUSHA_EXPORT CUresult cuLibraryUnload(CUlibrary handle) {
    return guarded([&] {
        const std::lock_guard held(libraries_mutex);
        auto* const dead = object_of<library>(the_driver().libraries, handle);
        if (!dead)
            return CUDA_ERROR_INVALID_HANDLE;
        the_driver().libraries.remove(dead);
        for (const auto& [name, one] : dead->kernels)
            the_driver().kernels.remove(one.get());
        for (const auto& [number, in] : dead->loaded)
            cuModuleUnload(reinterpret_cast<CUmodule>(in)); // refused where its context is gone
        delete dead;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuLibraryGetKernel(CUkernel* out, CUlibrary handle, const char* name) {
    return of_library(handle, [&](library& of, CUmodule in) {
        CUfunction found = nullptr;
        if (!out)
            return CUDA_ERROR_INVALID_VALUE;
        const CUresult error = cuModuleGetFunction(&found, in, name);
        if (!error)
            *out = reinterpret_cast<CUkernel>(&kernel_named(of, name));
        return error;
    });
}

KAGEMUSHA_EXPORT CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary handle) {
    return of_library(handle, [&](library&, CUmodule in) { return cuModuleGetFunctionCount(count, in); });
}

KAGEMUSHA_EXPORT CUresult cuLibraryEnumerateKernels(CUkernel* out, unsigned int room, CUlibrary handle) {
    return of_library(handle, [&](library& of, CUmodule in) {
        unsigned count = 0;
        CUresult error = out ? cuModuleGetFunctionCount(&count, in) : CUDA_ERROR_INVALID_VALUE;
        const auto& names = reinterpret_cast<module*>(in)->names;
        for (unsigned i = 0; !error && i < std::min(room, count); ++i)
            out[i] = reinterpret_cast<CUkernel>(&kernel_named(of, names[i]));
        return error;
    });
}

KAGEMUSHA_EXPORT CUresult cuLibraryGetModule(CUmodule* out, CUlibrary handle) {
    return of_library(handle, [&](library&, CUmodule in) {
        if (!out)
            return CUDA_ERROR_INVALID_VALUE;
        *out = in;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary handle,
                                             const char* name) {
    return of_library(handle,
                      [&](library&, CUmodule in) { return cuModuleGetGlobal_v2(address, bytes, in, name); });
}

KAGEMUSHA_EXPORT CUresult cuKernelGetFunction(CUfunction* out, CUkernel handle) {
    return in_context([&](context& where) {
        return of_kernel(handle, [&](kernel& one) {
            if (!out)
                return CUDA_ERROR_INVALID_VALUE;
            function* found = nullptr;
            const CUresult error = function_in(one, where, found);
            *out = reinterpret_cast<CUfunction>(found);
            return error;
        });
    });
}

KAGEMUSHA_ANSWERED CUresult cuKernelGetLibrary(CUlibrary* out, CUkernel handle) {
    return of_kernel(handle, [&](const kernel& one) {
        if (!out)
            return CUDA_ERROR_INVALID_VALUE;
        *out = reinterpret_cast<CUlibrary>(one.of);
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuKernelGetName(const char** out, CUkernel handle) {
    return of_kernel(handle, [&](const kernel& one) {
        if (!out)
            return CUDA_ERROR_INVALID_VALUE;
        *out = one.name.c_str();
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel handle,
                                               CUdevice number) {
    return of_kernel_on(handle, number,
                        [&](CUfunction in) { return cuFuncGetAttribute(value, attribute, in); });
}

KAGEMUSHA_EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle,
                                               CUdevice number) {
    const CUresult error =
        of_kernel_on(handle, number, [&](CUfunction in) { return cuFuncSetAttribute(in, attribute, value); });
    return error ? error : of_kernel(handle, [&](kernel& one) {
        one.attributes[attribute] = value;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache, CUdevice number) {
    return of_kernel_on(handle, number, [](CUfunction) { return CUDA_SUCCESS; }); // a hint
}

KAGEMUSHA_EXPORT CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t* offset, size_t* bytes) {
    CUresult error = CUDA_SUCCESS;
    const context* const where = current(error);
    return of_kernel_on(handle, where ? where->gpu->number : 0,
                        [&](CUfunction in) { return cuFuncGetParamInfo(in, index, offset, bytes); });
}

} // namespace kagemusha::cuda
