// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_addresses: see cuda_addresses.hpp.
#include "gpu/cuda/cuda_addresses.hpp"

#include <map>
#include <mutex>

#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::gpu {

std::shared_ptr<const cuda_addresses> cuda_addresses::reserve(const cuda_api& api, CUresult& error) {
    static std::mutex mutex;
    static std::map<const cuda_api*, std::weak_ptr<const cuda_addresses>> held;
    const std::lock_guard lock(mutex);
    if (auto present = held[&api].lock())
        return present;
    CUdeviceptr given = 0;
    error = api.cuMemAddressReserve(&given, VGPU_ARENA_RANGE_BYTES, 0, VGPU_ARENA_BASE, 0);
    if (error != CUDA_SUCCESS)
        return nullptr;
    if (given != VGPU_ARENA_BASE) {
        api.cuMemAddressFree(given, VGPU_ARENA_RANGE_BYTES);
        error = CUDA_ERROR_OUT_OF_MEMORY;
        return nullptr;
    }
    std::shared_ptr<const cuda_addresses> made(new cuda_addresses(api));
    held[&api] = made;
    return made;
}

cuda_addresses::~cuda_addresses() {
    api_.cuMemAddressFree(VGPU_ARENA_BASE, VGPU_ARENA_RANGE_BYTES);
}

} // namespace kagemusha::gpu
