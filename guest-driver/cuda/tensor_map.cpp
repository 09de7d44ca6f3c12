// SPDX-License-Identifier: GPL-2.0-or-later
//
// Tensor maps, which the host's driver encodes. A program often asks for the same one before each launch, so
// what was answered is kept: it follows from what was asked.
#include "driver.hpp"

#include "guest-driver/opencl/query.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace kagemusha::cuda {
namespace {

constexpr std::size_t max_kept = 1024; // maps of a device; then all are forgotten

template <class To, class From>
void copy_some(To* to, const From* from, unsigned count) {
    if (from)
        std::copy_n(from, count, to);
}

// What both kinds have.
vgpu_cuda_tensor_map described(unsigned data_type, cuuint32_t rank, void* address, const cuuint64_t* sizes,
                               const cuuint64_t* strides, const cuuint32_t* element_strides,
                               unsigned interleave, unsigned swizzle, unsigned promotion, unsigned fill) {
    vgpu_cuda_tensor_map asked{};
    asked.data_type = data_type;
    asked.interleave = interleave;
    asked.swizzle = swizzle;
    asked.promotion = promotion;
    asked.fill = fill;
    asked.rank = rank;
    asked.address = reinterpret_cast<std::uint64_t>(address);
    copy_some(asked.sizes, sizes, rank);
    copy_some(asked.strides, strides, rank - 1);
    copy_some(asked.element_strides, element_strides, rank);
    return asked;
}

CUresult encode(const vgpu_cuda_tensor_map& asked, CUtensorMap* map) {
    return in_context([&](const context& where) {
        static_assert(sizeof *map == VGPU_CUDA_TENSOR_MAP_BYTES);
        device& gpu = *where.gpu;
        const std::string key(reinterpret_cast<const char*>(&asked), sizeof asked);
        {
            const std::lock_guard held(gpu.mutex);
            if (const auto kept = gpu.tensor_maps.find(key); kept != gpu.tensor_maps.end()) {
                *map = kept->second;
                return CUDA_SUCCESS;
            }
        }
        const auto link = gpu.native->link();
        if (!link || !limit_of_host(gpu, CU_LIMIT_STACK_SIZE))
            return CUDA_ERROR_DEVICE_UNAVAILABLE;
        if (!gpu.knows_tensor_maps)
            return CUDA_ERROR_NOT_SUPPORTED;
        const auto input = std::as_bytes(std::span(&asked, 1));
        const opencl::answer told = opencl::ask(*link, {VGPU_INFO_DEVICE, VGPU_CUDA_TENSOR_MAP, 0, 0, input});
        if (told.error != CL_SUCCESS)
            return cuda_result(told.error);
        const auto encoded = told.as<std::array<cuuint64_t, 16>>();
        if (!encoded)
            return CUDA_ERROR_UNKNOWN;
        std::memcpy(map->opaque, encoded->data(), sizeof map->opaque);
        const std::lock_guard held(gpu.mutex);
        if (gpu.tensor_maps.size() == max_kept)
            gpu.tensor_maps.clear();
        gpu.tensor_maps.emplace(key, *map);
        return CUDA_SUCCESS;
    });
}

} // namespace

KAGEMUSHA_EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap* map, unsigned int data_type, cuuint32_t rank,
                                                 void* address, const cuuint64_t* sizes,
                                                 const cuuint64_t* strides, const cuuint32_t* box,
                                                 const cuuint32_t* element_strides, unsigned int interleave,
                                                 unsigned int swizzle, unsigned int promotion,
                                                 unsigned int fill) {
    if (!map || !sizes || !box || !element_strides || rank == 0 || rank > VGPU_CUDA_TENSOR_RANK ||
        (rank > 1 && !strides))
        return CUDA_ERROR_INVALID_VALUE;
    vgpu_cuda_tensor_map asked = described(data_type, rank, address, sizes, strides, element_strides,
                                           interleave, swizzle, promotion, fill);
    asked.kind = VGPU_CUDA_TENSOR_TILED;
    copy_some(asked.box, box, rank);
    return encode(asked, map);
}

KAGEMUSHA_EXPORT CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, unsigned int data_type, cuuint32_t rank,
                                                  void* address, const cuuint64_t* sizes,
                                                  const cuuint64_t* strides, const int* lower,
                                                  const int* upper, cuuint32_t channels, cuuint32_t pixels,
                                                  const cuuint32_t* element_strides, unsigned int interleave,
                                                  unsigned int swizzle, unsigned int promotion,
                                                  unsigned int fill) {
    if (!map || !sizes || !strides || !lower || !upper || !element_strides || rank < 3 ||
        rank > VGPU_CUDA_TENSOR_RANK)
        return CUDA_ERROR_INVALID_VALUE;
    vgpu_cuda_tensor_map asked = described(data_type, rank, address, sizes, strides, element_strides,
                                           interleave, swizzle, promotion, fill);
    asked.kind = VGPU_CUDA_TENSOR_IM2COL;
    asked.channels = channels;
    asked.pixels = pixels;
    copy_some(asked.lower, lower, rank - 2);
    copy_some(asked.upper, upper, rank - 2);
    return encode(asked, map);
}

KAGEMUSHA_EXPORT CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
    if (!map)
        return CUDA_ERROR_INVALID_VALUE;
    vgpu_cuda_tensor_map asked{};
    asked.kind = VGPU_CUDA_TENSOR_ADDRESS;
    asked.address = reinterpret_cast<std::uint64_t>(address);
    std::memcpy(asked.map, map->opaque, sizeof asked.map);
    return encode(asked, map);
}

} // namespace kagemusha::cuda
