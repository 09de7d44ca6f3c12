// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_tensor_maps: tensor maps for a guest. The driver encodes them, because what is in one is not documented.
// A guest may ask for anything: the driver checks what it is told, and no address in it is followed here.
#include <CL/cl.h>

#include <algorithm>
#include <cstring>

#include "gpu/cuda/cuda_device.hpp"
#include "proto/abi/vgpu_cuda.h"

namespace kagemusha::gpu {

std::int32_t cuda_device::encode_tensor_map(std::span<const std::byte> input,
                                            std::vector<std::byte>& result) const {
    static_assert(sizeof(CUtensorMap) == VGPU_CUDA_TENSOR_MAP_BYTES);
    static_assert(KVG_CUDA_TENSOR_MAX_RANK == VGPU_CUDA_TENSOR_RANK);
    vgpu_cuda_tensor_map asked{};
    if (input.size() != sizeof asked)
        return CL_INVALID_VALUE;
    std::memcpy(&asked, input.data(), sizeof asked);
    if (asked.kind != VGPU_CUDA_TENSOR_ADDRESS && (asked.rank == 0 || asked.rank > VGPU_CUDA_TENSOR_RANK))
        return CL_INVALID_VALUE;
    auto* const address = reinterpret_cast<void*>(asked.address);
    cuuint64_t sizes[VGPU_CUDA_TENSOR_RANK], strides[VGPU_CUDA_TENSOR_RANK];
    std::ranges::copy(asked.sizes, sizes);
    std::ranges::copy(asked.strides, strides);
    CUtensorMap map{};
    CUresult error = CUDA_ERROR_INVALID_VALUE;
    switch (asked.kind) {
    case VGPU_CUDA_TENSOR_TILED:
        error = api_.cuTensorMapEncodeTiled(&map, asked.data_type, asked.rank, address, sizes, strides,
                                            asked.box, asked.element_strides, asked.interleave, asked.swizzle,
                                            asked.promotion, asked.fill);
        break;
    case VGPU_CUDA_TENSOR_IM2COL:
        error = api_.cuTensorMapEncodeIm2col(&map, asked.data_type, asked.rank, address, sizes, strides,
                                             asked.lower, asked.upper, asked.channels, asked.pixels,
                                             asked.element_strides, asked.interleave, asked.swizzle,
                                             asked.promotion, asked.fill);
        break;
    case VGPU_CUDA_TENSOR_ADDRESS:
        std::memcpy(&map, asked.map, sizeof map);
        error = api_.cuTensorMapReplaceAddress(&map, address);
        break;
    default:
        break;
    }
    if (error != CUDA_SUCCESS)
        return cuda_error(error);
    return give(result, map);
}

} // namespace kagemusha::gpu
