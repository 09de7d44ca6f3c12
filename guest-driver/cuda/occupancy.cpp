// SPDX-License-Identifier: GPL-2.0-or-later
//
// The API's questions about occupancy, answered here from what is known about function and device.
#include "occupancy.hpp"

#include "driver.hpp"

#include "guest-driver/opencl/query.hpp"

#include <algorithm>

namespace kagemusha::cuda {
namespace {

int attribute_of(const device& gpu, CUdevice_attribute which) {
    return gpu.known.attributes[which];
}

multiprocessor multiprocessor_of(const device& gpu) {
    const auto number = [&](CUdevice_attribute which) {
        return static_cast<std::uint64_t>(std::max(attribute_of(gpu, which), 0));
    };
    multiprocessor made;
    made.capability = static_cast<unsigned>(number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) * 10 +
                                            number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
    made.threads = number(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    made.blocks = number(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
    made.registers = number(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
    made.shared_bytes = number(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    made.reserved_shared_bytes = number(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
    return made;
}

// What may stand for a function: a library's kernel too.
template <class Body>
CUresult of_function(CUfunction handle, Body&& body) noexcept {
    return in_context([&](context& where) {
        CUresult error = CUDA_SUCCESS;
        const function* const one = function_of(handle, where, error);
        return one ? body(*one) : error;
    });
}

std::uint64_t blocks_of(const function& of, int block_size, std::uint64_t dynamic) {
    const auto attribute = [&](CUfunction_attribute which) {
        return static_cast<std::uint64_t>(std::max(of.attributes[which], 0));
    };
    const device& gpu = *of.owner->owner->gpu;
    if (static_cast<unsigned>(block_size) > attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) ||
        dynamic > static_cast<std::uint64_t>(std::max<int>(of.shared_limit, 0)))
        return 0;
    return blocks_that_fit(multiprocessor_of(gpu),
                           {static_cast<unsigned>(block_size), attribute(CU_FUNC_ATTRIBUTE_NUM_REGS),
                            attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) + dynamic});
}

} // namespace

KAGEMUSHA_ANSWERED CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, CUfunction handle, int block_size, size_t dynamic, unsigned int flags) {
    return of_function(handle, [&](const function& one) {
        if (!blocks || block_size <= 0 || flags > 1)
            return CUDA_ERROR_INVALID_VALUE;
        *blocks = static_cast<int>(blocks_of(one, block_size, dynamic));
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction handle,
                                                                        int block_size, size_t dynamic) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, block_size, dynamic, 0);
}

// The size of whole warps with which most threads run; of equal ones the largest.
KAGEMUSHA_ANSWERED CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid_size, int* block_size,
                                                                      CUfunction handle,
                                                                      CUoccupancyB2DSize dynamic_of,
                                                                      size_t dynamic, int limit,
                                                                      unsigned int flags) {
    return of_function(handle, [&](const function& one) {
        if (!grid_size || !block_size || limit < 0 || flags > 1)
            return CUDA_ERROR_INVALID_VALUE;
        const device& gpu = *one.owner->owner->gpu;
        int most = one.attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
        if (limit > 0)
            most = std::min(most, limit);
        std::uint64_t best_threads = 0;
        *grid_size = *block_size = 0;
        constexpr int warp = 32;
        for (int size = most; size > 0; size = size % warp ? size - size % warp : size - warp) {
            const std::uint64_t blocks = blocks_of(one, size, dynamic_of ? dynamic_of(size) : dynamic);
            if (blocks * static_cast<unsigned>(size) <= best_threads)
                continue;
            best_threads = blocks * static_cast<unsigned>(size);
            *block_size = size;
            *grid_size =
                static_cast<int>(blocks) * attribute_of(gpu, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        }
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuOccupancyMaxPotentialBlockSize(int* grid_size, int* block_size,
                                                             CUfunction handle, CUoccupancyB2DSize dynamic_of,
                                                             size_t dynamic, int limit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid_size, block_size, handle, dynamic_of, dynamic,
                                                     limit, 0);
}

KAGEMUSHA_ANSWERED CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* dynamic, CUfunction handle,
                                                                    int blocks, int block_size) {
    return of_function(handle, [&](const function& one) {
        if (!dynamic || blocks <= 0 || block_size <= 0)
            return CUDA_ERROR_INVALID_VALUE;
        const device& gpu = *one.owner->owner->gpu;
        if (static_cast<std::uint64_t>(blocks) > blocks_of(one, block_size, 0))
            return CUDA_ERROR_INVALID_VALUE;
        const auto fixed = static_cast<std::uint64_t>(one.attributes[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES]);
        const std::uint64_t most = std::min<std::uint64_t>(
            shared_bytes_for(multiprocessor_of(gpu), static_cast<unsigned>(blocks)),
            static_cast<unsigned>(attribute_of(gpu, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)));
        *dynamic = most - std::min(most, fixed);
        return CUDA_SUCCESS;
    });
}

namespace {

// The host's driver knows how the GPU's multiprocessors are grouped.
struct cluster_answer {
    std::uint32_t active, largest;
};
CUresult ask_clusters(const function& one, const CUlaunchConfig& config, cluster_answer& told) {
    vgpu_cuda_clusters asked{};
    std::copy_n(&config.gridDimX, 3, asked.grid);
    std::copy_n(&config.blockDimX, 3, asked.group);
    for (unsigned i = 0; config.attrs && i < config.numAttrs; ++i)
        if (config.attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            std::copy_n(&config.attrs[i].value.clusterDim.x, 3, asked.cluster);
    asked.shared_bytes = config.sharedMemBytes;
    asked.wide = one.wide_clusters;
    if (config.sharedMemBytes > static_cast<unsigned>(std::max<int>(one.shared_limit, 0)))
        return CUDA_ERROR_INVALID_VALUE;
    const opencl::answer answered =
        opencl::ask(one.owner->owner->native->link(), {VGPU_INFO_KERNEL_SUB_GROUP, VGPU_CUDA_CLUSTERS, one.id,
                                                       0, std::as_bytes(std::span(&asked, 1))});
    if (const auto known = answered.as<cluster_answer>())
        told = *known;
    else
        return answered.error ? cuda_result(answered.error) : CUDA_ERROR_UNKNOWN;
    return CUDA_SUCCESS;
}

} // namespace

KAGEMUSHA_EXPORT CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction handle,
                                                       const CUlaunchConfig* config) {
    return of_function(handle, [&](const function& one) {
        cluster_answer told{};
        const CUresult error =
            clusters && config ? ask_clusters(one, *config, told) : CUDA_ERROR_INVALID_VALUE;
        if (!error)
            *clusters = static_cast<int>(told.active);
        return error;
    });
}

KAGEMUSHA_EXPORT CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction handle,
                                                             const CUlaunchConfig* config) {
    return of_function(handle, [&](const function& one) {
        cluster_answer told{};
        const CUresult error = size && config ? ask_clusters(one, *config, told) : CUDA_ERROR_INVALID_VALUE;
        if (!error)
            *size = static_cast<int>(told.largest);
        return error;
    });
}

} // namespace kagemusha::cuda
