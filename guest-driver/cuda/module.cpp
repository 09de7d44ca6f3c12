// SPDX-License-Identifier: GPL-2.0-or-later
//
// Modules, functions, launches. A function's parameters are asked once, with the function; a launch takes as
// many bytes for each as the host's driver said.
#include "driver.hpp"
#include "image.hpp"
#include "variables.hpp"

#include "guest-driver/opencl/query.hpp"

#include <algorithm>
#include <cstring>

namespace kagemusha::cuda {
namespace {

/// What the host's driver knows about a function.
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
    std::memcpy(made.parameters.data(), bytes.data() + sizeof known, bytes.size() - sizeof known);
    constexpr std::uint32_t most = 64 << 10;
    for (const vgpu_cuda_parameter& one : made.parameters) {
        if (one.bytes == 0 || one.bytes > most || one.offset > most)
            return false;
        made.block_bytes = std::max<std::size_t>(made.block_bytes, one.offset + one.bytes);
    }
    return true;
}

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
        the_driver().functions.add(made.get());
        known = std::move(made);
    }
    found = known.get();
    return CUDA_SUCCESS;
}

/// Makes the variable an object of the device, so that copies can name it and a standby gets it. context::mutex
/// is held.
CUresult find_variable(module& from, const std::string& name, const variable*& found) {
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
    variable made;
    made.address = told ? told->address : 0;
    made.bytes = told ? told->bytes : 1;
    made.native =
        opencl::make_object<opencl::memory>(where.native, CL_MEM_OBJECT_BUFFER, cl_mem_flags{0}, made.bytes);
    if (!made.native)
        return CUDA_ERROR_OUT_OF_MEMORY;
    // Also when nobody knows the address: then the host is to know that there is state which it does not see.
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

/// All of a new module's. One that the host's driver does not name is no error for the program.
void make_variables(module& of, std::span<const std::byte> image) {
    const std::lock_guard held(of.owner->mutex);
    const variable* unseen = nullptr;
    if (hides_variables(image)) // a name that none has: the host is to know that there may be some
        find_variable(of, "(of a fat binary)", unseen);
    for (const std::string& name : variables_in(image)) {
        const variable* made = nullptr;
        if (name.size() <= VGPU_MAX_NAME_BYTES && !is_literal(name))
            find_variable(of, name, made);
    }
}

/// The bytes of one parameter, wherever the program put them.
struct given_parameters {
    void** each = nullptr;            // kernelParams
    const std::byte* block = nullptr; // or one block of all
    std::size_t block_bytes = 0;

    const void* of(std::size_t index, const vgpu_cuda_parameter& one) const {
        if (each)
            return each[index];
        if (!block)
            return nullptr;
        return std::uint64_t{one.offset} + one.bytes <= block_bytes ? block + one.offset : nullptr;
    }
};

bool read_extra(void** extra, given_parameters& given) {
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            given.block = static_cast<const std::byte*>(extra[1]);
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            given.block_bytes = *static_cast<const std::size_t*>(extra[1]);
        else
            return false;
    }
    return given.block != nullptr;
}

void append_argument(std::vector<std::byte>& to, std::uint32_t index, vgpu_argument_kind kind,
                     std::uint64_t bytes, const void* value) {
    const vgpu_argument header{index, static_cast<__u32>(kind), bytes};
    const auto* const first = reinterpret_cast<const std::byte*>(&header);
    to.insert(to.end(), first, first + sizeof header);
    if (!value)
        return;
    const auto* const octets = static_cast<const std::byte*>(value);
    to.insert(to.end(), octets, octets + bytes);
    to.resize((to.size() + 7) & ~std::size_t{7});
}

struct shape {
    unsigned grid[3], block[3], shared_bytes;
};

CUresult launch(stream& where, const function& called, const shape& size, const given_parameters& given) {
    auto command = opencl::make_command<vgpu_cmd_launch>(VGPU_CMD_LAUNCH);
    command.kernel = called.id;
    command.work_dim = 3;
    command.flags = VGPU_LAUNCH_LOCAL_SIZE;
    for (int d = 0; d < 3; ++d) {
        if (size.grid[d] == 0 || size.block[d] == 0)
            return CUDA_ERROR_INVALID_VALUE;
        command.global[d] = std::uint64_t{size.grid[d]} * size.block[d];
        command.local[d] = size.block[d];
    }
    thread_local std::vector<std::byte> arguments; // keeps its memory
    arguments.clear();
    for (std::size_t i = 0; i < called.parameters.size(); ++i) {
        const vgpu_cuda_parameter& one = called.parameters[i];
        const void* const value = given.of(i, one);
        if (!value)
            return CUDA_ERROR_INVALID_VALUE;
        append_argument(arguments, static_cast<std::uint32_t>(i), VGPU_ARGUMENT_BYTES, one.bytes, value);
    }
    command.argument_count = static_cast<__u32>(called.parameters.size());
    if (size.shared_bytes > 0)
        append_argument(arguments, command.argument_count++, VGPU_ARGUMENT_LOCAL, size.shared_bytes, nullptr);
    command.argument_bytes = static_cast<__u32>(arguments.size());
    const sending counted(where);
    opencl::enqueueing call(opencl::to_handle<cl_command_queue>(where.native.get()),
                            CL_COMMAND_NDRANGE_KERNEL, 0, nullptr, nullptr);
    return cuda_result(call.error() != CL_SUCCESS
                           ? call.error()
                           : call.send(command, {{arguments.data(), arguments.size()}}));
}

template <class Body>
CUresult of_function(CUfunction handle, Body&& body) noexcept {
    return guarded([&] {
        if (!the_driver().ready)
            return CUDA_ERROR_NOT_INITIALIZED;
        auto* const one = object_of<function>(the_driver().functions, handle);
        return one ? body(*one) : CUDA_ERROR_INVALID_HANDLE;
    });
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

KAGEMUSHA_EXPORT CUresult cuModuleGetFunction(CUfunction* handle, CUmodule from, const char* name) {
    return guarded([&] {
        auto* const one = object_of<module>(the_driver().modules, from);
        if (!one)
            return CUDA_ERROR_INVALID_HANDLE;
        if (!handle || !name || !*name || std::strlen(name) > VGPU_MAX_NAME_BYTES)
            return CUDA_ERROR_INVALID_VALUE;
        function* found = nullptr;
        const CUresult error = find_function(*one, name, found);
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
        if (const CUresult error = find_variable(*one, name, found))
            return error;
        if (address)
            *address = found->address;
        if (bytes)
            *bytes = found->bytes;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
    return of_function(handle, [&](const function& one) {
        if (!value || static_cast<unsigned>(attribute) >= VGPU_CUDA_FUNCTION_ATTRIBUTES)
            return CUDA_ERROR_INVALID_VALUE;
        *value = one.attributes[attribute];
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* bytes) {
    return of_function(handle, [&](const function& one) {
        if (index >= one.parameters.size() || !offset)
            return CUDA_ERROR_INVALID_VALUE;
        *offset = one.parameters[index].offset;
        if (bytes)
            *bytes = one.parameters[index].bytes;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuLaunchKernel(CUfunction handle, unsigned int grid_x, unsigned int grid_y,
                                         unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                         unsigned int block_z, unsigned int shared_bytes, CUstream where,
                                         void** parameters, void** extra) {
    return in_stream(where, [&](stream& in) {
        const auto* const called = object_of<function>(the_driver().functions, handle);
        if (!called)
            return CUDA_ERROR_INVALID_HANDLE;
        if (called->owner->owner != in.owner)
            return CUDA_ERROR_INVALID_CONTEXT;
        given_parameters given;
        given.each = parameters;
        if ((parameters && extra) || (extra && !read_extra(extra, given)))
            return CUDA_ERROR_INVALID_VALUE;
        return launch(in, *called, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes},
                      given);
    });
}

} // namespace kagemusha::cuda
