// SPDX-License-Identifier: GPL-2.0-or-later
//
// Textures and surfaces. One is made on the host, which says by which number kernels know it.
#include "arrays.hpp"

#include "guest-driver/opencl/query.hpp"

#include <algorithm>
#include <cstring>

namespace kagemusha::cuda {
namespace {

constexpr unsigned known_flags = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB |
                                 CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION;

CUresult describe_memory(context& where, CUdeviceptr address, std::uint64_t bytes, CUarray_format format,
                         unsigned channels, vgpu_cmd_create_texture& command) {
    wire_format known;
    std::uint64_t offset = 0;
    opencl::memory* const arena = where.arena_of(address, bytes, offset);
    if (!arena || bytes == 0 || !format_of(format, channels, known))
        return CUDA_ERROR_INVALID_VALUE;
    command.memory = arena->id();
    command.offset = offset;
    command.bytes = bytes;
    command.channel_order = known.order;
    command.channel_type = known.type;
    return CUDA_SUCCESS;
}

CUresult describe(context& where, const CUDA_RESOURCE_DESC& from, vgpu_cmd_create_texture& command) {
    switch (from.resType) {
    case CU_RESOURCE_TYPE_ARRAY: {
        const auto* const in = object_of<array>(the_driver().arrays, from.res.array.hArray);
        if (!in || in->owner != &where)
            return CUDA_ERROR_INVALID_HANDLE;
        command.kind = VGPU_TEXTURE_ARRAY;
        command.memory = in->native->id();
        return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_LINEAR:
        command.kind = VGPU_TEXTURE_LINEAR;
        return describe_memory(where, from.res.linear.devPtr, from.res.linear.sizeInBytes,
                               from.res.linear.format, from.res.linear.numChannels, command);
    case CU_RESOURCE_TYPE_PITCH2D: {
        const auto& rows = from.res.pitch2D;
        wire_format known;
        std::uint64_t row = 0, bytes = 0;
        if (!format_of(rows.format, rows.numChannels, known) || rows.height == 0 || rows.width == 0 ||
            __builtin_mul_overflow(rows.width, known.bytes, &row) || row > rows.pitchInBytes ||
            __builtin_mul_overflow(rows.height - 1, rows.pitchInBytes, &bytes) ||
            __builtin_add_overflow(bytes, row, &bytes))
            return CUDA_ERROR_INVALID_VALUE;
        command.kind = VGPU_TEXTURE_ROWS;
        command.width = rows.width;
        command.height = rows.height;
        command.row_pitch = rows.pitchInBytes;
        return describe_memory(where, rows.devPtr, bytes, rows.format, rows.numChannels, command);
    }
    default: // arrays with several levels
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

// Asks the host for one, which tells by which number kernels know it, and makes that one ours.
CUresult create(context& where, std::unique_ptr<texture> made, vgpu_cmd_create_texture& wanted,
                unsigned long long* handle) {
    opencl::connection& link = where.native->link();
    if (!where.gpu->has_textures)
        where.gpu->has_textures = opencl::known_commands(link) >> VGPU_CMD_FIND_TEXTURE & 1;
    if (!where.gpu->has_textures)
        return CUDA_ERROR_NOT_SUPPORTED; // an older host
    wanted.context = where.native->id();
    std::uint64_t number = 0, ticket = 0;
    opencl::outgoing query = opencl::make_outgoing(wanted);
    query.reference = &wanted.result;
    query.data = {&number, sizeof number, true};
    cl_int error = link.begin_call(query, ticket);
    if (error == CL_SUCCESS)
        error = link.finish_call(ticket, nullptr);
    if (error != CL_SUCCESS)
        return cuda_result(error);

    auto command = opencl::make_command<vgpu_cmd_create_texture>(VGPU_CMD_CREATE_TEXTURE);
    const vgpu_cmd header = command.cmd;
    command = wanted;
    command.cmd = header;
    command.id = made->id = link.new_id();
    command.number = number;
    command.result = {0, VGPU_PAYLOAD_NONE, 0};
    if (const CUresult refused = cuda_result(link.call(opencl::make_outgoing(command))))
        return refused;
    *handle = number;
    const std::lock_guard held(where.mutex);
    where.textures[number] = std::move(made);
    return CUDA_SUCCESS;
}

CUresult destroy(unsigned long long handle, bool surface) {
    return in_context([&](context& where) {
        {
            const std::lock_guard held(where.mutex);
            const auto found = where.textures.find(handle);
            if (found == where.textures.end() || found->second->surface != surface)
                return CUDA_ERROR_INVALID_VALUE;
        }
        const CUresult result = where.synchronise(); // kernels may use it
        const std::lock_guard held(where.mutex);
        if (const auto dead = where.textures.extract(handle))
            where.native->link().destroy(VGPU_OBJECT_SAMPLER, dead.mapped()->id);
        return result;
    });
}

template <class Body>
CUresult of_texture(unsigned long long handle, bool surface, Body&& body) {
    return in_context([&](context& where) {
        const std::lock_guard held(where.mutex);
        const auto found = where.textures.find(handle);
        return found != where.textures.end() && found->second->surface == surface ? body(*found->second)
                                                                                  : CUDA_ERROR_INVALID_VALUE;
    });
}

} // namespace

KAGEMUSHA_EXPORT CUresult cuTexObjectCreate(CUtexObject* handle, const CUDA_RESOURCE_DESC* resource,
                                            const CUDA_TEXTURE_DESC* how,
                                            const CUDA_RESOURCE_VIEW_DESC* view) {
    return in_context([&](context& where) {
        if (!handle || !resource || !how || (how->flags & ~known_flags))
            return CUDA_ERROR_INVALID_VALUE;
        if (view)
            return CUDA_ERROR_NOT_SUPPORTED;
        auto command = opencl::make_command<vgpu_cmd_create_texture>(VGPU_CMD_FIND_TEXTURE);
        if (const CUresult error = describe(where, *resource, command))
            return error;
        for (int d = 0; d < 3; ++d) {
            if (how->addressMode[d] < CU_TR_ADDRESS_MODE_WRAP ||
                how->addressMode[d] > CU_TR_ADDRESS_MODE_BORDER)
                return CUDA_ERROR_INVALID_VALUE;
            command.addressing[d] = static_cast<__u32>(how->addressMode[d]);
        }
        if (how->filterMode != CU_TR_FILTER_MODE_POINT && how->filterMode != CU_TR_FILTER_MODE_LINEAR)
            return CUDA_ERROR_INVALID_VALUE;
        command.filter = static_cast<__u32>(how->filterMode);
        command.flags = how->flags;
        std::memcpy(command.border, how->borderColor, sizeof command.border);
        auto made = std::make_unique<texture>();
        made->resource = *resource;
        made->how = *how;
        return create(where, std::move(made), command, handle);
    });
}

KAGEMUSHA_EXPORT CUresult cuSurfObjectCreate(CUsurfObject* handle, const CUDA_RESOURCE_DESC* resource) {
    return in_context([&](context& where) {
        if (!handle || !resource || resource->resType != CU_RESOURCE_TYPE_ARRAY)
            return CUDA_ERROR_INVALID_VALUE;
        auto command = opencl::make_command<vgpu_cmd_create_texture>(VGPU_CMD_FIND_TEXTURE);
        if (const CUresult error = describe(where, *resource, command))
            return error;
        command.kind = VGPU_TEXTURE_SURFACE;
        auto made = std::make_unique<texture>();
        made->resource = *resource;
        made->surface = true;
        return create(where, std::move(made), command, handle);
    });
}

KAGEMUSHA_EXPORT CUresult cuTexObjectDestroy(CUtexObject handle) {
    return destroy(handle, false);
}
KAGEMUSHA_EXPORT CUresult cuSurfObjectDestroy(CUsurfObject handle) {
    return destroy(handle, true);
}

KAGEMUSHA_EXPORT CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUtexObject handle) {
    return of_texture(handle, false, [&](const texture& one) {
        return resource ? (*resource = one.resource, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE;
    });
}
KAGEMUSHA_EXPORT CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* how, CUtexObject handle) {
    return of_texture(handle, false, [&](const texture& one) {
        return how ? (*how = one.how, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE;
    });
}
KAGEMUSHA_EXPORT CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUsurfObject handle) {
    return of_texture(handle, true, [&](const texture& one) {
        return resource ? (*resource = one.resource, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE;
    });
}

} // namespace kagemusha::cuda
