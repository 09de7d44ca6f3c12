// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_textures: arrays, and the textures and surfaces of arrays and memory.
#include <CL/cl.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "codec/image_format.hpp"
#include "gpu/cuda/cuda_device.hpp"
#include "proto/abi/vgpu_cuda.h"

namespace kagemusha::gpu {

namespace {

// CUDA's name of a format of the wire; false: it has none.
bool format_of(std::uint32_t order, std::uint32_t type, CUarray_format& format, unsigned& channels) {
    switch (order) {
    case CL_R:
        channels = 1;
        break;
    case CL_RG:
        channels = 2;
        break;
    case CL_RGBA:
        channels = 4;
        break;
    default:
        return false;
    }
    constexpr std::pair<std::uint32_t, CUarray_format> known[] = {
        {CL_UNSIGNED_INT8, CU_AD_FORMAT_UNSIGNED_INT8},
        {CL_UNSIGNED_INT16, CU_AD_FORMAT_UNSIGNED_INT16},
        {CL_UNSIGNED_INT32, CU_AD_FORMAT_UNSIGNED_INT32},
        {CL_SIGNED_INT8, CU_AD_FORMAT_SIGNED_INT8},
        {CL_SIGNED_INT16, CU_AD_FORMAT_SIGNED_INT16},
        {CL_SIGNED_INT32, CU_AD_FORMAT_SIGNED_INT32},
        {CL_HALF_FLOAT, CU_AD_FORMAT_HALF},
        {CL_FLOAT, CU_AD_FORMAT_FLOAT}};
    for (const auto& [wire, name] : known)
        if (wire == type) {
            format = name;
            return true;
        }
    return false;
}

} // namespace

cuda_array::~cuda_array() {
    primary->make_current();
    primary->api.cuCtxSynchronize(); // as for arenas
    primary->api.cuArrayDestroy(native);
}

cuda_texture::~cuda_texture() {
    if (!primary)
        return;
    primary->make_current();
    primary->api.cuCtxSynchronize();
    if (surface)
        primary->api.cuSurfObjectDestroy(native);
    else
        primary->api.cuTexObjectDestroy(native);
}

std::int32_t cuda_device::create_array(const vgpu_cmd_create_image& c, std::unique_ptr<host_memory>& place) {
    CUDA_ARRAY3D_DESCRIPTOR shape{};
    if (!format_of(c.channel_order, c.channel_type, shape.Format, shape.NumChannels))
        return CL_IMAGE_FORMAT_NOT_SUPPORTED;
    shape.Width = c.width;
    shape.Flags = CUDA_ARRAY3D_SURFACE_LDST; // kernels may be given a surface of it
    switch (c.image_type) {
    case CL_MEM_OBJECT_IMAGE1D:
        break;
    case CL_MEM_OBJECT_IMAGE1D_ARRAY:
        shape.Depth = c.array_size;
        shape.Flags |= CUDA_ARRAY3D_LAYERED;
        break;
    case CL_MEM_OBJECT_IMAGE2D:
        shape.Height = c.height;
        break;
    case CL_MEM_OBJECT_IMAGE2D_ARRAY:
        shape.Height = c.height;
        shape.Depth = c.array_size;
        shape.Flags |= CUDA_ARRAY3D_LAYERED;
        break;
    case CL_MEM_OBJECT_IMAGE3D:
        shape.Height = c.height;
        shape.Depth = c.depth;
        break;
    default:
        return CL_INVALID_OPERATION;
    }
    primary_->make_current();
    CUarray native = nullptr;
    if (const CUresult result = api_.cuArray3DCreate_v2(&native, &shape))
        return cuda_error(result);
    auto made = std::make_unique<cuda_array>();
    made->primary = primary_;
    made->native = native;
    made->element_bytes = codec::image_element_bytes(c.channel_order, c.channel_type);
    made->layers_are_rows = c.image_type == CL_MEM_OBJECT_IMAGE1D_ARRAY;
    place = std::move(made);
    return CL_SUCCESS;
}

std::int32_t cuda_device::make_texture(const vgpu_cmd_create_texture& c, const host_memory& memory,
                                       std::unique_ptr<cuda_texture>& out) {
    CUDA_RESOURCE_DESC resource{};
    // Which kind of memory the id names, is not in the command's row.
    if (const auto* const array = dynamic_cast<const cuda_array*>(&memory)) {
        if (c.kind != VGPU_TEXTURE_ARRAY && c.kind != VGPU_TEXTURE_SURFACE)
            return CL_INVALID_MEM_OBJECT;
        resource.resType = CU_RESOURCE_TYPE_ARRAY;
        resource.res.array.hArray = array->native;
    } else {
        const CUdeviceptr address = static_cast<const cuda_memory&>(memory).address + c.offset;
        CUarray_format format{};
        unsigned channels = 0;
        if (c.kind != VGPU_TEXTURE_LINEAR && c.kind != VGPU_TEXTURE_ROWS)
            return CL_INVALID_MEM_OBJECT;
        if (!format_of(c.channel_order, c.channel_type, format, channels))
            return CL_IMAGE_FORMAT_NOT_SUPPORTED;
        if (c.kind == VGPU_TEXTURE_LINEAR) {
            resource.resType = CU_RESOURCE_TYPE_LINEAR;
            resource.res.linear = {address, format, channels, c.bytes};
        } else {
            resource.resType = CU_RESOURCE_TYPE_PITCH2D;
            resource.res.pitch2D = {address, format, channels, c.width, c.height, c.row_pitch};
        }
    }
    auto made = std::make_unique<cuda_texture>();
    primary_->make_current();
    CUresult result;
    if (c.kind == VGPU_TEXTURE_SURFACE) {
        result = api_.cuSurfObjectCreate(&made->native, &resource);
    } else {
        CUDA_TEXTURE_DESC how{};
        for (int d = 0; d < 3; ++d)
            how.addressMode[d] = static_cast<CUaddress_mode>(c.addressing[d]);
        how.filterMode = static_cast<CUfilter_mode>(c.filter);
        how.flags = c.flags;
        std::memcpy(how.borderColor, c.border, sizeof how.borderColor);
        result = api_.cuTexObjectCreate(&made->native, &resource, &how, nullptr);
    }
    if (result != CUDA_SUCCESS)
        return cuda_error(result);
    made->primary = primary_; // from here on there is something to destroy
    made->surface = c.kind == VGPU_TEXTURE_SURFACE;
    out = std::move(made);
    return CL_SUCCESS;
}

// The driver gives out numbers in an order of its own. A standby that came later may have to use up some that
// the primary used up before.
std::int32_t cuda_device::create_texture(const vgpu_cmd_create_texture& c, const host_memory& memory,
                                         std::unique_ptr<host_sampler>& place) {
    const auto found = std::find_if(found_textures_.begin(), found_textures_.end(),
                                    [&](const auto& one) { return one->native == c.number; });
    if (found != found_textures_.end()) {
        place = std::move(*found);
        found_textures_.erase(found);
        return CL_SUCCESS;
    }
    constexpr int most_tries = 4096;
    std::vector<std::unique_ptr<cuda_texture>> others;
    for (int i = 0; i < most_tries; ++i) {
        std::unique_ptr<cuda_texture> made;
        if (const std::int32_t error = make_texture(c, memory, made))
            return error;
        if (made->native == c.number) {
            place = std::move(made);
            return CL_SUCCESS;
        }
        others.push_back(std::move(made));
    }
    return VGPU_CUDA_OTHER_ADDRESS;
}

// ---- queries

std::int32_t cuda_device::answer(const query& what, std::vector<std::byte>& result) {
    const auto* const wanted = std::get_if<resolved<codec::op_find_texture>>(&what);
    if (!wanted)
        return CL_INVALID_OPERATION;
    const auto& [context, memory] = wanted->parts;
    std::unique_ptr<cuda_texture> made;
    if (const std::int32_t error = make_texture(*wanted->op.c, memory, made))
        return error;
    const auto number = std::as_bytes(std::span(&made->native, 1));
    result.assign(number.begin(), number.end());
    constexpr std::size_t most_found = 16; // a guest's driver asks for one and creates it at once
    if (found_textures_.size() >= most_found)
        found_textures_.pop_front();
    found_textures_.push_back(std::move(made));
    return CL_SUCCESS;
}

} // namespace kagemusha::gpu
