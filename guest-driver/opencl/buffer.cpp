// SPDX-License-Identifier: GPL-2.0-or-later
//
// Creation of buffers and sub-buffers.
#include "api.hpp"
#include "memory.hpp"
#include "transfer.hpp"

namespace kagemusha::opencl {
namespace {

cl_int create_on_host(memory& buffer, const void* content) {
    connection& link = buffer.owner().link();
    auto command = make_command<commands::create_buffer>();
    command.id = buffer.id();
    command.context = buffer.owner().id();
    command.flags = forwarded_memory_flags(buffer.flags());
    command.bytes = buffer.bytes();
    const bool too_large = content && !fits_one_request(link, buffer.bytes());
    if (too_large) // the program may not write it, but its creation does
        command.flags &= ~cl_mem_flags{CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS};
    payload in_place;
    if (content && !too_large)
        in_place = {const_cast<void*>(content), buffer.bytes(), false};
    const cl_int error = link.call(content && buffer.bytes() <= max_inline_bytes
                                       ? make_outgoing(command, inlined(content, buffer.bytes()))
                                       : make_outgoing(command, in_place));
    if (error == CL_SUCCESS)
        buffer.set_created();
    return error;
}

cl_mem create(cl_context handle, cl_mem_flags flags, std::size_t bytes, void* host_pointer,
              std::vector<cl_mem_properties> properties, cl_int* errcode) {
    context* const owner = from_handle<context>(handle);
    if (!owner)
        return fail<cl_mem>(errcode, CL_INVALID_CONTEXT);
    cl_int error = check_memory_flags(flags, host_pointer);
    if (error != CL_SUCCESS)
        return fail<cl_mem>(errcode, error);
    if (bytes == 0 || bytes > owner->gpu().number<cl_ulong>(CL_DEVICE_MAX_MEM_ALLOC_SIZE, ~cl_ulong{0}))
        return fail<cl_mem>(errcode, CL_INVALID_BUFFER_SIZE);
    if (!(flags & (CL_MEM_READ_WRITE | CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY)))
        flags |= CL_MEM_READ_WRITE;
    ref<memory> made = make_object<memory>(ref<context>(owner), CL_MEM_OBJECT_BUFFER, flags, bytes);
    if (!made)
        return fail<cl_mem>(errcode, CL_OUT_OF_HOST_MEMORY);
    if (flags & CL_MEM_USE_HOST_PTR)
        made->set_host_pointer(host_pointer);
    made->set_properties(std::move(properties));
    error = create_on_host(*made, host_pointer);
    if (error == CL_SUCCESS && host_pointer && !fits_one_request(owner->link(), bytes))
        error = write_initial_content(*made, host_pointer);
    if (error != CL_SUCCESS)
        return fail<cl_mem>(errcode, error);
    succeed(errcode);
    return hand_out<cl_mem>(std::move(made));
}

// The flags of a sub-buffer: what it does not say itself it has from its buffer; it may only narrow.
cl_int sub_buffer_flags(const memory& buffer, cl_mem_flags& flags) {
    constexpr cl_mem_flags access = CL_MEM_READ_WRITE | CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY;
    constexpr cl_mem_flags host_access =
        CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS;
    constexpr cl_mem_flags host_pointer = CL_MEM_USE_HOST_PTR | CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR;
    if (flags & host_pointer)
        return CL_INVALID_VALUE;
    const cl_int error = check_memory_flags(flags, nullptr);
    if (error != CL_SUCCESS)
        return error;
    const cl_mem_flags own = buffer.flags();
    if (((own & CL_MEM_WRITE_ONLY) && (flags & (CL_MEM_READ_WRITE | CL_MEM_READ_ONLY))) ||
        ((own & CL_MEM_READ_ONLY) && (flags & (CL_MEM_READ_WRITE | CL_MEM_WRITE_ONLY))) ||
        ((own & CL_MEM_HOST_WRITE_ONLY) && (flags & CL_MEM_HOST_READ_ONLY)) ||
        ((own & CL_MEM_HOST_READ_ONLY) && (flags & CL_MEM_HOST_WRITE_ONLY)) ||
        ((own & CL_MEM_HOST_NO_ACCESS) && (flags & (CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_WRITE_ONLY))))
        return CL_INVALID_VALUE;
    if (!(flags & access))
        flags |= own & access;
    if (!(flags & host_access))
        flags |= own & host_access;
    flags |= own & host_pointer;
    return CL_SUCCESS;
}

} // namespace

namespace api {

cl_mem create_buffer(cl_context handle, cl_mem_flags flags, size_t bytes, void* host_pointer,
                     cl_int* errcode) {
    return create(handle, flags, bytes, host_pointer, {}, errcode);
}

cl_mem create_buffer_with_properties(cl_context handle, const cl_mem_properties* properties,
                                     cl_mem_flags flags, size_t bytes, void* host_pointer, cl_int* errcode) {
    std::vector<cl_mem_properties> list;
    if (properties) {
        if (*properties) // there are none that this driver knows
            return fail<cl_mem>(errcode,
                                from_handle<context>(handle) ? CL_INVALID_PROPERTY : CL_INVALID_CONTEXT);
        list.push_back(0);
    }
    return create(handle, flags, bytes, host_pointer, std::move(list), errcode);
}

cl_mem create_sub_buffer(cl_mem handle, cl_mem_flags flags, cl_buffer_create_type type, const void* info,
                         cl_int* errcode) {
    memory* const buffer = from_handle<memory>(handle);
    if (!buffer || !buffer->is_buffer() || buffer->is_sub_buffer())
        return fail<cl_mem>(errcode, CL_INVALID_MEM_OBJECT);
    if (type != CL_BUFFER_CREATE_TYPE_REGION || !info)
        return fail<cl_mem>(errcode, CL_INVALID_VALUE);
    cl_int error = sub_buffer_flags(*buffer, flags);
    if (error != CL_SUCCESS)
        return fail<cl_mem>(errcode, error);
    cl_buffer_region region;
    std::memcpy(&region, info, sizeof region);
    if (region.size == 0)
        return fail<cl_mem>(errcode, CL_INVALID_BUFFER_SIZE);
    if (region.origin > buffer->bytes() || region.size > buffer->bytes() - region.origin)
        return fail<cl_mem>(errcode, CL_INVALID_VALUE);
    const std::size_t alignment = buffer->owner().gpu().number<cl_uint>(CL_DEVICE_MEM_BASE_ADDR_ALIGN, 8) / 8;
    if (alignment > 1 && region.origin % alignment != 0)
        return fail<cl_mem>(errcode, CL_MISALIGNED_SUB_BUFFER_OFFSET);
    ref<memory> made = make_object<memory>(buffer->owner_ref(), CL_MEM_OBJECT_BUFFER, flags, region.size);
    if (!made)
        return fail<cl_mem>(errcode, CL_OUT_OF_HOST_MEMORY);
    made->set_parent(ref<memory>(buffer), region.origin);
    auto command = make_command<commands::create_sub_buffer>();
    command.id = made->id();
    command.buffer = buffer->id();
    command.flags = forwarded_memory_flags(flags) & ~cl_mem_flags{CL_MEM_ALLOC_HOST_PTR};
    command.origin = region.origin;
    command.bytes = region.size;
    error = buffer->owner().link().call(make_outgoing(command));
    if (error != CL_SUCCESS)
        return fail<cl_mem>(errcode, error);
    made->set_created();
    succeed(errcode);
    return hand_out<cl_mem>(std::move(made));
}

} // namespace api
} // namespace kagemusha::opencl
