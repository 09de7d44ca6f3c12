// SPDX-License-Identifier: GPL-2.0-or-later
//
// Functions and launches. A launch takes as many bytes for each parameter as the host's driver said, and names
// everything that it needs: the host keeps nothing of what a program set for a function.
#include "driver.hpp"
#include "lasting.hpp"
#include "node_work.hpp"
#include "pinned.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace kagemusha::cuda {
namespace {

// The bytes of one parameter, wherever the program put them.
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
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2)
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            given.block = static_cast<const std::byte*>(extra[1]);
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            given.block_bytes = *static_cast<const std::size_t*>(extra[1]);
        else
            return false;
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

// Sends a launch with what a program gave, wherever that is.
CUresult send_launch(stream& where, const function& called, const launch_shape& size,
                     const given_parameters& given) {
    auto command = opencl::make_command<vgpu_cmd_launch>(VGPU_CMD_LAUNCH);
    command.kernel = called.id;
    command.work_dim = 3;
    command.flags = VGPU_LAUNCH_LOCAL_SIZE | (size.cooperative ? VGPU_LAUNCH_COOPERATIVE : 0u) |
                    (size.has_clusters() ? VGPU_LAUNCH_CLUSTERS : 0u);
    for (int d = 0; d < 3; ++d) {
        command.global[d] = std::uint64_t{size.grid[d]} * size.block[d];
        command.local[d] = size.block[d];
        command.offset[d] = size.has_clusters() ? size.cluster[d] : 0;
    }
    auto& arguments =
        lasting_of_thread<std::vector<std::byte>, struct launch_arguments>(); // keeps its memory
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
    pinned_use use(where);
    if (const CUresult error = use.launch(arguments))
        return error;
    {
        const sending counted(where);
        opencl::enqueueing call(opencl::to_handle<cl_command_queue>(where.native.get()),
                                CL_COMMAND_NDRANGE_KERNEL, 0, nullptr, nullptr);
        const cl_int error = call.error() != CL_SUCCESS
                                 ? call.error()
                                 : call.send(command, {{arguments.data(), arguments.size()}});
        if (error != CL_SUCCESS)
            return cuda_result(error);
    }
    use.sent();
    return CUDA_SUCCESS;
}

int attribute_of(const device& gpu, CUdevice_attribute which) {
    return gpu.known.attributes[which];
}

// What a driver reports at once, and not when the kernel was to begin.
CUresult check_shape(const function& called, const launch_shape& size) {
    const device& gpu = *called.owner->owner->gpu;
    std::uint64_t threads = 1;
    for (int d = 0; d < 3; ++d) {
        const auto most_blocks =
            attribute_of(gpu, static_cast<CUdevice_attribute>(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + d));
        const auto most_threads =
            attribute_of(gpu, static_cast<CUdevice_attribute>(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + d));
        if (size.grid[d] == 0 || size.block[d] == 0 || size.grid[d] > static_cast<unsigned>(most_blocks) ||
            size.block[d] > static_cast<unsigned>(most_threads))
            return CUDA_ERROR_INVALID_VALUE;
        threads *= size.block[d];
    }
    if (threads > static_cast<unsigned>(attribute_of(gpu, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)))
        return CUDA_ERROR_INVALID_VALUE;
    if (threads > static_cast<unsigned>(called.attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK]))
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    if (size.shared_bytes >
        static_cast<unsigned>(std::max(called.shared_limit.load(std::memory_order_relaxed), 0)))
        return CUDA_ERROR_INVALID_VALUE;
    if (!size.has_clusters())
        return CUDA_SUCCESS;
    if (attribute_of(gpu, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) == 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    constexpr std::uint64_t portable = 8, most = 16;
    const std::uint64_t blocks = std::uint64_t{size.cluster[0]} * size.cluster[1] * size.cluster[2];
    if (blocks > (called.wide_clusters ? most : portable))
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    for (int d = 0; d < 3; ++d)
        if (size.grid[d] % size.cluster[d] != 0)
            return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    return CUDA_SUCCESS;
}

// Takes the parameters, for a launch that is later.
CUresult take_parameters(kernel_work& to, const given_parameters& given) {
    to.block.assign(to.called->block_bytes, std::byte{0});
    for (std::size_t i = 0; i < to.called->parameters.size(); ++i) {
        const vgpu_cuda_parameter& one = to.called->parameters[i];
        const void* const value = given.of(i, one);
        if (!value)
            return CUDA_ERROR_INVALID_VALUE;
        std::memcpy(to.block.data() + one.offset, value, one.bytes);
    }
    return CUDA_SUCCESS;
}

bool read_parameters(void** parameters, void** extra, given_parameters& given) {
    given.each = parameters;
    return !(parameters && extra) && (!extra || read_extra(extra, given));
}

CUresult launch(stream& where, CUfunction handle, const launch_shape& size, void** parameters, void** extra) {
    CUresult error = CUDA_SUCCESS;
    const function* const called = function_of(handle, *where.owner, error);
    if (!called)
        return error;
    if (called->owner->owner != where.owner)
        return CUDA_ERROR_INVALID_CONTEXT;
    given_parameters given;
    if (!read_parameters(parameters, extra, given))
        return CUDA_ERROR_INVALID_VALUE;
    if ((error = check_shape(*called, size)))
        return error;
    if (where.owner->detours.load(std::memory_order_acquire) == 0) [[likely]]
        return send_launch(where, *called, size, given);
    kernel_work later(*called, size);
    error = take_parameters(later, given);
    return error ? error : submit(where, std::move(later));
}

template <class Body>
CUresult of_function(CUfunction handle, Body&& body) noexcept {
    return guarded([&] {
        if (!the_driver().ready)
            return CUDA_ERROR_NOT_INITIALIZED;
        CUresult error = CUDA_SUCCESS;
        function* one = object_of<function>(the_driver().functions, handle);
        if (!one) { // a library's kernel, in the current context
            context* const where = current(error);
            one = where ? function_of(handle, *where, error) : nullptr;
        }
        return one ? body(*one) : error;
    });
}

// What a launch asks for beside its grid. Events: the second names when they are recorded.
CUresult read_attributes(const CUlaunchConfig& config, launch_shape& size, CUevent& behind) {
    for (unsigned i = 0; i < config.numAttrs; ++i) {
        const CUlaunchAttribute& one = config.attrs[i];
        switch (one.id) {
        case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
            size.cooperative = one.value.cooperative != 0;
            break;
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: {
            const auto& cluster = one.value.clusterDim;
            if (cluster.x == 0 || cluster.y == 0 || cluster.z == 0)
                return CUDA_ERROR_INVALID_VALUE;
            size.cluster[0] = cluster.x;
            size.cluster[1] = cluster.y;
            size.cluster[2] = cluster.z;
            break;
        }
        // Recorded when the kernel is done, and not earlier, which nobody can tell from a slow kernel.
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
            behind = one.value.programmaticEvent.event;
            break;
        case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
            behind = one.value.launchCompletionEvent.event;
            break;
        // Hints; and a kernel that may begin before the one before it has ended begins behind it.
        case CU_LAUNCH_ATTRIBUTE_IGNORE:
        case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
        case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
        case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            break;
        default:
            return CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    return CUDA_SUCCESS;
}

} // namespace

CUresult kernel_work::run(stream& where) {
    if (!the_driver().functions.has(called)) // of a graph that outlived its module
        return CUDA_ERROR_INVALID_HANDLE;
    given_parameters given;
    given.block = block.data();
    given.block_bytes = block.size();
    return send_launch(where, *called, shape, given);
}

CUresult kernel_work::check() const {
    return the_driver().functions.has(called) ? check_shape(*called, shape) : CUDA_SUCCESS; // run() says it
}

std::unique_ptr<work> kernel_node(const CUDA_KERNEL_NODE_PARAMS* params, bool whole, CUresult& error) {
    error = CUDA_ERROR_INVALID_VALUE;
    if (!params)
        return nullptr;
    context* const where = current(error);
    auto handle = params->func;
    if (!handle && whole)
        handle = reinterpret_cast<CUfunction>(params->kern);
    const function* const called = where ? function_of(handle, *where, error) : nullptr;
    if (!called)
        return nullptr;
    launch_shape size;
    const unsigned sizes[] = {params->gridDimX,  params->gridDimY,  params->gridDimZ,
                              params->blockDimX, params->blockDimY, params->blockDimZ};
    std::copy(sizes, sizes + 3, size.grid);
    std::copy(sizes + 3, sizes + 6, size.block);
    size.shared_bytes = params->sharedMemBytes;
    given_parameters given;
    auto made = std::make_unique<kernel_work>(*called, size);
    error = !read_parameters(params->kernelParams, params->extra, given) ? CUDA_ERROR_INVALID_VALUE
                                                                         : check_shape(*called, size);
    if (!error)
        error = take_parameters(*made, given);
    return error ? nullptr : std::move(made);
}

bool report_kernel_node(const work* what, CUDA_KERNEL_NODE_PARAMS& params, bool whole) {
    const auto* const one = dynamic_cast<const kernel_work*>(what);
    if (!one)
        return false;
    one->pointers.clear();
    for (const vgpu_cuda_parameter& parameter : one->called->parameters)
        one->pointers.push_back(const_cast<std::byte*>(one->block.data()) + parameter.offset);
    params.func = reinterpret_cast<CUfunction>(const_cast<function*>(one->called));
    params.gridDimX = one->shape.grid[0];
    params.gridDimY = one->shape.grid[1];
    params.gridDimZ = one->shape.grid[2];
    params.blockDimX = one->shape.block[0];
    params.blockDimY = one->shape.block[1];
    params.blockDimZ = one->shape.block[2];
    params.sharedMemBytes = one->shape.shared_bytes;
    params.kernelParams = one->pointers.data();
    params.extra = nullptr;
    if (whole) {
        params.kern = nullptr;
        params.ctx = reinterpret_cast<CUcontext>(one->called->owner->owner);
    }
    return true;
}

KAGEMUSHA_EXPORT CUresult cuLaunchKernel(CUfunction handle, unsigned int grid_x, unsigned int grid_y,
                                         unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                         unsigned int block_z, unsigned int shared_bytes, CUstream where,
                                         void** parameters, void** extra) {
    return in_stream(where, [&](stream& in) {
        return launch(in, handle, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes},
                      parameters, extra);
    });
}

KAGEMUSHA_EXPORT CUresult cuLaunchCooperativeKernel(CUfunction handle, unsigned int grid_x,
                                                    unsigned int grid_y, unsigned int grid_z,
                                                    unsigned int block_x, unsigned int block_y,
                                                    unsigned int block_z, unsigned int shared_bytes,
                                                    CUstream where, void** parameters) {
    return in_stream(where, [&](stream& in) {
        launch_shape size{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
        size.cooperative = true;
        return launch(in, handle, size, parameters, nullptr);
    });
}

KAGEMUSHA_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction handle, void** parameters,
                                           void** extra) {
    if (!config || (config->numAttrs > 0 && !config->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    return in_stream(config->hStream, [&](stream& in) {
        launch_shape size{{config->gridDimX, config->gridDimY, config->gridDimZ},
                          {config->blockDimX, config->blockDimY, config->blockDimZ},
                          config->sharedMemBytes};
        CUevent behind = nullptr;
        CUresult error = read_attributes(*config, size, behind);
        if (!error)
            error = launch(in, handle, size, parameters, extra);
        return error || !behind ? error : cuEventRecord(behind, config->hStream);
    });
}

// ---- functions

KAGEMUSHA_ANSWERED CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute,
                                               CUfunction handle) {
    return of_function(handle, [&](const function& one) {
        if (!value || static_cast<unsigned>(attribute) >= VGPU_CUDA_FUNCTION_ATTRIBUTES)
            return CUDA_ERROR_INVALID_VALUE;
        switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            *value = one.shared_limit;
            break;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            *value = one.carveout;
            break;
        case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
            *value = one.wide_clusters;
            break;
        default:
            *value = one.attributes[attribute];
        }
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
    return of_function(handle, [&](function& one) {
        const device& gpu = *one.owner->owner->gpu;
        switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: {
            const int most =
                std::max(attribute_of(gpu, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
                         attribute_of(gpu, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)) -
                one.attributes[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES];
            if (value < 0 || value > most)
                return CUDA_ERROR_INVALID_VALUE;
            one.shared_limit = value;
            return CUDA_SUCCESS;
        }
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: // a hint
            if (value < -1 || value > 100)
                return CUDA_ERROR_INVALID_VALUE;
            one.carveout = value;
            return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
            one.wide_clusters = value != 0;
            return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: // a hint
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
        }
    });
}

KAGEMUSHA_ANSWERED CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset,
                                               size_t* bytes) {
    return of_function(handle, [&](const function& one) {
        if (index >= one.parameters.size() || !offset)
            return CUDA_ERROR_INVALID_VALUE;
        *offset = one.parameters[index].offset;
        if (bytes)
            *bytes = one.parameters[index].bytes;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuFuncGetName(const char** name, CUfunction handle) {
    return of_function(handle, [&](const function& one) {
        if (!name)
            return CUDA_ERROR_INVALID_VALUE;
        *name = one.name.c_str();
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuFuncGetModule(CUmodule* owner, CUfunction handle) {
    return of_function(handle, [&](const function& one) {
        if (!owner)
            return CUDA_ERROR_INVALID_VALUE;
        *owner = reinterpret_cast<CUmodule>(one.owner);
        return CUDA_SUCCESS;
    });
}

// The host loaded it with its module.
KAGEMUSHA_ANSWERED CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction handle) {
    return of_function(handle, [&](const function&) {
        if (!state)
            return CUDA_ERROR_INVALID_VALUE;
        *state = CU_FUNCTION_LOADING_STATE_LOADED;
        return CUDA_SUCCESS;
    });
}
KAGEMUSHA_ANSWERED CUresult cuFuncLoad(CUfunction handle) {
    return of_function(handle, [](const function&) { return CUDA_SUCCESS; });
}

// Hints.
KAGEMUSHA_ANSWERED CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache) {
    return of_function(handle, [](const function&) { return CUDA_SUCCESS; });
}
KAGEMUSHA_ANSWERED CUresult cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig) {
    return of_function(handle, [](const function&) { return CUDA_SUCCESS; });
}

} // namespace kagemusha::cuda
