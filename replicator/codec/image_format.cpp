// SPDX-License-Identifier: GPL-2.0-or-later
// Sizes of image elements as the OpenCL 3.0 specification, "Image Format Mapping", defines them.
#include "codec/image_format.hpp"

#include "codec/cl_numbers.hpp"

namespace kagemusha::codec {

namespace {

// CL_R … CL_ABGR in the order of their numbers.
constexpr std::uint32_t first_order = 0x10B0;
constexpr std::uint8_t order_channels[] = {
    1, // CL_R
    1, // CL_A
    2, // CL_RG
    2, // CL_RA
    3, // CL_RGB
    4, // CL_RGBA
    4, // CL_BGRA
    4, // CL_ARGB
    1, // CL_INTENSITY
    1, // CL_LUMINANCE
    2, // CL_Rx
    3, // CL_RGx
    4, // CL_RGBx
    1, // CL_DEPTH
    0, // CL_DEPTH_STENCIL: only through extensions that share with graphics
    3, // CL_sRGB
    4, // CL_sRGBx
    4, // CL_sRGBA
    4, // CL_sBGRA
    4, // CL_ABGR
};
constexpr std::uint32_t order_rgb = 0x10B4;
constexpr std::uint32_t order_rgba = 0x10B5;
constexpr std::uint32_t order_rgbx = 0x10BC;

// CL_SNORM_INT8 … CL_UNORM_INT_101010_2: bytes of a channel; a negative number: bytes of a packed element.
constexpr std::uint32_t first_type = 0x10D0;
constexpr std::int8_t type_bytes[] = {
    1,  // CL_SNORM_INT8
    2,  // CL_SNORM_INT16
    1,  // CL_UNORM_INT8
    2,  // CL_UNORM_INT16
    -2, // CL_UNORM_SHORT_565
    -2, // CL_UNORM_SHORT_555
    -4, // CL_UNORM_INT_101010
    1,  // CL_SIGNED_INT8
    2,  // CL_SIGNED_INT16
    4,  // CL_SIGNED_INT32
    1,  // CL_UNSIGNED_INT8
    2,  // CL_UNSIGNED_INT16
    4,  // CL_UNSIGNED_INT32
    2,  // CL_HALF_FLOAT
    4,  // CL_FLOAT
    0,  // CL_UNORM_INT24: only through extensions that share with graphics
    -4, // CL_UNORM_INT_101010_2
};
constexpr std::uint32_t type_101010_2 = 0x10E0;

} // namespace

std::uint32_t image_element_bytes(std::uint32_t channel_order, std::uint32_t channel_type) {
    const std::uint32_t order = channel_order - first_order;
    const std::uint32_t type = channel_type - first_type;
    if (order >= sizeof(order_channels) || type >= sizeof(type_bytes))
        return 0;
    const int bytes = type_bytes[type];
    if (bytes >= 0)
        return order_channels[order] * static_cast<std::uint32_t>(bytes);
    const bool packs_rgb = channel_order == order_rgb || channel_order == order_rgbx;
    const bool allowed = channel_type == type_101010_2 ? channel_order == order_rgba : packs_rgb;
    return allowed ? static_cast<std::uint32_t>(-bytes) : 0;
}

image_extent image_extent_of(const vgpu_cmd_create_image& image) {
    switch (image.image_type) {
    case cl_mem_object_image2d:
        return {{image.width, image.height, 1}};
    case cl_mem_object_image3d:
        return {{image.width, image.height, image.depth}};
    case cl_mem_object_image2d_array:
        return {{image.width, image.height, image.array_size}};
    case cl_mem_object_image1d_array:
        return {{image.width, image.array_size, 1}};
    default: // one dimension
        return {{image.width, 1, 1}};
    }
}

} // namespace kagemusha::codec
