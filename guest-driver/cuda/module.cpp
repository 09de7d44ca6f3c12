// SPDX-License-Identifier: GPL-2.0-or-later
//
// Modules, functions, launches. A function's parameters are asked once, with the function; a launch takes as
// many bytes for each as the host's driver said.
#include "driver.hpp"
#include "fat_binary.hpp"
#include "image.hpp"
#include "variables.hpp"

#include "guest-driver/opencl/query.hpp"

#include <algorithm>
#include <cstring>

namespace kagemusha::cuda {
namespace {

// What the host's driver knows about a function.
bool read_description(const std::vector<std::byte>& bytes, function& made) {
    vgpu_cuda_kernel known;
    if (bytes.size() < sizeof known)
        return false;
    std::memcpy(&known, bytes.data(), sizeof known);
    if (known.parameter_count > VGPU_CUDA_MAX_PARAMETERS ||
        bytes.size() != sizeof known + known.parameter_count * sizeof(vgpu_cuda_parameter))
        return false;
    std::copy(std::begin(known.attributes), std::end(known.attributes), made.attributes);
    made.parameters.resize(known.parameter_count);
    if (known.parameter_count != 0)
        std::memcpy(made.parameters.data(), bytes.data() + sizeof known, bytes.size() - sizeof known);
    constexpr std::uint32_t most = 64 << 10;
    for (const vgpu_cuda_parameter& one : made.parameters) {
        if (one.bytes == 0 || one.bytes > most || one.offset > most)
            return false;
        made.block_bytes = std::max<std::size_t>(made.block_bytes, one.offset + one.bytes);
    }
    return true;
}

} // namespace

CUresult find_function(module& from, const char* name, function*& found) {
    context& where = *from.owner;
    const std::lock_guard held(where.mutex);
    auto& known = from.functions[name];
    if (!known) {
        auto made = std::make_unique<function>();
        opencl::connection& link = where.native->link();
        made->owner = &from;
        made->name = name;
        made->id = link.new_id();
        auto command = opencl::make_command<vgpu_cmd_create_kernel>(VGPU_CMD_CREATE_KERNEL);
        command.id = made->id;
        command.program = from.native->id();
        command.name_bytes = static_cast<__u32>(made->name.size());
        const opencl::part text{name, made->name.size()};
        CUresult error = cuda_result(link.call(opencl::make_outgoing(command, {&text, 1})));
        if (error == CUDA_SUCCESS) {
            const opencl::answer told = opencl::ask(link, {VGPU_INFO_KERNEL, VGPU_CUDA_KERNEL, made->id});
            error = told.error != CL_SUCCESS              ? cuda_result(told.error)
                    : read_description(told.bytes, *made) ? CUDA_SUCCESS
                                                          : CUDA_ERROR_UNKNOWN;
            if (error)
                link.destroy(VGPU_OBJECT_KERNEL, made->id);
        }
        if (error) {
            from.functions.erase(name);
            return error;
        }
        made->shared_limit = made->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES];
        the_driver().functions.add(made.get());
        known = std::move(made);
    }
    found = known.get();
    return CUDA_SUCCESS;
}

namespace {

// Who says that there is a variable of this name.
enum class named_by { image, program };

// Makes the variable an object of the device, so that copies can name it and a standby gets it. context::mutex
// is held.
CUresult find_variable(module& from, const std::string& name, named_by by, const variable*& found) {
    const auto known = from.variables.find(name);
    if (known != from.variables.end()) {
        found = &known->second;
        return CUDA_SUCCESS;
    }
    context& where = *from.owner;
    opencl::connection& link = where.native->link();
    const auto told = opencl::ask(link, {VGPU_INFO_PROGRAM, VGPU_CUDA_VARIABLE, from.native->id(), 0,
                                         std::as_bytes(std::span(name))})
                          .as<vgpu_cuda_variable>();
    if (!told && by == named_by::program)
        return CUDA_ERROR_NOT_FOUND; // the image's own are made when it is loaded: there is no such state
    variable made;
    made.address = told ? told->address : 0;
    made.bytes = told ? told->bytes : 1;
    made.native =
        opencl::make_object<opencl::memory>(where.native, CL_MEM_OBJECT_BUFFER, cl_mem_flags{0}, made.bytes);
    if (!made.native)
        return CUDA_ERROR_OUT_OF_MEMORY;
    // Also when the driver tells no address: then the host is to know that there is state which it does not see.
    auto command = opencl::make_command<vgpu_cmd_create_variable>(VGPU_CMD_CREATE_VARIABLE);
    command.id = made.native->id();
    command.program = from.native->id();
    command.address = made.address;
    command.bytes = made.bytes;
    command.name_bytes = static_cast<__u32>(name.size());
    const opencl::part text{name.data(), name.size()};
    if (const cl_int error = link.call(opencl::make_outgoing(command, {&text, 1})))
        return cuda_result(error);
    made.native->set_created();
    where.arenas.insert_or_assign(made.address, made.native);
    found = &from.variables.emplace(name, std::move(made)).first->second;
    return CUDA_SUCCESS;
}

// 90 is 9.0.
unsigned architecture_of(const device& gpu) {
    const auto& known = gpu.known.attributes;
    return static_cast<unsigned>(known[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] * 10 +
                                 known[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR]);
}

// All of a new module's. One that the host's driver does not name is no error for the program.
void make_variables(module& of, std::span<const std::byte> image) {
    const std::lock_guard held(of.owner->mutex);
    std::optional<std::vector<std::string>> names;
    if (!is_fat_binary(image))
        names = variables_in(image);
    else if (!(names = variables_in_fat_binary(image, architecture_of(*of.owner->gpu)))) {
        const variable* unseen = nullptr; // a name that none has: the host is to know that there may be some
        find_variable(of, "(of a fat binary)", named_by::image, unseen);
        return;
    }
    for (const std::string& name : *names) {
        const variable* made = nullptr;
        if (name.size() <= VGPU_MAX_NAME_BYTES && !is_literal(name))
            find_variable(of, name, named_by::image, made);
    }
}

template <class Body>
CUresult of_module(CUmodule handle, Body&& body) noexcept {
    return guarded([&] {
        if (!the_driver().ready)
            return CUDA_ERROR_NOT_INITIALIZED;
        auto* const one = object_of<module>(the_driver().modules, handle);
        return one ? body(*one) : CUDA_ERROR_INVALID_HANDLE;
    });
}

// The names of all functions, asked once.
CUresult read_names(module& of) {
    const std::lock_guard held(of.owner->mutex);
    if (of.names_known)
        return CUDA_SUCCESS;
    const opencl::answer told =
        opencl::ask(of.owner->native->link(), {VGPU_INFO_PROGRAM, VGPU_CUDA_FUNCTIONS, of.native->id()});
    if (told.error != CL_SUCCESS)
        return cuda_result(told.error);
    const auto* at = reinterpret_cast<const char*>(told.bytes.data());
    const char* const end = at + told.bytes.size();
    while (at != end) {
        const std::size_t length = strnlen(at, static_cast<std::size_t>(end - at));
        if (length == 0 || at + length == end)
            return CUDA_ERROR_UNKNOWN;
        of.names.emplace_back(at, length);
        at += length + 1;
    }
    of.names_known = true;
    return CUDA_SUCCESS;
}

bool is_name(const char* name) {
    return name && *name && std::strlen(name) <= VGPU_MAX_NAME_BYTES;
}

} // namespace

void clear_logs(unsigned option_count, const CUjit_option* options, void** values) {
    for (unsigned i = 0; i < option_count; ++i) {
        const bool is_size = options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES ||
                             options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
        const bool is_text = options[i] == CU_JIT_INFO_LOG_BUFFER || options[i] == CU_JIT_ERROR_LOG_BUFFER;
        if (is_text && values[i])
            *static_cast<char*>(values[i]) = 0;
        if (is_size)
            values[i] = nullptr; // bytes written
    }
}

KAGEMUSHA_EXPORT CUresult cuModuleLoadData(CUmodule* handle, const void* image) {
    return in_context([&](context& where) {
        if (!handle || !image)
            return CUDA_ERROR_INVALID_VALUE;
        const auto bytes = image_at(image);
        if (!bytes)
            return CUDA_ERROR_INVALID_IMAGE;
        auto made = std::make_unique<module>();
        made->owner = &where;
        made->native = opencl::make_object<opencl::program>(where.native);
        if (!made->native)
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (const cl_int error = made->native->create(VGPU_PROGRAM_BINARY, bytes->data(), bytes->size()))
            return cuda_result(error);
        make_variables(*made, *bytes);
        const std::lock_guard held(where.mutex);
        where.modules.insert(made.get());
        the_driver().modules.add(made.get());
        *handle = reinterpret_cast<CUmodule>(made.release());
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuModuleLoadDataEx(CUmodule* handle, const void* image, unsigned int option_count,
                                             CUjit_option* options, void** values) {
    if (option_count > 0 && (!options || !values))
        return CUDA_ERROR_INVALID_VALUE;
    clear_logs(option_count, options, values);
    return cuModuleLoadData(handle, image);
}

KAGEMUSHA_EXPORT CUresult cuModuleUnload(CUmodule handle) {
    return guarded([&] {
        auto* const dead = object_of<module>(the_driver().modules, handle);
        if (!dead)
            return CUDA_ERROR_INVALID_HANDLE;
        context& where = *dead->owner;
        const CUresult result = where.broken_or(where.synchronise()); // its kernels may run
        the_driver().modules.remove(dead);
        const std::lock_guard held(where.mutex);
        for (const auto& [name, one] : dead->functions) {
            the_driver().functions.remove(one.get());
            where.native->link().destroy(VGPU_OBJECT_KERNEL, one->id);
        }
        for (const auto& [name, one] : dead->variables)
            where.arenas.erase(one.address);
        where.modules.erase(dead);
        delete dead;
        return result;
    });
}

KAGEMUSHA_EXPORT CUresult cuModuleLoadFatBinary(CUmodule* handle, const void* image) {
    return cuModuleLoadData(handle, image);
}

KAGEMUSHA_EXPORT CUresult cuModuleLoad(CUmodule* handle, const char* path) {
    return guarded([&] {
        std::string image;
        const CUresult error = read_image(path, image);
        return error ? error : cuModuleLoadData(handle, image.c_str());
    });
}

// A function is asked about when a program names it.
KAGEMUSHA_ANSWERED CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

KAGEMUSHA_EXPORT CUresult cuModuleGetFunction(CUfunction* handle, CUmodule from, const char* name) {
    return of_module(from, [&](module& one) {
        if (!handle || !is_name(name))
            return CUDA_ERROR_INVALID_VALUE;
        function* found = nullptr;
        const CUresult error = find_function(one, name, found);
        if (error == CUDA_SUCCESS)
            *handle = reinterpret_cast<CUfunction>(found);
        return error;
    });
}

KAGEMUSHA_EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule from,
                                               const char* name) {
    return guarded([&] {
        auto* const one = object_of<module>(the_driver().modules, from);
        if (!one)
            return CUDA_ERROR_INVALID_HANDLE;
        if (!name || !*name || std::strlen(name) > VGPU_MAX_NAME_BYTES)
            return CUDA_ERROR_INVALID_VALUE;
        const std::lock_guard held(one->owner->mutex);
        const variable* found = nullptr;
        if (const CUresult error = find_variable(*one, name, named_by::program, found))
            return error;
        if (address)
            *address = found->address;
        if (bytes)
            *bytes = found->bytes;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule from) {
    return of_module(from, [&](module& one) {
        if (!count)
            return CUDA_ERROR_INVALID_VALUE;
        const CUresult error = read_names(one);
        if (!error)
            *count = static_cast<unsigned>(one.names.size());
        return error;
    });
}

KAGEMUSHA_EXPORT CUresult cuModuleEnumerateFunctions(CUfunction* handles, unsigned int room, CUmodule from) {
    return of_module(from, [&](module& one) {
        if (!handles)
            return CUDA_ERROR_INVALID_VALUE;
        CUresult error = read_names(one);
        for (std::size_t i = 0; !error && i < std::min<std::size_t>(room, one.names.size()); ++i) {
            function* found = nullptr;
            error = find_function(one, one.names[i].c_str(), found);
            handles[i] = reinterpret_cast<CUfunction>(found);
        }
        return error;
    });
}

} // namespace kagemusha::cuda
