// SPDX-License-Identifier: GPL-2.0-or-later
// validity: who asks the host's CUDA driver, in the name of a guest's program, for the proof that a libcudart
// wants of it (docs/adr/0028). It takes a process with the program's ids, which a backend cannot make, so the
// worker brings one. Without one, programs of CUDA's runtime are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "proto/abi/vgpu_cuda.h"

namespace kagemusha::gpu {

class validity_witness {
public:
    virtual ~validity_witness() = default;
    // Both return 0 or an error for the guest; they may take seconds. On the executor's thread only.
    virtual std::int32_t tables(vgpu_cuda_tables& out) = 0;
    // `uuid`: of the GPU that the program has.
    virtual std::int32_t ask(const vgpu_cuda_question& question, std::span<const std::byte, 16> uuid,
                             vgpu_cuda_proof& out) = 0;
};

// Once per process, before a device is opened. The second returns nullptr where there is none.
void use_validity_witness(std::unique_ptr<validity_witness> witness);
validity_witness* the_validity_witness();

} // namespace kagemusha::gpu
