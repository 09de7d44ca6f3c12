// SPDX-License-Identifier: GPL-2.0-or-later
// image: the PTX inside what a program hands to cuModuleLoadData or cuLinkAddData: text, a fat binary or its
// wrapper, or what a link made, which is an ELF file with a section for each text.
#pragma once

#include "proto/cuda/types.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kagemusha::ptx_driver {

// Of an image whose end only it knows.
constexpr std::size_t unknown_length = SIZE_MAX;

// Appends the texts of an image. It is readable as far as its own lengths say, which reach behind `bytes` in
// no image that is taken; nothing of it is kept. Of several PTX texts in a fat binary the one for the newest
// device. Machine code alone: CUDA_ERROR_NO_BINARY_FOR_GPU.
CUresult texts_of(const void* image, std::size_t bytes, std::vector<std::string>& texts);

// What cuLinkComplete gives.
std::vector<std::uint8_t> linked_image(const std::vector<std::string>& texts);

} // namespace kagemusha::ptx_driver
