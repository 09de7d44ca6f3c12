// SPDX-License-Identifier: GPL-2.0-or-later
// formats: what arrays and textures share.
#pragma once

#include "api.hpp"

#include "ptx-device/machine/texture.hpp"

namespace kagemusha::ptx_driver {

constexpr std::size_t side_limit = 131072;                 // of an array or a texture of rows, in texels
constexpr std::size_t linear_limit = std::size_t{1} << 27; // of a texture of linear memory

// False: there is no such format, or none with so many channels.
bool format_of(CUarray_format f, unsigned channels, machine::texel& out);

} // namespace kagemusha::ptx_driver
