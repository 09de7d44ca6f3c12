// SPDX-License-Identifier: GPL-2.0-or-later
//
// Kernels and the functions of the API about them; kernel_arguments.cpp has their arguments.
#include "kernel.hpp"

#include "api.hpp"

#include <algorithm>

namespace kagemusha::opencl {

kernel::kernel(ref<program> owner, std::string name)
    : object(kind_of_class)
    , owner_(std::move(owner))
    , name_(std::move(name))
    , id_(owner_->owner().link().new_id()) {
    owner_->attach_kernel();
}

kernel::~kernel() {
    owner_->detach_kernel();
    if (created_)
        owner_->owner().link().destroy(VGPU_OBJECT_KERNEL, id_);
}

cl_int kernel::create() {
    auto command = make_command<commands::create_kernel>();
    command.id = id_;
    command.program = owner_->id();
    const cl_int error = owner_->owner().link().call(make_outgoing(command, name_));
    if (error != CL_SUCCESS)
        return error;
    created_ = true;
    description_ = owner_->describe(name_, id_);
    if (!description_)
        return CL_OUT_OF_RESOURCES;
    slots_.resize(description_->arguments.size());
    unset_ = slots_.size();
    return CL_SUCCESS;
}

namespace {

ref<kernel> create(program& owner, const std::string& name, cl_int& error) {
    if (owner.build_status() != CL_BUILD_SUCCESS) {
        error = CL_INVALID_PROGRAM_EXECUTABLE;
        return {};
    }
    if (name.empty() || name.size() > VGPU_MAX_NAME_BYTES) {
        error = CL_INVALID_KERNEL_NAME;
        return {};
    }
    ref<kernel> made = make_object<kernel>(ref<program>(&owner), name);
    error = made ? made->create() : CL_OUT_OF_HOST_MEMORY;
    return error == CL_SUCCESS ? std::move(made) : ref<kernel>();
}

} // namespace

namespace api {

cl_kernel create_kernel(cl_program handle, const char* name, cl_int* errcode) {
    program* const owner = from_handle<program>(handle);
    if (!owner)
        return fail<cl_kernel>(errcode, CL_INVALID_PROGRAM);
    if (!name)
        return fail<cl_kernel>(errcode, CL_INVALID_VALUE);
    cl_int error;
    ref<kernel> made = create(*owner, name, error);
    if (!made)
        return fail<cl_kernel>(errcode, error);
    succeed(errcode);
    return hand_out<cl_kernel>(std::move(made));
}

cl_int create_kernels_in_program(cl_program handle, cl_uint capacity, cl_kernel* kernels,
                                 cl_uint* count_ret) {
    program* const owner = from_handle<program>(handle);
    if (!owner)
        return CL_INVALID_PROGRAM;
    if (owner->build_status() != CL_BUILD_SUCCESS)
        return CL_INVALID_PROGRAM_EXECUTABLE;
    const answer known =
        ask(owner->owner().link(), {VGPU_INFO_PROGRAM, CL_PROGRAM_KERNEL_NAMES, owner->id()});
    if (known.error != CL_SUCCESS)
        return known.error;
    std::vector<std::string> names;
    const std::string text = known.text();
    for (std::size_t start = 0; start < text.size();) {
        const std::size_t end = std::min(text.find(';', start), text.size());
        if (end > start)
            names.push_back(text.substr(start, end - start));
        start = end + 1;
    }
    if (kernels && capacity < names.size())
        return CL_INVALID_VALUE;
    if (kernels) {
        std::vector<ref<kernel>> made;
        for (const std::string& name : names) {
            cl_int error;
            made.push_back(create(*owner, name, error));
            if (error != CL_SUCCESS)
                return error;
        }
        for (std::size_t i = 0; i < made.size(); ++i)
            kernels[i] = hand_out<cl_kernel>(std::move(made[i]));
    }
    if (count_ret)
        *count_ret = static_cast<cl_uint>(names.size());
    return CL_SUCCESS;
}

cl_kernel clone_kernel(cl_kernel handle, cl_int* errcode) {
    kernel* const source = from_handle<kernel>(handle);
    if (!source)
        return fail<cl_kernel>(errcode, CL_INVALID_KERNEL);
    cl_int error;
    ref<kernel> made = create(source->owner(), source->name(), error);
    if (!made)
        return fail<cl_kernel>(errcode, error);
    made->copy_arguments_of(*source);
    succeed(errcode);
    return hand_out<cl_kernel>(std::move(made));
}

cl_int retain_kernel(cl_kernel handle) {
    kernel* const one = from_handle<kernel>(handle);
    if (!one)
        return CL_INVALID_KERNEL;
    one->retain_for_user();
    return CL_SUCCESS;
}

cl_int release_kernel(cl_kernel handle) {
    kernel* const one = from_handle<kernel>(handle);
    return one && one->release_for_user() ? CL_SUCCESS : CL_INVALID_KERNEL;
}

cl_int set_kernel_arg(cl_kernel handle, cl_uint index, size_t bytes, const void* value) {
    kernel* const one = from_handle<kernel>(handle);
    return one ? one->set_argument(index, bytes, value) : CL_INVALID_KERNEL;
}

cl_int set_kernel_exec_info(cl_kernel handle, cl_kernel_exec_info name, size_t, const void* value) {
    if (!from_handle<kernel>(handle))
        return CL_INVALID_KERNEL;
    if (!value || (name != CL_KERNEL_EXEC_INFO_SVM_PTRS && name != CL_KERNEL_EXEC_INFO_SVM_FINE_GRAIN_SYSTEM))
        return CL_INVALID_VALUE;
    return CL_INVALID_OPERATION; // no device of this driver has shared virtual memory
}

cl_int get_kernel_info(cl_kernel handle, cl_kernel_info name, size_t size, void* value, size_t* size_ret) {
    const info_answer to(size, value, size_ret);
    kernel* const one = from_handle<kernel>(handle);
    if (!one)
        return CL_INVALID_KERNEL;
    switch (name) {
    case CL_KERNEL_FUNCTION_NAME:
        return to.text(one->name());
    case CL_KERNEL_NUM_ARGS:
        return to.value(static_cast<cl_uint>(one->description().arguments.size()));
    case CL_KERNEL_REFERENCE_COUNT:
        return to.value<cl_uint>(one->user_references.load());
    case CL_KERNEL_CONTEXT:
        return to.value(to_handle<cl_context>(&one->owner().owner()));
    case CL_KERNEL_PROGRAM:
        return to.value(to_handle<cl_program>(&one->owner()));
    case CL_KERNEL_ATTRIBUTES: {
        const answer known = ask(one->owner().owner().link(), {VGPU_INFO_KERNEL, name, one->id()});
        return to.text(known.error == CL_SUCCESS ? known.text() : std::string());
    }
    default:
        return CL_INVALID_VALUE;
    }
}

cl_int get_kernel_arg_info(cl_kernel handle, cl_uint index, cl_kernel_arg_info name, size_t size, void* value,
                           size_t* size_ret) {
    kernel* const one = from_handle<kernel>(handle);
    if (!one)
        return CL_INVALID_KERNEL;
    if (index >= one->description().arguments.size())
        return CL_INVALID_ARG_INDEX;
    if (name < CL_KERNEL_ARG_ADDRESS_QUALIFIER || name > CL_KERNEL_ARG_NAME)
        return CL_INVALID_VALUE;
    return forward(one->owner().owner().link(), {VGPU_INFO_KERNEL_ARG, name, one->id(), index},
                   {size, value, size_ret});
}

cl_int get_kernel_work_group_info(cl_kernel handle, cl_device_id device_handle,
                                  cl_kernel_work_group_info name, size_t size, void* value,
                                  size_t* size_ret) {
    kernel* const one = from_handle<kernel>(handle);
    if (!one)
        return CL_INVALID_KERNEL;
    if (device_handle && from_handle<device>(device_handle) != &one->owner().owner().gpu())
        return CL_INVALID_DEVICE;
    return forward(one->owner().owner().link(), {VGPU_INFO_KERNEL_WORK_GROUP, name, one->id()},
                   {size, value, size_ret});
}

cl_int get_kernel_sub_group_info(cl_kernel handle, cl_device_id device_handle, cl_kernel_sub_group_info name,
                                 size_t input_size, const void* input, size_t size, void* value,
                                 size_t* size_ret) {
    kernel* const one = from_handle<kernel>(handle);
    if (!one)
        return CL_INVALID_KERNEL;
    device& gpu = one->owner().owner().gpu();
    if (device_handle && from_handle<device>(device_handle) != &gpu)
        return CL_INVALID_DEVICE;
    if (gpu.number<cl_uint>(CL_DEVICE_MAX_NUM_SUB_GROUPS, 0) == 0 && !gpu.has_extension("cl_khr_subgroups"))
        return CL_INVALID_OPERATION;
    if ((input_size > 0) != (input != nullptr) || input_size > 64)
        return CL_INVALID_VALUE;
    const question asked{
        VGPU_INFO_KERNEL_SUB_GROUP, name, one->id(), 0, {static_cast<const std::byte*>(input), input_size}};
    return forward(one->owner().owner().link(), asked, {size, value, size_ret});
}

cl_int get_kernel_sub_group_info_khr(cl_kernel handle, cl_device_id device_handle,
                                     cl_kernel_sub_group_info name, size_t input_size, const void* input,
                                     size_t size, void* value, size_t* size_ret) {
    return get_kernel_sub_group_info(handle, device_handle, name, input_size, input, size, value, size_ret);
}

} // namespace api
} // namespace kagemusha::opencl
