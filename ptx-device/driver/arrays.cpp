// SPDX-License-Identifier: GPL-2.0-or-later
// Arrays: memory with a shape. Its rows lie one behind the other, which no program can see.
#include "device.hpp"
#include "formats.hpp"

using namespace kagemusha;
using namespace kagemusha::ptx_driver;

namespace kagemusha::ptx_driver {

bool format_of(CUarray_format f, unsigned channels, machine::texel& out) {
    if (channels != 1 && channels != 2 && channels != 4)
        return false;
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
    case CU_AD_FORMAT_HALF:
        out = machine::texel::f16;
        return true;
    case CU_AD_FORMAT_FLOAT:
        out = machine::texel::f32;
        return true;
    default:
        return false;
    }
}

} // namespace kagemusha::ptx_driver

CUresult cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* wanted) {
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    machine::texel format{};
    if (out == nullptr || wanted == nullptr || !format_of(wanted->Format, wanted->NumChannels, format))
        return CUDA_ERROR_INVALID_VALUE;
    const bool layered = (wanted->Flags & CUDA_ARRAY3D_LAYERED) != 0;
    if (wanted->Width == 0 || wanted->Width > side_limit || wanted->Height > side_limit ||
        wanted->Depth > side_limit || (layered && wanted->Depth == 0) ||
        (!layered && wanted->Depth != 0 && wanted->Height == 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((wanted->Flags & ~(CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST)) != 0)
        return CUDA_ERROR_NOT_SUPPORTED; // cube maps, gathering
    auto made = std::make_unique<CUarray_st>();
    made->shape = *wanted;
    made->owner = c.c;
    made->element = std::size_t{machine::bytes_of(format)} * wanted->NumChannels;
    made->pitch = made->element * wanted->Width;
    made->slice = made->pitch * made->height();
    // Three sides of at most 2^17 and 16 bytes do not overflow.
    made->base = c.d.take(made->slice * made->depth());
    if (made->base == 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = made.get();
    c.d.arrays[*out] = std::move(made);
    return CUDA_SUCCESS;
}

CUresult cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* wanted) {
    if (wanted == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR whole{wanted->Width,  wanted->Height,      0,
                                        wanted->Format, wanted->NumChannels, 0};
    return cuArray3DCreate_v2(out, &whole);
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* out, CUarray array) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    if (!c.d.arrays.contains(array))
        return CUDA_ERROR_INVALID_HANDLE;
    if (out == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    *out = array->shape;
    return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* out, CUarray array) {
    CUDA_ARRAY3D_DESCRIPTOR whole{};
    const CUresult r = cuArray3DGetDescriptor_v2(&whole, array);
    if (r == CUDA_SUCCESS && out == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS)
        *out = {whole.Width, whole.Height, whole.Format, whole.NumChannels};
    return r;
}

CUresult cuArrayDestroy(CUarray array) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    const auto it = c.d.arrays.find(array);
    if (it == c.d.arrays.end())
        return CUDA_ERROR_INVALID_HANDLE;
    c.d.give_back(it->second->base); // a texture of it faults from here on
    c.d.arrays.erase(it);
    return CUDA_SUCCESS;
}
