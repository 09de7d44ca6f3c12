// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_boxes: copies with pitches and copies of arrays, each one call of CUDA's copy of a box. `rest` gets what
// has to stay until the copy is over; it is null for copies that do not leave the GPU.
#pragma once

#include <memory>

#include "gpu/cuda/cuda_device.hpp"

namespace kagemusha::gpu {

using cuda_rest = std::unique_ptr<cuda_copy_back>;

CUresult move_rect(const cuda_api& api, CUstream stream, const codec::op_transfer_rect& op,
                   const cuda_memory& memory, const payload_ptr& data, cuda_rest& rest);
CUresult copy_rect(const cuda_api& api, CUstream stream, const vgpu_cmd_copy_rect& c,
                   const cuda_memory& source, const cuda_memory& destination);
CUresult move_image(const cuda_api& api, CUstream stream, const codec::op_transfer_image& op,
                    const cuda_array& image, const payload_ptr& data, cuda_rest& rest);
CUresult copy_image(const cuda_api& api, CUstream stream, const vgpu_cmd_copy_image& c,
                    const cuda_array& source, const cuda_array& destination);
CUresult copy_image_buffer(const cuda_api& api, CUstream stream,
                           const resolved<codec::op_copy_image_buffer>& r);

} // namespace kagemusha::gpu
