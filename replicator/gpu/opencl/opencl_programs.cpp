// SPDX-License-Identifier: GPL-2.0-or-later
// opencl_programs: programs.
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "gpu/opencl/opencl_device.hpp"

namespace kagemusha::gpu {

namespace {

// OpenCL 2.1's clCreateProgramWithIL, or the extension that older platforms have.
using create_with_il = cl_program(CL_API_CALL*)(cl_context, const void*, std::size_t, cl_int*);

} // namespace

// PoCL's cache has a folder for each program, named by a hash of all that its result depends on. NVIDIA's and
// others' caches have an index that they change in place, so they are left alone.
std::string opencl_device::built_files_directory() const {
    std::vector<std::byte> name;
    opencl_ask(
        [&](std::size_t bytes, void* to, std::size_t* all) {
            return api_.clGetPlatformInfo(platform_, CL_PLATFORM_NAME, bytes, to, all);
        },
        name);
    constexpr std::string_view pocl = "Portable Computing Language";
    if (name.size() < pocl.size() || std::memcmp(name.data(), pocl.data(), pocl.size()) != 0)
        return {};
    const char* const directory = std::getenv("POCL_CACHE_DIR");
    return directory ? directory : "";
}

std::int32_t opencl_device::create_program(host_context& context, vgpu_program_kind kind,
                                           std::span<const std::byte> content,
                                           std::unique_ptr<host_program>& out) {
    const cl_context native_context = static_cast<opencl_context&>(context).native.get();
    cl_int error = CL_SUCCESS;
    cl_program program = nullptr;
    switch (kind) {
    case VGPU_PROGRAM_SOURCE: {
        // An empty program is a valid one; OpenCL wants a pointer for it.
        const char* text = content.empty() ? "" : reinterpret_cast<const char*>(content.data());
        const std::size_t bytes = content.size();
        program = api_.clCreateProgramWithSource(native_context, 1, &text, &bytes, &error);
        break;
    }
    case VGPU_PROGRAM_BINARY: {
        const auto* bytes = reinterpret_cast<const unsigned char*>(content.data());
        const std::size_t size = content.size();
        cl_int status = CL_SUCCESS;
        program = api_.clCreateProgramWithBinary(native_context, 1, &device_, &size, &bytes, &status, &error);
        break;
    }
    case VGPU_PROGRAM_IL: {
        create_with_il create = version_ >= 210 ? api_.clCreateProgramWithIL : nullptr;
        if (!create)
            create = reinterpret_cast<create_with_il>(
                api_.clGetExtensionFunctionAddressForPlatform(platform_, "clCreateProgramWithILKHR"));
        if (!create)
            return CL_INVALID_OPERATION;
        program = create(native_context, content.data(), content.size(), &error);
        break;
    }
    case VGPU_PROGRAM_BUILT_IN: {
        const std::string names(reinterpret_cast<const char*>(content.data()), content.size());
        program = api_.clCreateProgramWithBuiltInKernels(native_context, 1, &device_, names.c_str(), &error);
        break;
    }
    default:
        return CL_INVALID_VALUE;
    }
    auto object = std::make_unique<opencl_program>();
    object->native = {api_, program};
    if (error == CL_SUCCESS)
        out = std::move(object);
    return error;
}

std::int32_t opencl_device::set_spec_constant(host_program& program, std::uint32_t constant,
                                              std::span<const std::byte> value) {
    const cl_program native = static_cast<opencl_program&>(program).native.get();
    if (!native)
        return CL_INVALID_PROGRAM;
    if (version_ < 220 || !api_.clSetProgramSpecializationConstant)
        return CL_INVALID_OPERATION;
    return api_.clSetProgramSpecializationConstant(native, constant, value.size(), value.data());
}

std::int32_t opencl_device::build_program(host_program& program, const std::string& options) {
    const cl_program native = static_cast<opencl_program&>(program).native.get();
    return native ? api_.clBuildProgram(native, 1, &device_, options.c_str(), nullptr, nullptr)
                  : CL_INVALID_OPERATION;
}

std::int32_t opencl_device::compile_program(host_program& program, const std::string& options,
                                            std::span<host_program* const> headers,
                                            std::span<const char* const> names) {
    const cl_program native = static_cast<opencl_program&>(program).native.get();
    std::vector<cl_program> native_headers;
    for (host_program* header : headers)
        native_headers.push_back(static_cast<opencl_program*>(header)->native.get());
    std::vector<const char*> header_names(names.begin(), names.end());
    return native
               ? api_.clCompileProgram(native, 1, &device_, options.c_str(),
                                       static_cast<cl_uint>(native_headers.size()),
                                       native_headers.empty() ? nullptr : native_headers.data(),
                                       header_names.empty() ? nullptr : header_names.data(), nullptr, nullptr)
               : CL_INVALID_OPERATION;
}

std::int32_t opencl_device::link_program(host_context& context, const std::string& options,
                                         std::span<host_program* const> inputs,
                                         std::unique_ptr<host_program>& out) {
    std::vector<cl_program> native_inputs;
    for (host_program* input : inputs) {
        const cl_program program = static_cast<opencl_program*>(input)->native.get();
        // NVIDIA's runtime links what was never compiled and says that it worked.
        cl_program_binary_type type = CL_PROGRAM_BINARY_TYPE_NONE;
        if (!program || (api_.clGetProgramBuildInfo(program, device_, CL_PROGRAM_BINARY_TYPE, sizeof(type),
                                                    &type, nullptr) == CL_SUCCESS &&
                         type == CL_PROGRAM_BINARY_TYPE_NONE))
            return CL_INVALID_OPERATION;
        native_inputs.push_back(program);
    }
    cl_int error = CL_SUCCESS;
    auto object = std::make_unique<opencl_program>();
    object->native = {api_,
                      api_.clLinkProgram(static_cast<opencl_context&>(context).native.get(), 1, &device_,
                                         options.c_str(), static_cast<cl_uint>(native_inputs.size()),
                                         native_inputs.data(), nullptr, nullptr, &error)};
    if (error == CL_SUCCESS || error == CL_LINK_PROGRAM_FAILURE)
        out = std::move(object);
    return error;
}

} // namespace kagemusha::gpu
