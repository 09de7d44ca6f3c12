// SPDX-License-Identifier: GPL-2.0-or-later
// Texture objects over linear memory with rows, and copies of rectangles.
#include "device.hpp"

#include <cstring>

using namespace kagemusha;
using namespace kagemusha::ptx_driver;

namespace {

bool format_of(CUarray_format f, machine::texel& out) {
    switch (f) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
        out = machine::texel::u8;
        return true;
    case CU_AD_FORMAT_UNSIGNED_INT16:
        out = machine::texel::u16;
        return true;
    case CU_AD_FORMAT_UNSIGNED_INT32:
        out = machine::texel::u32;
        return true;
    case CU_AD_FORMAT_SIGNED_INT8:
        out = machine::texel::s8;
        return true;
    case CU_AD_FORMAT_SIGNED_INT16:
        out = machine::texel::s16;
        return true;
    case CU_AD_FORMAT_SIGNED_INT32:
        out = machine::texel::s32;
        return true;
    case CU_AD_FORMAT_FLOAT:
        out = machine::texel::f32;
        return true;
    default:
        return false;
    }
}

constexpr unsigned as_integer = 1, normalized = 2;
constexpr std::size_t side_limit = 131072;

} // namespace

CUresult cuTexObjectCreate(CUtexObject* out, const CUDA_RESOURCE_DESC* resource, const CUDA_TEXTURE_DESC* how,
                           const void* view) {
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS) {
        return c.result;
    }
    if (out == nullptr || resource == nullptr || how == nullptr || view != nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (resource->resType != CU_RESOURCE_TYPE_PITCH2D) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    const auto& rows = resource->res.pitch2D;
    machine::texture t;
    if (!format_of(rows.format, t.format) ||
        (rows.numChannels != 1 && rows.numChannels != 2 && rows.numChannels != 4) || rows.width == 0 ||
        rows.height == 0 || rows.width > side_limit || rows.height > side_limit ||
        rows.pitchInBytes > side_limit * 16) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned d = 0; d < 2; d++) {
        if (how->addressMode[d] < 0 || how->addressMode[d] > CU_TR_ADDRESS_MODE_BORDER) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    t.base = rows.devPtr;
    t.pitch = rows.pitchInBytes;
    t.width = static_cast<std::uint32_t>(rows.width);
    t.height = static_cast<std::uint32_t>(rows.height);
    t.channels = rows.numChannels;
    t.linear = how->filterMode == CU_TR_FILTER_MODE_LINEAR;
    t.as_integer = (how->flags & as_integer) != 0;
    t.normalized = (how->flags & normalized) != 0;
    // Places in units of texels do not wrap: they are clamped.
    const auto outside = [&](CUaddress_mode m) {
        const auto mode = static_cast<machine::beyond>(m);
        const bool turns = mode == machine::beyond::wrap || mode == machine::beyond::mirror;
        return turns && !t.normalized ? machine::beyond::clamp : mode;
    };
    t.x = outside(how->addressMode[0]);
    t.y = outside(how->addressMode[1]);
    std::memcpy(t.border, how->borderColor, sizeof t.border);
    *out = ++c.d.last_texture;
    c.d.textures[*out] = t;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectDestroy(CUtexObject object) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS) {
        return c.result;
    }
    return c.d.textures.erase(object) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

namespace {

struct rectangle {
    CUmemorytype kind;
    std::uint64_t base;
    std::size_t x, y, pitch;

    std::uint64_t row(std::size_t r) const { return base + (y + r) * pitch + x; }
};

CUresult copy_2d(const CUDA_MEMCPY2D* m, CUstream stream) {
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS) {
        return c.result;
    }
    if (m == nullptr || !is_stream(c, stream)) {
        return m == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    const std::uint64_t from_host = reinterpret_cast<std::uint64_t>(m->srcHost);
    const std::uint64_t to_host = reinterpret_cast<std::uint64_t>(m->dstHost);
    rectangle from{m->srcMemoryType, m->srcMemoryType == CU_MEMORYTYPE_HOST ? from_host : m->srcDevice,
                   m->srcXInBytes, m->srcY, m->srcPitch != 0 ? m->srcPitch : m->WidthInBytes};
    rectangle to{m->dstMemoryType, m->dstMemoryType == CU_MEMORYTYPE_HOST ? to_host : m->dstDevice,
                 m->dstXInBytes, m->dstY, m->dstPitch != 0 ? m->dstPitch : m->WidthInBytes};
    for (rectangle* r : {&from, &to}) {
        if (r->kind == CU_MEMORYTYPE_ARRAY) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        if (r->kind == CU_MEMORYTYPE_UNIFIED) { // ours, or else the program's own
            r->kind = c.d.memory.find(r->base) != nullptr ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        }
        if ((r->kind != CU_MEMORYTYPE_HOST && r->kind != CU_MEMORYTYPE_DEVICE) ||
            r->x + m->WidthInBytes > r->pitch || r->pitch > memory_bytes || r->y > memory_bytes ||
            m->Height > memory_bytes) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    for (std::size_t k = 0; m->WidthInBytes != 0 && k < m->Height;
         k++) { // nothing is copied of a copy that may not be
        if ((from.kind == CU_MEMORYTYPE_DEVICE && !c.d.memory.holds(from.row(k), m->WidthInBytes)) ||
            (to.kind == CU_MEMORYTYPE_DEVICE && !c.d.memory.holds(to.row(k), m->WidthInBytes, true))) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    for (std::size_t k = 0; m->WidthInBytes != 0 && k < m->Height; k++) {
        std::memmove(reinterpret_cast<void*>(to.row(k)), reinterpret_cast<const void*>(from.row(k)),
                     m->WidthInBytes);
    }
    return CUDA_SUCCESS;
}

} // namespace

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) {
    return copy_2d(copy, nullptr);
}
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) {
    return copy_2d(copy, nullptr);
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
    return copy_2d(copy, stream);
}
