// SPDX-License-Identifier: GPL-2.0-or-later
// Texture and surface objects: of arrays, of memory with rows, of linear memory.
#include "device.hpp"
#include "formats.hpp"

#include <cstring>

using namespace kagemusha;
using namespace kagemusha::ptx_driver;

namespace {

constexpr unsigned known_flags =
    CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION;

CUresult describe_array(const call& c, CUarray array, machine::texture& t) {
    if (!c.d.arrays.contains(array))
        return CUDA_ERROR_INVALID_HANDLE;
    const CUDA_ARRAY3D_DESCRIPTOR& shape = array->shape;
    format_of(shape.Format, shape.NumChannels, t.format);
    t.base = array->base;
    t.pitch = array->pitch;
    t.slice = array->slice;
    t.channels = shape.NumChannels;
    t.layered = (shape.Flags & CUDA_ARRAY3D_LAYERED) != 0;
    t.size[0] = static_cast<std::uint32_t>(shape.Width);
    t.size[1] = static_cast<std::uint32_t>(array->height());
    t.size[2] = static_cast<std::uint32_t>(array->depth());
    t.dimensions = shape.Height == 0 ? 1 : shape.Depth == 0 || t.layered ? 2 : 3;
    if (t.layered && t.dimensions == 1) // its layers are the second size
        t.size[1] = t.size[2];
    return CUDA_SUCCESS;
}

CUresult describe(const call& c, const CUDA_RESOURCE_DESC& from, machine::texture& t) {
    switch (from.resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        return describe_array(c, from.res.array.hArray, t);
    case CU_RESOURCE_TYPE_LINEAR: {
        const auto& linear = from.res.linear;
        if (!format_of(linear.format, linear.numChannels, t.format))
            return CUDA_ERROR_INVALID_VALUE;
        const std::size_t texels = linear.sizeInBytes / (machine::bytes_of(t.format) * linear.numChannels);
        if (texels == 0 || texels > linear_limit)
            return CUDA_ERROR_INVALID_VALUE;
        t.base = linear.devPtr;
        t.dimensions = 1;
        t.size[0] = static_cast<std::uint32_t>(texels);
        t.channels = linear.numChannels;
        t.outside[0] = machine::beyond::zero;
        return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
        const auto& rows = from.res.pitch2D;
        if (!format_of(rows.format, rows.numChannels, t.format) || rows.width == 0 || rows.height == 0 ||
            rows.width > side_limit || rows.height > side_limit || rows.pitchInBytes > side_limit * 16) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        t.base = rows.devPtr;
        t.pitch = rows.pitchInBytes;
        t.size[0] = static_cast<std::uint32_t>(rows.width);
        t.size[1] = static_cast<std::uint32_t>(rows.height);
        t.channels = rows.numChannels;
        return CUDA_SUCCESS;
    }
    default: // arrays with several levels
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult set_sampling(const CUDA_TEXTURE_DESC& how, bool of_linear_memory, machine::texture& t) {
    if ((how.flags & ~known_flags) != 0)
        return (how.flags & CU_TRSF_SRGB) != 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    if (how.filterMode != CU_TR_FILTER_MODE_POINT && how.filterMode != CU_TR_FILTER_MODE_LINEAR)
        return CUDA_ERROR_INVALID_VALUE;
    // Numbers of 32 bits are read as they are, and not between texels.
    const bool integer = t.format == machine::texel::u32 || t.format == machine::texel::s32;
    t.linear = how.filterMode == CU_TR_FILTER_MODE_LINEAR && !integer && !of_linear_memory;
    t.as_integer = (how.flags & CU_TRSF_READ_AS_INTEGER) != 0 || integer;
    t.normalized = (how.flags & CU_TRSF_NORMALIZED_COORDINATES) != 0 && !of_linear_memory;
    std::memcpy(t.border, how.borderColor, sizeof t.border);
    for (unsigned d = 0; d < 3; d++) {
        const CUaddress_mode mode = how.addressMode[d];
        if (mode < CU_TR_ADDRESS_MODE_WRAP || mode > CU_TR_ADDRESS_MODE_BORDER)
            return CUDA_ERROR_INVALID_VALUE;
        // Places in units of texels do not wrap: they are clamped.
        const bool turns = mode == CU_TR_ADDRESS_MODE_WRAP || mode == CU_TR_ADDRESS_MODE_MIRROR;
        if (!of_linear_memory) {
            t.outside[d] =
                turns && !t.normalized ? machine::beyond::clamp : static_cast<machine::beyond>(mode);
        }
    }
    return CUDA_SUCCESS;
}

unsigned long long keep(const call& c, const machine::texture& t, const CUDA_RESOURCE_DESC& resource,
                        const CUDA_TEXTURE_DESC& how) {
    // Always the smallest that is free: it follows from what there is, and not from what there was, so a standby that came
    // later gives out the same.
    unsigned long long number = 0;
    if (c.d.free_textures.empty())
        number = ++c.d.last_texture;
    else
        number = c.d.free_textures.extract(c.d.free_textures.begin()).value();
    c.d.textures[number] = t;
    c.d.texture_descriptions[number] = {resource, how, c.c};
    return number;
}

// The description of an object of this kind, or null.
const texture_description* known(const call& c, unsigned long long number, bool surface) {
    const auto it = c.d.textures.find(number);
    return it != c.d.textures.end() && it->second.surface == surface ? &c.d.texture_descriptions[number]
                                                                     : nullptr;
}

CUresult destroy(unsigned long long number, bool surface) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    if (known(c, number, surface) == nullptr)
        return CUDA_ERROR_INVALID_HANDLE;
    c.d.textures.erase(number);
    c.d.free_textures.insert(number);
    c.d.texture_descriptions.erase(number);
    return CUDA_SUCCESS;
}

template <class Read>
CUresult about(unsigned long long number, bool surface, const void* out, Read read) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    const texture_description* const t = known(c, number, surface);
    if (t == nullptr || out == nullptr)
        return t == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    read(*t);
    return CUDA_SUCCESS;
}

} // namespace

CUresult cuTexObjectCreate(CUtexObject* out, const CUDA_RESOURCE_DESC* resource, const CUDA_TEXTURE_DESC* how,
                           const CUDA_RESOURCE_VIEW_DESC* view) {
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    if (out == nullptr || resource == nullptr || how == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    if (view != nullptr)
        return CUDA_ERROR_NOT_SUPPORTED;
    machine::texture t;
    CUresult r = describe(c, *resource, t);
    if (r == CUDA_SUCCESS)
        r = set_sampling(*how, resource->resType == CU_RESOURCE_TYPE_LINEAR, t);
    if (r == CUDA_SUCCESS)
        *out = keep(c, t, *resource, *how);
    return r;
}

CUresult cuSurfObjectCreate(CUsurfObject* out, const CUDA_RESOURCE_DESC* resource) {
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    if (out == nullptr || resource == nullptr || resource->resType != CU_RESOURCE_TYPE_ARRAY)
        return CUDA_ERROR_INVALID_VALUE;
    machine::texture t;
    const CUresult r = describe(c, *resource, t);
    if (r == CUDA_SUCCESS && (resource->res.array.hArray->shape.Flags & CUDA_ARRAY3D_SURFACE_LDST) == 0)
        return CUDA_ERROR_INVALID_VALUE; // it was not made for that
    if (r == CUDA_SUCCESS) {
        t.surface = true;
        *out = keep(c, t, *resource, {});
    }
    return r;
}

CUresult cuTexObjectDestroy(CUtexObject object) {
    return destroy(object, false);
}
CUresult cuSurfObjectDestroy(CUsurfObject object) {
    return destroy(object, true);
}
CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUtexObject object) {
    return about(object, false, out, [&](const texture_description& t) { *out = t.resource; });
}
CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* out, CUtexObject object) {
    return about(object, false, out, [&](const texture_description& t) { *out = t.how; });
}
CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUsurfObject object) {
    return about(object, true, out, [&](const texture_description& t) { *out = t.resource; });
}
