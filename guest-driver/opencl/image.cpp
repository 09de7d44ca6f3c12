// SPDX-License-Identifier: GPL-2.0-or-later
//
// Images: creation, shape in host memory, and queries. Which formats and sizes work is the host's to say;
// what is checked here is what would make no sense to send.
#include "api.hpp"
#include "image_format.hpp"
#include "memory.hpp"
#include "query.hpp"
#include "transfer.hpp"

#include <algorithm>

namespace kagemusha::opencl {

triple image_size(const memory& image) {
    const cl_image_desc& shape = image.shape().description;
    switch (image.type()) {
    case CL_MEM_OBJECT_IMAGE1D_ARRAY:
        return {shape.image_width, shape.image_array_size, 1};
    case CL_MEM_OBJECT_IMAGE2D:
        return {shape.image_width, shape.image_height, 1};
    case CL_MEM_OBJECT_IMAGE2D_ARRAY:
        return {shape.image_width, shape.image_height, shape.image_array_size};
    case CL_MEM_OBJECT_IMAGE3D:
        return {shape.image_width, shape.image_height, shape.image_depth};
    default:
        return {shape.image_width, 1, 1};
    }
}

cl_int check_image_region(const memory& image, const size_t* origin_in, const size_t* region_in,
                          triple& origin, triple& region) {
    if (!origin_in || !region_in)
        return CL_INVALID_VALUE;
    std::copy_n(origin_in, 3, origin.begin());
    std::copy_n(region_in, 3, region.begin());
    const triple size = image_size(image);
    for (std::size_t i = 0; i < 3; ++i)
        if (region[i] == 0 || origin[i] > size[i] || region[i] > size[i] - origin[i])
            return CL_INVALID_VALUE;
    return CL_SUCCESS;
}

namespace {

bool is_image_type(cl_mem_object_type type) {
    return type >= CL_MEM_OBJECT_IMAGE2D && type <= CL_MEM_OBJECT_IMAGE1D_BUFFER;
}

bool has_slices(cl_mem_object_type type) {
    return type == CL_MEM_OBJECT_IMAGE3D || type == CL_MEM_OBJECT_IMAGE1D_ARRAY ||
           type == CL_MEM_OBJECT_IMAGE2D_ARRAY;
}

struct dimensions {
    std::size_t rows = 1;   // of one slice
    std::size_t slices = 1; // slices or layers
};

dimensions dimensions_of(const cl_image_desc& description) {
    switch (description.image_type) {
    case CL_MEM_OBJECT_IMAGE2D:
        return {description.image_height, 1};
    case CL_MEM_OBJECT_IMAGE3D:
        return {description.image_height, description.image_depth};
    case CL_MEM_OBJECT_IMAGE1D_ARRAY:
        return {1, description.image_array_size};
    case CL_MEM_OBJECT_IMAGE2D_ARRAY:
        return {description.image_height, description.image_array_size};
    default:
        return {};
    }
}

// Pitches and total size in host memory, from the program's pitches where it gave a pointer (or a buffer).
cl_int compute_shape(image_shape& shape, bool own_pitches, std::size_t& total) {
    const cl_image_desc& description = shape.description;
    const dimensions size = dimensions_of(description);
    if (description.image_width == 0 || size.rows == 0 || size.slices == 0)
        return CL_INVALID_IMAGE_SIZE;
    std::size_t row, slice;
    if (__builtin_mul_overflow(description.image_width, shape.element_bytes, &row))
        return CL_INVALID_IMAGE_SIZE;
    if (!own_pitches && (description.image_row_pitch != 0 || description.image_slice_pitch != 0))
        return CL_INVALID_IMAGE_DESCRIPTOR;
    if (description.image_row_pitch != 0) {
        if (description.image_row_pitch < row || description.image_row_pitch % shape.element_bytes != 0)
            return CL_INVALID_IMAGE_DESCRIPTOR;
        row = description.image_row_pitch;
    }
    if (__builtin_mul_overflow(row, size.rows, &slice))
        return CL_INVALID_IMAGE_SIZE;
    if (has_slices(description.image_type) && description.image_slice_pitch != 0) {
        if (description.image_slice_pitch < slice || description.image_slice_pitch % row != 0)
            return CL_INVALID_IMAGE_DESCRIPTOR;
        slice = description.image_slice_pitch;
    }
    if (__builtin_mul_overflow(slice, size.slices, &total))
        return CL_INVALID_IMAGE_SIZE;
    shape.row_pitch = row;
    shape.slice_pitch = slice;
    return CL_SUCCESS;
}

cl_int check_size(device& gpu, const cl_image_desc& description) {
    const auto larger = [&](std::size_t value, cl_device_info limit) {
        return value > gpu.number<std::size_t>(limit, ~std::size_t{0});
    };
    bool too_large = false;
    switch (description.image_type) {
    case CL_MEM_OBJECT_IMAGE1D_BUFFER:
        too_large = larger(description.image_width, CL_DEVICE_IMAGE_MAX_BUFFER_SIZE);
        break;
    case CL_MEM_OBJECT_IMAGE3D:
        too_large = larger(description.image_width, CL_DEVICE_IMAGE3D_MAX_WIDTH) ||
                    larger(description.image_height, CL_DEVICE_IMAGE3D_MAX_HEIGHT) ||
                    larger(description.image_depth, CL_DEVICE_IMAGE3D_MAX_DEPTH);
        break;
    case CL_MEM_OBJECT_IMAGE2D:
    case CL_MEM_OBJECT_IMAGE2D_ARRAY:
        too_large = larger(description.image_height, CL_DEVICE_IMAGE2D_MAX_HEIGHT);
        [[fallthrough]];
    default:
        too_large = too_large || larger(description.image_width, CL_DEVICE_IMAGE2D_MAX_WIDTH);
        break;
    }
    if (description.image_type == CL_MEM_OBJECT_IMAGE1D_ARRAY ||
        description.image_type == CL_MEM_OBJECT_IMAGE2D_ARRAY)
        too_large = too_large || larger(description.image_array_size, CL_DEVICE_IMAGE_MAX_ARRAY_SIZE);
    return too_large ? CL_INVALID_IMAGE_SIZE : CL_SUCCESS;
}

cl_int create_on_host(memory& image, const void* content, std::size_t content_bytes) {
    const image_shape& shape = image.shape();
    const cl_image_desc& description = shape.description;
    connection& link = image.owner().link();
    auto command = make_command<commands::create_image>();
    command.id = image.id();
    command.context = image.owner().id();
    command.flags = forwarded_memory_flags(image.flags());
    command.channel_order = shape.format.image_channel_order;
    command.channel_type = shape.format.image_channel_data_type;
    command.image_type = description.image_type;
    command.width = description.image_width;
    // Only what the type has; the rest of the description is whatever the program left there.
    if (description.image_type == CL_MEM_OBJECT_IMAGE2D || description.image_type == CL_MEM_OBJECT_IMAGE3D ||
        description.image_type == CL_MEM_OBJECT_IMAGE2D_ARRAY)
        command.height = description.image_height;
    if (description.image_type == CL_MEM_OBJECT_IMAGE3D)
        command.depth = description.image_depth;
    if (description.image_type == CL_MEM_OBJECT_IMAGE1D_ARRAY ||
        description.image_type == CL_MEM_OBJECT_IMAGE2D_ARRAY)
        command.array_size = description.image_array_size;
    command.buffer = image.parent() ? image.parent()->id() : 0;
    if (content || (image.parent() && description.image_type == CL_MEM_OBJECT_IMAGE2D)) {
        command.row_pitch = shape.row_pitch;
        command.slice_pitch = content && has_slices(description.image_type) ? shape.slice_pitch : 0;
    }
    payload in_place;
    const bool too_large = content && !fits_one_request(link, content_bytes);
    if (too_large) // the program may not write it, but its creation does
        command.flags &= ~cl_mem_flags{CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS};
    else if (content)
        in_place = {const_cast<void*>(content), content_bytes, false};
    const cl_int error = link.call(make_outgoing(command, in_place));
    if (error != CL_SUCCESS)
        return error;
    image.set_created();
    return too_large ? write_initial_content(image, content) : CL_SUCCESS;
}

cl_mem create(cl_context handle, cl_mem_flags flags, const cl_image_format* format,
              const cl_image_desc* description, void* host_pointer, std::vector<cl_mem_properties> properties,
              cl_int* errcode) {
    context* const owner = from_handle<context>(handle);
    if (!owner)
        return fail<cl_mem>(errcode, CL_INVALID_CONTEXT);
    cl_int error = check_memory_flags(flags, host_pointer);
    if (error != CL_SUCCESS)
        return fail<cl_mem>(errcode, error);
    if (!owner->gpu().has_images())
        return fail<cl_mem>(errcode, CL_INVALID_OPERATION);
    if (!format)
        return fail<cl_mem>(errcode, CL_INVALID_IMAGE_FORMAT_DESCRIPTOR);
    image_shape shape;
    shape.format = *format;
    shape.element_bytes = element_bytes(*format);
    if (shape.element_bytes == 0)
        return fail<cl_mem>(errcode, CL_INVALID_IMAGE_FORMAT_DESCRIPTOR);
    if (!description || !is_image_type(description->image_type) || description->num_mip_levels != 0 ||
        description->num_samples != 0)
        return fail<cl_mem>(errcode, CL_INVALID_IMAGE_DESCRIPTOR);
    shape.description = *description;

    memory* parent = nullptr;
    if (description->mem_object) {
        parent = from_handle<memory>(description->mem_object);
        const bool shows_buffer = description->image_type == CL_MEM_OBJECT_IMAGE1D_BUFFER ||
                                  description->image_type == CL_MEM_OBJECT_IMAGE2D;
        if (!parent || !parent->is_buffer() || !shows_buffer || host_pointer)
            return fail<cl_mem>(errcode, CL_INVALID_IMAGE_DESCRIPTOR);
        if (&parent->owner() != owner)
            return fail<cl_mem>(errcode, CL_INVALID_CONTEXT);
        if (!(flags & (CL_MEM_READ_WRITE | CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY)))
            flags |= parent->flags() & (CL_MEM_READ_WRITE | CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY);
    } else if (description->image_type == CL_MEM_OBJECT_IMAGE1D_BUFFER) {
        return fail<cl_mem>(errcode, CL_INVALID_IMAGE_DESCRIPTOR);
    }
    if (!(flags & (CL_MEM_READ_WRITE | CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY)))
        flags |= CL_MEM_READ_WRITE;
    error = check_size(owner->gpu(), shape.description);
    std::size_t total = 0;
    if (error == CL_SUCCESS)
        error = compute_shape(shape, host_pointer || parent, total);
    if (error == CL_SUCCESS && parent && total > parent->bytes())
        error = CL_INVALID_IMAGE_SIZE;
    if (error != CL_SUCCESS)
        return fail<cl_mem>(errcode, error);

    ref<memory> made = make_object<memory>(ref<context>(owner), description->image_type, flags, total);
    if (!made)
        return fail<cl_mem>(errcode, CL_OUT_OF_HOST_MEMORY);
    made->set_shape(shape);
    made->set_properties(std::move(properties));
    if (parent)
        made->set_parent(ref<memory>(parent), 0);
    if (flags & CL_MEM_USE_HOST_PTR)
        made->set_host_pointer(host_pointer);
    const dimensions size = dimensions_of(shape.description);
    const std::size_t content_bytes = (size.slices - 1) * shape.slice_pitch +
                                      (size.rows - 1) * shape.row_pitch +
                                      shape.description.image_width * shape.element_bytes;
    error = create_on_host(*made, host_pointer, content_bytes);
    if (error != CL_SUCCESS)
        return fail<cl_mem>(errcode, error);
    succeed(errcode);
    return hand_out<cl_mem>(std::move(made));
}

} // namespace

namespace api {

cl_mem create_image(cl_context handle, cl_mem_flags flags, const cl_image_format* format,
                    const cl_image_desc* description, void* host_pointer, cl_int* errcode) {
    return create(handle, flags, format, description, host_pointer, {}, errcode);
}

cl_mem create_image_with_properties(cl_context handle, const cl_mem_properties* properties,
                                    cl_mem_flags flags, const cl_image_format* format,
                                    const cl_image_desc* description, void* host_pointer, cl_int* errcode) {
    std::vector<cl_mem_properties> list;
    if (properties) {
        if (*properties) // there are none that this driver knows
            return fail<cl_mem>(errcode,
                                from_handle<context>(handle) ? CL_INVALID_PROPERTY : CL_INVALID_CONTEXT);
        list.push_back(0);
    }
    return create(handle, flags, format, description, host_pointer, std::move(list), errcode);
}

cl_mem create_image2d(cl_context handle, cl_mem_flags flags, const cl_image_format* format, size_t width,
                      size_t height, size_t row_pitch, void* host_pointer, cl_int* errcode) {
    cl_image_desc description{};
    description.image_type = CL_MEM_OBJECT_IMAGE2D;
    description.image_width = width;
    description.image_height = height;
    description.image_row_pitch = row_pitch;
    return create(handle, flags, format, &description, host_pointer, {}, errcode);
}

cl_mem create_image3d(cl_context handle, cl_mem_flags flags, const cl_image_format* format, size_t width,
                      size_t height, size_t depth, size_t row_pitch, size_t slice_pitch, void* host_pointer,
                      cl_int* errcode) {
    cl_image_desc description{};
    description.image_type = CL_MEM_OBJECT_IMAGE3D;
    description.image_width = width;
    description.image_height = height;
    description.image_depth = depth;
    description.image_row_pitch = row_pitch;
    description.image_slice_pitch = slice_pitch;
    return create(handle, flags, format, &description, host_pointer, {}, errcode);
}

cl_int get_supported_image_formats(cl_context handle, cl_mem_flags flags, cl_mem_object_type type,
                                   cl_uint capacity, cl_image_format* formats, cl_uint* count_ret) {
    context* const owner = from_handle<context>(handle);
    if (!owner)
        return CL_INVALID_CONTEXT;
    if (!is_image_type(type) || (formats && capacity == 0))
        return CL_INVALID_VALUE;
    if (!owner->gpu().has_images()) {
        if (count_ret)
            *count_ret = 0;
        return CL_SUCCESS;
    }
    const question asked{VGPU_INFO_IMAGE_FORMATS, type, owner->id(), forwarded_memory_flags(flags)};
    answer known = ask(owner->link(), asked);
    if (known.error != CL_SUCCESS)
        return known.error;
    std::vector<cl_image_format> list(known.bytes.size() / sizeof(cl_image_format));
    if (!list.empty())
        std::memcpy(list.data(), known.bytes.data(), list.size() * sizeof list[0]);
    // An element whose size is not known here could not be mapped.
    std::erase_if(list, [](const cl_image_format& one) { return element_bytes(one) == 0; });
    if (formats)
        std::copy_n(list.begin(), std::min<std::size_t>(capacity, list.size()), formats);
    if (count_ret)
        *count_ret = static_cast<cl_uint>(list.size());
    return CL_SUCCESS;
}

cl_int get_image_info(cl_mem handle, cl_image_info name, size_t size, void* value, size_t* size_ret) {
    const info_answer to(size, value, size_ret);
    memory* const image = from_handle<memory>(handle);
    if (!image || image->is_buffer())
        return CL_INVALID_MEM_OBJECT;
    const image_shape& shape = image->shape();
    const cl_image_desc& description = shape.description;
    const cl_mem_object_type type = image->type();
    const bool is_2d = type == CL_MEM_OBJECT_IMAGE2D || type == CL_MEM_OBJECT_IMAGE2D_ARRAY;
    const bool is_array = type == CL_MEM_OBJECT_IMAGE1D_ARRAY || type == CL_MEM_OBJECT_IMAGE2D_ARRAY;
    switch (name) {
    case CL_IMAGE_FORMAT:
        return to.value(shape.format);
    case CL_IMAGE_ELEMENT_SIZE:
        return to.value(shape.element_bytes);
    case CL_IMAGE_ROW_PITCH:
        return to.value(shape.row_pitch);
    case CL_IMAGE_SLICE_PITCH:
        return to.value(has_slices(type) ? shape.slice_pitch : std::size_t{0});
    case CL_IMAGE_WIDTH:
        return to.value(description.image_width);
    case CL_IMAGE_HEIGHT:
        return to.value(is_2d || type == CL_MEM_OBJECT_IMAGE3D ? description.image_height : std::size_t{0});
    case CL_IMAGE_DEPTH:
        return to.value(type == CL_MEM_OBJECT_IMAGE3D ? description.image_depth : std::size_t{0});
    case CL_IMAGE_ARRAY_SIZE:
        return to.value(is_array ? description.image_array_size : std::size_t{0});
    case CL_IMAGE_BUFFER:
        return to.value(to_handle<cl_mem>(image->parent()));
    case CL_IMAGE_NUM_MIP_LEVELS:
    case CL_IMAGE_NUM_SAMPLES:
        return to.value<cl_uint>(0);
    default:
        return CL_INVALID_VALUE;
    }
}

} // namespace api
} // namespace kagemusha::opencl
