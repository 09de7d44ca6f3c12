// SPDX-License-Identifier: GPL-2.0-or-later
//
// Sizes of image elements.
#pragma once

#include "opencl_headers.hpp"

#include <cstddef>

namespace kagemusha::opencl {

// Bytes of one element, 0 if order and type do not go together or are unknown.
std::size_t element_bytes(const cl_image_format& format) noexcept;

} // namespace kagemusha::opencl
