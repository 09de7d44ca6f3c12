// SPDX-License-Identifier: GPL-2.0-or-later
//
// Building, compiling and linking: each is one call that the host's compiler answers. They are synchronous; a
// program that gave a callback gets it before the function returns, as the standard allows.
#include "api.hpp"
#include "program.hpp"

#include <vector>

namespace kagemusha::opencl {
namespace {

using build_callback = void(CL_CALLBACK*)(cl_program, void*);

// What build, compile and link check alike.
cl_int check(const context& owner, cl_uint count, const cl_device_id* devices, const char* options,
             build_callback notify, const void* user_data) {
    if ((count == 0) != (devices == nullptr) || (!notify && user_data))
        return CL_INVALID_VALUE;
    for (cl_uint i = 0; i < count; ++i)
        if (from_handle<device>(devices[i]) != &owner.gpu())
            return CL_INVALID_DEVICE;
    if (options && std::strlen(options) > VGPU_MAX_OPTIONS_BYTES)
        return CL_OUT_OF_HOST_MEMORY;
    return CL_SUCCESS;
}

cl_int compiler_available(const context& owner, cl_device_info which) {
    return owner.gpu().number<cl_bool>(which, CL_TRUE) ? CL_SUCCESS
           : which == CL_DEVICE_LINKER_AVAILABLE       ? CL_LINKER_NOT_AVAILABLE
                                                       : CL_COMPILER_NOT_AVAILABLE;
}

} // namespace

namespace api {

cl_int build_program(cl_program handle, cl_uint count, const cl_device_id* devices, const char* options,
                     void(CL_CALLBACK* notify)(cl_program, void*), void* user_data) {
    program* const one = from_handle<program>(handle);
    if (!one)
        return CL_INVALID_PROGRAM;
    cl_int error = check(one->owner(), count, devices, options, notify, user_data);
    if (error == CL_SUCCESS && !one->source().empty())
        error = compiler_available(one->owner(), CL_DEVICE_COMPILER_AVAILABLE);
    if (error != CL_SUCCESS)
        return error;
    const std::string text = options ? options : "";
    const ref<program> alive(one);
    if (!one->begin_build(text))
        return CL_INVALID_OPERATION;
    error = one->include_files(text, {});
    if (error == CL_SUCCESS) {
        auto command = make_command<commands::build_program>();
        command.program = one->id();
        error = one->owner().link().call(make_outgoing(command, text));
    }
    one->end_build(error == CL_SUCCESS ? CL_BUILD_SUCCESS : CL_BUILD_ERROR);
    if (notify)
        notify(handle, user_data);
    return error;
}

cl_int compile_program(cl_program handle, cl_uint count, const cl_device_id* devices, const char* options,
                       cl_uint header_count, const cl_program* headers, const char** header_names,
                       void(CL_CALLBACK* notify)(cl_program, void*), void* user_data) {
    program* const one = from_handle<program>(handle);
    if (!one)
        return CL_INVALID_PROGRAM;
    cl_int error = check(one->owner(), count, devices, options, notify, user_data);
    if (error == CL_SUCCESS &&
        ((header_count == 0) != (headers == nullptr) || (header_count == 0) != (header_names == nullptr)))
        error = CL_INVALID_VALUE;
    if (error == CL_SUCCESS && one->source().empty() && one->il().empty())
        error = CL_INVALID_OPERATION;
    if (error == CL_SUCCESS)
        error = compiler_available(one->owner(), CL_DEVICE_COMPILER_AVAILABLE);
    if (error != CL_SUCCESS)
        return error;

    const std::string text = options ? options : "";
    std::vector<std::uint64_t> ids;
    std::string names;
    for (cl_uint i = 0; i < header_count; ++i) {
        const program* const header = from_handle<program>(headers[i]);
        if (!header || &header->owner() != &one->owner())
            return CL_INVALID_PROGRAM;
        if (!header_names[i])
            return CL_INVALID_VALUE;
        ids.push_back(header->id());
        names.append(header_names[i]);
        names.push_back(0);
    }
    const ref<program> alive(one);
    if (!one->begin_build(text))
        return CL_INVALID_OPERATION;
    error = one->include_files(text, {header_names, header_names + header_count});
    if (error == CL_SUCCESS) {
        auto command = make_command<commands::compile_program>();
        command.program = one->id();
        error = one->owner().link().call(make_outgoing(command, ids, text, names));
    }
    one->end_build(error == CL_SUCCESS ? CL_BUILD_SUCCESS : CL_BUILD_ERROR);
    if (notify)
        notify(handle, user_data);
    return error;
}

cl_program link_program(cl_context context_handle, cl_uint count, const cl_device_id* devices,
                        const char* options, cl_uint input_count, const cl_program* inputs,
                        void(CL_CALLBACK* notify)(cl_program, void*), void* user_data, cl_int* errcode) {
    context* const owner = from_handle<context>(context_handle);
    if (!owner)
        return fail<cl_program>(errcode, CL_INVALID_CONTEXT);
    cl_int error = check(*owner, count, devices, options, notify, user_data);
    if (error == CL_SUCCESS && (input_count == 0 || !inputs))
        error = CL_INVALID_VALUE;
    if (error == CL_SUCCESS)
        error = compiler_available(*owner, CL_DEVICE_LINKER_AVAILABLE);
    if (error != CL_SUCCESS)
        return fail<cl_program>(errcode, error);
    std::vector<std::uint64_t> ids;
    for (cl_uint i = 0; i < input_count; ++i) {
        program* const input = from_handle<program>(inputs[i]);
        if (!input || &input->owner() != owner)
            return fail<cl_program>(errcode, CL_INVALID_PROGRAM);
        if (input->build_status() == CL_BUILD_IN_PROGRESS)
            return fail<cl_program>(errcode, CL_INVALID_OPERATION);
        ids.push_back(input->id());
    }
    const std::string text = options ? options : "";
    ref<program> made = make_object<program>(ref<context>(owner));
    if (!made)
        return fail<cl_program>(errcode, CL_OUT_OF_HOST_MEMORY);
    made->begin_build(text);
    auto command = make_command<commands::link_program>();
    command.id = made->id();
    command.context = owner->id();
    error = owner->link().call(make_outgoing(command, ids, text));
    made->end_build(error == CL_SUCCESS ? CL_BUILD_SUCCESS : CL_BUILD_ERROR);
    if (errcode)
        *errcode = error;
    // A failed link still gives a program: its log says why.
    if (error != CL_SUCCESS && error != CL_LINK_PROGRAM_FAILURE)
        return nullptr;
    made->set_created();
    const cl_program handle = hand_out<cl_program>(std::move(made));
    if (notify)
        notify(handle, user_data);
    return handle;
}

} // namespace api
} // namespace kagemusha::opencl
