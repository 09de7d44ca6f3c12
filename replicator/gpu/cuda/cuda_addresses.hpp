// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_addresses: the range of arenas in this process (VGPU_ARENA_BASE), reserved in one piece. NVIDIA's
// driver gives a wanted address to large reservations only: 580 gave it for 32 MiB and 64 GiB, and another one
// for 2 MiB. So arenas are mapped into one reservation.
#pragma once

#include <memory>

#include "gpu/cuda/cuda_api.hpp"

namespace kagemusha::gpu {

class cuda_addresses {
public:
    // Of this process and library: the executors of a process share it. nullptr with CUDA's error, also when
    // the range is somebody else's. Any thread.
    static std::shared_ptr<const cuda_addresses> reserve(const cuda_api& api, CUresult& error);
    ~cuda_addresses();
    cuda_addresses(const cuda_addresses&) = delete;
    cuda_addresses& operator=(const cuda_addresses&) = delete;

private:
    explicit cuda_addresses(const cuda_api& api) : api_(api) {}
    const cuda_api& api_;
};

} // namespace kagemusha::gpu
