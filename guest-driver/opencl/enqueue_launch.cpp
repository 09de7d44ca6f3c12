// SPDX-License-Identifier: GPL-2.0-or-later
//
// Launches. What the standard reports synchronously is checked here, before the launch becomes one command in
// the batch.
#include "api.hpp"
#include "connection.hpp"
#include "enqueue.hpp"
#include "extension_functions.hpp"
#include "kernel.hpp"

#include <algorithm>
#include <array>

namespace kagemusha::opencl {
namespace {

// What launches need to know of the device, asked once.
struct launch_limits {
    explicit launch_limits(device& gpu)
        : version(gpu.version())
        , dimensions(std::min<cl_uint>(gpu.number<cl_uint>(CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS, 3), 3))
        , group(gpu.number<std::size_t>(CL_DEVICE_MAX_WORK_GROUP_SIZE, 1))
        , uneven_groups(gpu.number<cl_bool>(CL_DEVICE_NON_UNIFORM_WORK_GROUP_SUPPORT, CL_FALSE))
        , address_bits(gpu.number<cl_uint>(CL_DEVICE_ADDRESS_BITS, 64)) {
        items.fill(group);
        const auto known = gpu.host_info(CL_DEVICE_MAX_WORK_ITEM_SIZES);
        if (known->error == CL_SUCCESS)
            std::memcpy(items.data(), known->bytes.data(), std::min(known->bytes.size(), sizeof items));
    }

    cl_version version;
    cl_uint dimensions;
    std::size_t group;
    bool uneven_groups;
    cl_uint address_bits;
    std::array<std::size_t, 3> items;
};

const launch_limits& limits_of(device& gpu) {
    static const launch_limits limits(gpu); // there is one device
    return limits;
}

cl_int check_local(const launch_limits& limits, const kernel& launched, cl_uint dimensions,
                   const size_t* global, const size_t* local) {
    const kernel_description& known = launched.description();
    const auto& required = known.required_group;
    if (!local)
        return CL_SUCCESS; // the host chooses, and takes the required size where there is one
    std::size_t group = 1;
    for (cl_uint i = 0; i < dimensions; ++i) {
        if (local[i] == 0)
            return CL_INVALID_WORK_GROUP_SIZE;
        if (local[i] > limits.items[i])
            return CL_INVALID_WORK_ITEM_SIZE;
        if (__builtin_mul_overflow(group, local[i], &group))
            return CL_INVALID_WORK_GROUP_SIZE;
        if (required[0] != 0 && local[i] != required[i])
            return CL_INVALID_WORK_GROUP_SIZE;
    }
    // A required size is what the kernel was built for: NVIDIA's runtime says 256 as the largest of a kernel
    // that requires 512, and runs it.
    const std::size_t largest = required[0] != 0 || known.max_work_group == 0
                                    ? limits.group
                                    : std::min(limits.group, known.max_work_group);
    if (group > largest)
        return CL_INVALID_WORK_GROUP_SIZE;
    bool uneven = false;
    for (cl_uint i = 0; i < dimensions; ++i)
        uneven = uneven || global[i] % local[i] != 0;
    if (uneven) {
        const std::string options = launched.owner().options();
        const bool allowed =
            limits.uneven_groups && required[0] == 0 &&
            (options.find("-cl-std=CL2") != std::string::npos ||
             options.find("-cl-std=CL3") != std::string::npos || !launched.owner().il().empty()) &&
            options.find("-cl-uniform-work-group-size") == std::string::npos;
        if (!allowed)
            return CL_INVALID_WORK_GROUP_SIZE;
    }
    return CL_SUCCESS;
}

// Offsets and sizes of a launch; `nothing`: a side is 0 or not given.
template <class Command>
cl_int set_range(Command& command, const launch_limits& limits, cl_uint dimensions, const size_t* offset,
                 const size_t* global, bool& nothing) {
    if (dimensions < 1 || dimensions > limits.dimensions)
        return CL_INVALID_WORK_DIMENSION;
    nothing = !global;
    command.work_dim = dimensions;
    for (cl_uint i = 0; i < 3; ++i) {
        const bool used = i < dimensions;
        command.offset[i] = used && offset ? offset[i] : 0;
        command.global[i] = used && global ? global[i] : 1;
        nothing = nothing || command.global[i] == 0;
        const std::uint64_t largest =
            limits.address_bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << limits.address_bits) - 1;
        if (command.global[i] > largest)
            return CL_INVALID_GLOBAL_WORK_SIZE;
        if (command.offset[i] > largest - command.global[i])
            return CL_INVALID_GLOBAL_OFFSET;
    }
    return CL_SUCCESS;
}

cl_int launch(cl_command_queue where, cl_command_type type, cl_kernel handle, cl_uint dimensions,
              const size_t* offset, const size_t* global, const size_t* local, cl_uint count,
              const cl_event* list, cl_event* out) {
    enqueueing call(where, type, count, list, out);
    if (call.error() != CL_SUCCESS)
        return call.error();
    kernel* const launched = from_handle<kernel>(handle);
    if (!launched)
        return CL_INVALID_KERNEL;
    if (&launched->owner().owner() != &call.owner())
        return CL_INVALID_CONTEXT;
    if (!launched->complete())
        return CL_INVALID_KERNEL_ARGS;
    const launch_limits& limits = limits_of(call.owner().gpu());
    auto command = make_command<commands::launch>();
    bool nothing = false;
    if (const cl_int error = set_range(command, limits, dimensions, offset, global, nothing))
        return error;
    for (cl_uint i = 0; i < 3; ++i)
        command.local[i] = local && i < dimensions ? local[i] : 1;
    if (nothing) // allowed since 2.1: only waits and tells
        return limits.version < CL_MAKE_VERSION(2, 1, 0) ? CL_INVALID_GLOBAL_WORK_SIZE : call.join();
    const cl_int error = check_local(limits, *launched, dimensions, global, local);
    if (error != CL_SUCCESS)
        return error;

    if (launched->may_write_read_only())
        call.owner().note_change();
    command.kernel = launched->id();
    command.flags = local ? VGPU_LAUNCH_LOCAL_SIZE : 0;
    return launched->with_arguments(
        [&](const codec::argument_list& arguments) { return call.send(command, arguments); });
}

// cl_khr_suggested_local_work_size: what a launch without a local size would be given.
cl_int suggest_group_size(cl_command_queue where, cl_kernel handle, cl_uint dimensions, const size_t* offset,
                          const size_t* global, size_t* suggested) {
    queue* const asked = from_handle<queue>(where);
    if (!asked)
        return CL_INVALID_COMMAND_QUEUE;
    kernel* const launched = from_handle<kernel>(handle);
    if (!launched)
        return CL_INVALID_KERNEL;
    if (&launched->owner().owner() != &asked->owner())
        return CL_INVALID_CONTEXT;
    device& gpu = asked->owner().gpu();
    if (!gpu.has_extension("cl_khr_suggested_local_work_size"))
        return CL_INVALID_OPERATION;
    if (!launched->complete())
        return CL_INVALID_KERNEL_ARGS;
    auto command = make_command<commands::suggested_group_size>();
    bool nothing = false;
    if (const cl_int error = set_range(command, limits_of(gpu), dimensions, offset, global, nothing))
        return error;
    if (nothing)
        return CL_INVALID_GLOBAL_WORK_SIZE;
    if (!suggested)
        return CL_INVALID_VALUE;

    connection& link = asked->owner().link();
    if ((known_commands(link) >> VGPU_CMD_SUGGESTED_GROUP_SIZE & 1) == 0)
        return CL_INVALID_OPERATION; // another host since a takeover
    command.queue = asked->id();
    command.kernel = launched->id();
    std::uint64_t size[3] = {1, 1, 1};
    std::uint64_t ticket = 0;
    const payload result{size, sizeof size, true};
    cl_int error = launched->with_arguments([&](const codec::argument_list& arguments) {
        return link.begin_call(make_outgoing(command, result, arguments), ticket);
    });
    if (error == CL_SUCCESS)
        error = link.finish_call(ticket, nullptr);
    if (error == CL_SUCCESS)
        std::copy_n(size, dimensions, suggested);
    return error;
}

const extension_function suggested_local_work_size{
    "cl_khr_suggested_local_work_size", VGPU_CMD_SUGGESTED_GROUP_SIZE, "clGetKernelSuggestedLocalWorkSizeKHR",
    untyped(entry<suggest_group_size>::call)};

} // namespace

namespace api {

cl_int enqueue_ndrange_kernel(cl_command_queue where, cl_kernel handle, cl_uint dimensions,
                              const size_t* offset, const size_t* global, const size_t* local, cl_uint count,
                              const cl_event* list, cl_event* out) {
    return launch(where, CL_COMMAND_NDRANGE_KERNEL, handle, dimensions, offset, global, local, count, list,
                  out);
}

cl_int enqueue_task(cl_command_queue where, cl_kernel handle, cl_uint count, const cl_event* list,
                    cl_event* out) {
    const size_t one = 1;
    return launch(where, CL_COMMAND_TASK, handle, 1, nullptr, &one, &one, count, list, out);
}

cl_int enqueue_native_kernel(cl_command_queue where, void(CL_CALLBACK*)(void*), void*, size_t, cl_uint,
                             const cl_mem*, const void**, cl_uint, const cl_event*, cl_event*) {
    return from_handle<queue>(where) ? CL_INVALID_OPERATION : CL_INVALID_COMMAND_QUEUE;
}

} // namespace api
} // namespace kagemusha::opencl
