// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_clusters: what the driver says of clusters of blocks, whose number follows from how a GPU's multiprocessors
// are grouped, which nothing else tells; and what a function must be allowed before.
#include <CL/cl.h>

#include <algorithm>
#include <cstring>

#include "gpu/cuda/cuda_device.hpp"
#include "proto/abi/vgpu_cuda.h"

namespace kagemusha::gpu {

std::int32_t raise_limits(const cuda_api& api, cuda_kernel& kernel, std::uint64_t shared, bool wide) {
    if (shared > static_cast<std::uint64_t>(std::max(kernel.shared_limit, 0))) {
        if (const CUresult result = api.cuFuncSetAttribute(
                kernel.native, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(shared)))
            return cuda_error(result);
        kernel.shared_limit = static_cast<int>(shared);
    }
    if (wide && !kernel.wide_clusters) {
        if (const CUresult result =
                api.cuFuncSetAttribute(kernel.native, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))
            return cuda_error(result);
        kernel.wide_clusters = true;
    }
    return CL_SUCCESS;
}

std::int32_t cuda_device::count_clusters(cuda_kernel& kernel, std::span<const std::byte> input,
                                         std::vector<std::byte>& result) const {
    vgpu_cuda_clusters asked{};
    constexpr std::uint32_t most_shared = 1u << 20; // more than any GPU has
    if (input.size() != sizeof asked)
        return CL_INVALID_VALUE;
    std::memcpy(&asked, input.data(), sizeof asked);
    if (asked.shared_bytes > most_shared || asked.wide > 1)
        return CL_INVALID_VALUE;
    if (const std::int32_t error = raise_limits(api_, kernel, asked.shared_bytes, asked.wide != 0))
        return error;
    CUlaunchAttribute cluster{};
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    std::copy_n(asked.cluster, 3, &cluster.value.clusterDim.x);
    CUlaunchConfig config{};
    std::copy_n(asked.grid, 3, &config.gridDimX);
    std::copy_n(asked.group, 3, &config.blockDimX);
    config.sharedMemBytes = asked.shared_bytes;
    config.attrs = &cluster;
    config.numAttrs = asked.cluster[0] != 0 ? 1 : 0;
    int active = 0, largest = 0;
    if (const CUresult error = api_.cuOccupancyMaxPotentialClusterSize(&largest, kernel.native, &config))
        return cuda_error(error);
    if (const CUresult error = api_.cuOccupancyMaxActiveClusters(&active, kernel.native, &config))
        return cuda_error(error);
    const std::uint32_t answer[2] = {static_cast<std::uint32_t>(std::max(active, 0)),
                                     static_cast<std::uint32_t>(std::max(largest, 0))};
    return give(result, answer);
}

} // namespace kagemusha::gpu
