// SPDX-License-Identifier: GPL-2.0-or-later
//
// Arrays: memory with a shape, whose layout is the GPU's. How large one may be is the host's to say.
#include "arrays.hpp"

#include <algorithm>

namespace kagemusha::cuda {
namespace {

cl_mem_object_type type_of(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
    if (shape.Flags & CUDA_ARRAY3D_LAYERED)
        return shape.Height ? CL_MEM_OBJECT_IMAGE2D_ARRAY : CL_MEM_OBJECT_IMAGE1D_ARRAY;
    return shape.Depth ? CL_MEM_OBJECT_IMAGE3D : shape.Height ? CL_MEM_OBJECT_IMAGE2D : CL_MEM_OBJECT_IMAGE1D;
}

CUresult create_on_host(array& made) {
    const CUDA_ARRAY3D_DESCRIPTOR& shape = made.shape;
    const opencl::image_shape& known = made.native->shape();
    auto command = opencl::make_command<vgpu_cmd_create_image>(VGPU_CMD_CREATE_IMAGE);
    command.id = made.native->id();
    command.context = made.owner->native->id();
    command.channel_order = known.format.image_channel_order;
    command.channel_type = known.format.image_channel_data_type;
    command.image_type = made.native->type();
    command.width = shape.Width;
    command.height = shape.Height;
    (shape.Flags & CUDA_ARRAY3D_LAYERED ? command.array_size : command.depth) = shape.Depth;
    command.content.index = VGPU_PAYLOAD_NONE;
    const CUresult error = cuda_result(made.owner->native->link().call(opencl::make_outgoing(command)));
    if (error == CUDA_SUCCESS)
        made.native->set_created();
    return error;
}

CUresult create(context& where, CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR& shape) {
    wire_format format;
    const bool layered = shape.Flags & CUDA_ARRAY3D_LAYERED;
    if (!handle || shape.Width == 0 || !format_of(shape.Format, shape.NumChannels, format) ||
        (layered && shape.Depth == 0) || (!layered && shape.Depth && !shape.Height))
        return CUDA_ERROR_INVALID_VALUE;
    if (shape.Flags & ~(CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST))
        return CUDA_ERROR_NOT_SUPPORTED; // cube maps, gathering
    auto made = std::make_unique<array>();
    made->owner = &where;
    made->shape = shape;
    made->element_bytes = format.bytes;
    std::size_t bytes = format.bytes;
    for (const std::size_t side : made->size())
        if (__builtin_mul_overflow(bytes, side, &bytes))
            return CUDA_ERROR_INVALID_VALUE;
    made->native = opencl::make_object<opencl::memory>(where.native, type_of(shape), cl_mem_flags{0}, bytes);
    if (!made->native)
        return CUDA_ERROR_OUT_OF_MEMORY;
    opencl::image_shape known;
    known.format = {format.order, format.type};
    known.element_bytes = format.bytes;
    known.description.image_type = made->native->type();
    known.description.image_width = shape.Width;
    known.description.image_height = shape.Height;
    known.description.image_depth = layered ? 0 : shape.Depth;
    known.description.image_array_size = layered ? shape.Depth : 0;
    known.row_pitch = shape.Width * format.bytes;
    known.slice_pitch = known.row_pitch * made->size()[1];
    made->native->set_shape(known);
    if (const CUresult error = create_on_host(*made))
        return error;
    const std::lock_guard held(where.mutex);
    where.arrays.insert(made.get());
    the_driver().arrays.add(made.get());
    *handle = reinterpret_cast<CUarray>(made.release());
    return CUDA_SUCCESS;
}

template <class Body>
CUresult of_array(CUarray handle, Body&& body) noexcept {
    return guarded([&] {
        if (!the_driver().ready)
            return CUDA_ERROR_NOT_INITIALIZED;
        auto* const one = object_of<array>(the_driver().arrays, handle);
        return one ? body(*one) : CUDA_ERROR_INVALID_HANDLE;
    });
}

} // namespace

bool format_of(CUarray_format format, unsigned channels, wire_format& made) {
    switch (channels) {
    case 1:
        made.order = CL_R;
        break;
    case 2:
        made.order = CL_RG;
        break;
    case 4:
        made.order = CL_RGBA;
        break;
    default:
        return false;
    }
    const auto is = [&](cl_channel_type type, std::size_t bytes) {
        made.type = type;
        made.bytes = bytes * channels;
        return true;
    };
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
        return is(CL_UNSIGNED_INT8, 1);
    case CU_AD_FORMAT_UNSIGNED_INT16:
        return is(CL_UNSIGNED_INT16, 2);
    case CU_AD_FORMAT_UNSIGNED_INT32:
        return is(CL_UNSIGNED_INT32, 4);
    case CU_AD_FORMAT_SIGNED_INT8:
        return is(CL_SIGNED_INT8, 1);
    case CU_AD_FORMAT_SIGNED_INT16:
        return is(CL_SIGNED_INT16, 2);
    case CU_AD_FORMAT_SIGNED_INT32:
        return is(CL_SIGNED_INT32, 4);
    case CU_AD_FORMAT_HALF:
        return is(CL_HALF_FLOAT, 2);
    case CU_AD_FORMAT_FLOAT:
        return is(CL_FLOAT, 4);
    default:
        return false;
    }
}

void end_arrays(context& dead) {
    driver& self = the_driver();
    for (const auto& [handle, one] : dead.textures)
        dead.native->link().destroy(VGPU_OBJECT_SAMPLER, one->id);
    dead.textures.clear();
    for (array* one : dead.arrays) {
        self.arrays.remove(one);
        delete one;
    }
    for (link_state* one : dead.links) {
        self.links.remove(one);
        delete one;
    }
}

KAGEMUSHA_EXPORT CUresult cuArrayCreate_v2(CUarray* handle, const CUDA_ARRAY_DESCRIPTOR* shape) {
    return in_context([&](context& where) {
        return shape ? create(where, handle,
                              {shape->Width, shape->Height, 0, shape->Format, shape->NumChannels, 0})
                     : CUDA_ERROR_INVALID_VALUE;
    });
}

KAGEMUSHA_EXPORT CUresult cuArray3DCreate_v2(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR* shape) {
    return in_context(
        [&](context& where) { return shape ? create(where, handle, *shape) : CUDA_ERROR_INVALID_VALUE; });
}

KAGEMUSHA_EXPORT CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* shape, CUarray handle) {
    return of_array(handle, [&](const array& one) {
        if (!shape)
            return CUDA_ERROR_INVALID_VALUE;
        *shape = one.shape;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* shape, CUarray handle) {
    return of_array(handle, [&](const array& one) {
        if (!shape)
            return CUDA_ERROR_INVALID_VALUE;
        *shape = {one.shape.Width, one.shape.Height, one.shape.Format, one.shape.NumChannels};
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuArrayDestroy(CUarray handle) {
    return of_array(handle, [](array& dead) {
        context& where = *dead.owner;
        const CUresult result = where.broken_or(where.synchronise()); // what is in flight may still use it
        the_driver().arrays.remove(&dead);
        const std::lock_guard held(where.mutex);
        where.arrays.erase(&dead);
        delete &dead;
        return result;
    });
}

} // namespace kagemusha::cuda
