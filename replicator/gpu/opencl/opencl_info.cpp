// SPDX-License-Identifier: GPL-2.0-or-later
// opencl_info: queries. The executor has refused names that would give a handle.
#include <CL/cl_ext.h>

#include <algorithm>
#include <cstring>

#include "gpu/opencl/opencl_device.hpp"

namespace kagemusha::gpu {

namespace {

template <class T>
void answer(std::vector<std::byte>& result, const T& value) {
    result.resize(sizeof(value));
    std::memcpy(result.data(), &value, sizeof(value));
}

// A program without a native object is one whose linking failed before the runtime made it.
std::int32_t failed_link_info(std::uint32_t name, std::vector<std::byte>& result) {
    switch (name) {
    case CL_PROGRAM_BUILD_STATUS:
        answer(result, cl_build_status{CL_BUILD_ERROR});
        return CL_SUCCESS;
    case CL_PROGRAM_BUILD_LOG:
    case CL_PROGRAM_BUILD_OPTIONS:
        result.assign(1, std::byte{0});
        return CL_SUCCESS;
    case CL_PROGRAM_BINARY_TYPE:
        answer(result, cl_program_binary_type{CL_PROGRAM_BINARY_TYPE_NONE});
        return CL_SUCCESS;
    default:
        return CL_INVALID_PROGRAM_EXECUTABLE;
    }
}

// OpenCL fills memory that the caller's array of pointers names; ours is the answer's own.
std::int32_t binary_of(const opencl_api& api, cl_program program, std::vector<std::byte>& result) {
    std::size_t bytes = 0;
    if (const cl_int error =
            api.clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(bytes), &bytes, nullptr))
        return error;
    if (bytes > VGPU_MAX_RESULT_BYTES)
        return CL_OUT_OF_HOST_MEMORY;
    result.resize(bytes);
    if (bytes == 0)
        return CL_SUCCESS;
    std::byte* into = result.data();
    return api.clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof(into), &into, nullptr);
}

std::int32_t image_formats(const opencl_api& api, cl_context context, const info_query& query,
                           std::vector<std::byte>& result) {
    cl_uint count = 0;
    if (const cl_int error =
            api.clGetSupportedImageFormats(context, query.index, query.name, 0, nullptr, &count))
        return error;
    std::vector<cl_image_format> formats(count);
    if (count != 0)
        if (const cl_int error = api.clGetSupportedImageFormats(context, query.index, query.name, count,
                                                                formats.data(), nullptr))
            return error;
    const auto bytes = std::as_bytes(std::span(formats));
    result.assign(bytes.begin(), bytes.end());
    return CL_SUCCESS;
}

} // namespace

std::int32_t opencl_device::info(const info_query& query, std::vector<std::byte>& result) {
    const cl_uint name = query.name;
    const cl_mem memory = query.memory ? static_cast<opencl_memory*>(query.memory)->native.get() : nullptr;
    const cl_program program =
        query.program ? static_cast<opencl_program*>(query.program)->native.get() : nullptr;
    const cl_kernel kernel = query.kernel ? static_cast<opencl_kernel*>(query.kernel)->native.get() : nullptr;
    if (query.program && !program)
        return failed_link_info(name, result);

    switch (query.subject) {
    case VGPU_INFO_PLATFORM:
        return opencl_ask([&](auto... to) { return api_.clGetPlatformInfo(platform_, name, to...); }, result);
    case VGPU_INFO_DEVICE:
        return opencl_ask([&](auto... to) { return api_.clGetDeviceInfo(device_, name, to...); }, result);
    case VGPU_INFO_IMAGE_FORMATS:
        return image_formats(api_, static_cast<opencl_context*>(query.context)->native.get(), query, result);
    case VGPU_INFO_MEMORY:
        return opencl_ask([&](auto... to) { return api_.clGetMemObjectInfo(memory, name, to...); }, result);
    case VGPU_INFO_IMAGE:
        return opencl_ask([&](auto... to) { return api_.clGetImageInfo(memory, name, to...); }, result);
    case VGPU_INFO_PROGRAM:
        if (name == CL_PROGRAM_BINARIES)
            return binary_of(api_, program, result);
        return opencl_ask([&](auto... to) { return api_.clGetProgramInfo(program, name, to...); }, result);
    case VGPU_INFO_PROGRAM_BUILD:
        return opencl_ask(
            [&](auto... to) { return api_.clGetProgramBuildInfo(program, device_, name, to...); }, result);
    case VGPU_INFO_KERNEL:
        return opencl_ask([&](auto... to) { return api_.clGetKernelInfo(kernel, name, to...); }, result);
    case VGPU_INFO_KERNEL_ARG: {
        if (query.index >= VGPU_MAX_ARGUMENTS)
            return CL_INVALID_ARG_INDEX;
        const auto index = static_cast<cl_uint>(query.index);
        cl_uint count = 0; // runtimes differ in what they answer for an argument that is not there
        if (const cl_int error =
                api_.clGetKernelInfo(kernel, CL_KERNEL_NUM_ARGS, sizeof(count), &count, nullptr))
            return error;
        if (index >= count)
            return CL_INVALID_ARG_INDEX;
        return opencl_ask([&](auto... to) { return api_.clGetKernelArgInfo(kernel, index, name, to...); },
                          result);
    }
    case VGPU_INFO_KERNEL_WORK_GROUP:
        return opencl_ask(
            [&](auto... to) { return api_.clGetKernelWorkGroupInfo(kernel, device_, name, to...); }, result);
    case VGPU_INFO_KERNEL_SUB_GROUP:
        if (version_ < 210 || !api_.clGetKernelSubGroupInfo)
            return CL_INVALID_OPERATION;
        return opencl_ask(
            [&](auto... to) {
                return api_.clGetKernelSubGroupInfo(kernel, device_, name, query.input.size(),
                                                    query.input.data(), to...);
            },
            result);
    case VGPU_INFO_TIMERS: {
        if (version_ < 210 || !api_.clGetDeviceAndHostTimer)
            return CL_INVALID_OPERATION;
        cl_ulong timers[2] = {};
        if (const cl_int error = api_.clGetDeviceAndHostTimer(device_, &timers[0], &timers[1]))
            return error;
        gpu::answer(result, timers);
        return CL_SUCCESS;
    }
    }
    return CL_INVALID_VALUE;
}

struct opencl_device::native_query {
    const opencl_device& device;
    std::vector<std::byte>& result;

    std::int32_t operator()(const resolved<codec::op_suggested_group_size>& r) const {
        const auto& [host_queue, host_kernel, arguments] = r.parts;
        const cl_kernel kernel = static_cast<opencl_kernel&>(host_kernel).native.get();
        const auto ask =
            device.extension<clGetKernelSuggestedLocalWorkSizeKHR_fn>("clGetKernelSuggestedLocalWorkSizeKHR");
        if (!ask)
            return CL_INVALID_OPERATION;
        if (const cl_int error = set_arguments(device.api_, kernel, arguments))
            return error;
        const vgpu_cmd_suggested_group_size& c = *r.op.c;
        std::size_t offset[3], global[3], local[3] = {1, 1, 1};
        std::copy_n(c.offset, 3, offset);
        std::copy_n(c.global, 3, global);
        if (const cl_int error = ask(static_cast<opencl_queue&>(host_queue).native.get(), kernel, c.work_dim,
                                     offset, global, local))
            return error;
        gpu::answer(result, local);
        return CL_SUCCESS;
    }
    // Its kernels are given images, not numbers.
    std::int32_t operator()(const resolved<codec::op_find_texture>&) const { return CL_INVALID_OPERATION; }
};

std::int32_t opencl_device::answer(const query& what, std::vector<std::byte>& result) {
    return std::visit(native_query{*this, result}, what);
}

} // namespace kagemusha::gpu
