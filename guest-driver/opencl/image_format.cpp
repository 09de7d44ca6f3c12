// SPDX-License-Identifier: GPL-2.0-or-later
//
// The tables of channel orders and channel types of the OpenCL specification, section 5.3.1.1.
#include "image_format.hpp"

namespace kagemusha::opencl {
namespace {

std::size_t channels(cl_channel_order order) {
    switch (order) {
    case CL_R:
    case CL_A:
    case CL_INTENSITY:
    case CL_LUMINANCE:
    case CL_DEPTH:
    case CL_Rx:
        return 1;
    case CL_RG:
    case CL_RA:
    case CL_RGx:
        return 2;
    case CL_RGB:
    case CL_RGBx:
    case CL_sRGB:
        return 3;
    case CL_RGBA:
    case CL_BGRA:
    case CL_ARGB:
    case CL_ABGR:
    case CL_sRGBA:
    case CL_sBGRA:
    case CL_sRGBx:
        return 4;
    default:
        return 0;
    }
}

} // namespace

std::size_t element_bytes(const cl_image_format& format) noexcept {
    const std::size_t count = channels(format.image_channel_order);
    switch (format.image_channel_data_type) {
    case CL_SNORM_INT8:
    case CL_UNORM_INT8:
    case CL_SIGNED_INT8:
    case CL_UNSIGNED_INT8:
        return count;
    case CL_SNORM_INT16:
    case CL_UNORM_INT16:
    case CL_SIGNED_INT16:
    case CL_UNSIGNED_INT16:
    case CL_HALF_FLOAT:
        return count * 2;
    case CL_SIGNED_INT32:
    case CL_UNSIGNED_INT32:
    case CL_FLOAT:
        return count * 4;
    // Packed: the whole element in one word.
    case CL_UNORM_SHORT_565:
    case CL_UNORM_SHORT_555:
        return format.image_channel_order == CL_RGB || format.image_channel_order == CL_RGBx ? 2 : 0;
    case CL_UNORM_INT_101010:
        return format.image_channel_order == CL_RGB || format.image_channel_order == CL_RGBx ? 4 : 0;
    case CL_UNORM_INT_101010_2:
        return format.image_channel_order == CL_RGBA ? 4 : 0;
    default:
        return 0;
    }
}

} // namespace kagemusha::opencl
