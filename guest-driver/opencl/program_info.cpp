// SPDX-License-Identifier: GPL-2.0-or-later
//
// Queries about programs.
#include "api.hpp"
#include "program.hpp"

namespace kagemusha::opencl::api {

cl_int get_program_info(cl_program handle, cl_program_info name, size_t size, void* value, size_t* size_ret) {
    const info_answer to(size, value, size_ret);
    program* const one = from_handle<program>(handle);
    if (!one)
        return CL_INVALID_PROGRAM;
    connection& link = one->owner().link();
    const question same{VGPU_INFO_PROGRAM, name, one->id()};
    switch (name) {
    case CL_PROGRAM_REFERENCE_COUNT:
        return to.value<cl_uint>(one->user_references.load());
    case CL_PROGRAM_CONTEXT:
        return to.value(to_handle<cl_context>(&one->owner()));
    case CL_PROGRAM_NUM_DEVICES:
        return to.value<cl_uint>(1);
    case CL_PROGRAM_DEVICES:
        return to.value(to_handle<cl_device_id>(&one->owner().gpu()));
    case CL_PROGRAM_SOURCE:
        return to.text(one->source());
    case CL_PROGRAM_IL:
        return to.bytes(one->il().data(), one->il().size());
    case CL_PROGRAM_BINARY_SIZES: {
        const answer known = ask(link, same);
        if (known.error != CL_SUCCESS)
            return known.error;
        return to.value(known.as<std::size_t>().value_or(0));
    }
    case CL_PROGRAM_BINARIES: {
        // The value is one pointer per device, each to a place that the program chose after asking for the
        // sizes.
        unsigned char* place = nullptr;
        if (to.place()) {
            if (to.capacity() < sizeof place)
                return CL_INVALID_VALUE;
            std::memcpy(&place, to.place(), sizeof place);
        }
        if (place) {
            const answer known = ask(link, same);
            if (known.error != CL_SUCCESS)
                return known.error;
            std::memcpy(place, known.bytes.data(), known.bytes.size());
        }
        return to.value(place);
    }
    case CL_PROGRAM_NUM_KERNELS:
    case CL_PROGRAM_KERNEL_NAMES:
        if (one->build_status() != CL_BUILD_SUCCESS)
            return CL_INVALID_PROGRAM_EXECUTABLE;
        return forward(link, same, to);
    case CL_PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT:
    case CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT:
        return to.value<cl_bool>(CL_FALSE);
    default:
        return CL_INVALID_VALUE;
    }
}

cl_int get_program_build_info(cl_program handle, cl_device_id device_handle, cl_program_build_info name,
                              size_t size, void* value, size_t* size_ret) {
    const info_answer to(size, value, size_ret);
    program* const one = from_handle<program>(handle);
    if (!one)
        return CL_INVALID_PROGRAM;
    if (from_handle<device>(device_handle) != &one->owner().gpu())
        return CL_INVALID_DEVICE;
    switch (name) {
    case CL_PROGRAM_BUILD_STATUS:
        return to.value(one->build_status());
    case CL_PROGRAM_BUILD_OPTIONS:
        return to.text(one->options());
    case CL_PROGRAM_BUILD_LOG:
        // Nothing was built, nothing was logged; and the host's compiler is not asked in the middle of its
        // work.
        if (one->build_status() == CL_BUILD_NONE || one->build_status() == CL_BUILD_IN_PROGRESS)
            return to.text("");
        [[fallthrough]];
    case CL_PROGRAM_BINARY_TYPE:
    case CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE:
        return forward(one->owner().link(), {VGPU_INFO_PROGRAM_BUILD, name, one->id()}, to);
    default:
        return CL_INVALID_VALUE;
    }
}

} // namespace kagemusha::opencl::api
