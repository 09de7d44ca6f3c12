// SPDX-License-Identifier: GPL-2.0-or-later
// image: the PTX inside what a program hands to cuModuleLoadData: text, a fat binary or its wrapper.
#ifndef KAGEMUSHA_PTX_DRIVER_IMAGE_HPP
#define KAGEMUSHA_PTX_DRIVER_IMAGE_HPP

#include "proto/cuda/types.h"

#include <string>

namespace kagemusha::ptx_driver {

// `image` is readable as far as its own lengths say; nothing of it is kept. Of several PTX texts the one for
// the newest device. An image with machine code or compressed PTX alone: CUDA_ERROR_NO_BINARY_FOR_GPU.
CUresult ptx_of(const void* image, std::string& text);

} // namespace kagemusha::ptx_driver

#endif
