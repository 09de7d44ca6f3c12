// SPDX-License-Identifier: GPL-2.0-or-later
//
// Command queues and the functions of the API about them, flush and finish among them.
#include "queue.hpp"

#include "api.hpp"
#include "enqueue.hpp"

#include <optional>

namespace kagemusha::opencl {

queue::queue(ref<context> owner, cl_command_queue_properties properties,
             std::vector<cl_queue_properties> property_list)
    : object(kind_of_class)
    , owner_(std::move(owner))
    , id_(owner_->link().new_id())
    , properties_(properties)
    , property_list_(std::move(property_list)) {}

queue::~queue() {
    if (!created_)
        return;
    owner_->link().remove_queue(*this);
    owner_->link().destroy(VGPU_OBJECT_QUEUE, id_);
}

cl_int queue::create() {
    auto command = make_command<commands::create_queue>();
    command.id = id_;
    command.context = owner_->id();
    command.properties = properties_;
    const cl_int error = owner_->link().call(make_outgoing(command));
    if (error == CL_SUCCESS) {
        created_ = true;
        owner_->link().add_queue(*this);
        owner_->note_queue();
    }
    return error;
}

namespace {

constexpr cl_command_queue_properties forwarded_properties =
    CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_PROFILING_ENABLE;

cl_command_queue create(cl_context context_handle, cl_device_id device_handle,
                        cl_command_queue_properties properties, std::vector<cl_queue_properties> list,
                        cl_int* errcode) {
    context* const owner = from_handle<context>(context_handle);
    if (!owner)
        return fail<cl_command_queue>(errcode, CL_INVALID_CONTEXT);
    device* const gpu = from_handle<device>(device_handle);
    if (!gpu || gpu != &owner->gpu())
        return fail<cl_command_queue>(errcode, CL_INVALID_DEVICE);
    constexpr cl_command_queue_properties known_properties =
        forwarded_properties | CL_QUEUE_ON_DEVICE | CL_QUEUE_ON_DEVICE_DEFAULT;
    if (properties & ~known_properties)
        return fail<cl_command_queue>(errcode, CL_INVALID_VALUE);
    const auto supported =
        gpu->number<cl_command_queue_properties>(CL_DEVICE_QUEUE_ON_HOST_PROPERTIES, forwarded_properties);
    if (properties & ~(supported & forwarded_properties))
        return fail<cl_command_queue>(errcode, CL_INVALID_QUEUE_PROPERTIES);
    ref<queue> made = make_object<queue>(ref<context>(owner), properties, std::move(list));
    if (!made)
        return fail<cl_command_queue>(errcode, CL_OUT_OF_HOST_MEMORY);
    const cl_int error = made->create();
    if (error != CL_SUCCESS)
        return fail<cl_command_queue>(errcode, error);
    succeed(errcode);
    return hand_out<cl_command_queue>(std::move(made));
}

} // namespace

namespace api {

cl_command_queue create_command_queue(cl_context context_handle, cl_device_id device_handle,
                                      cl_command_queue_properties properties, cl_int* errcode) {
    return create(context_handle, device_handle, properties, {}, errcode);
}

cl_command_queue create_command_queue_with_properties(cl_context context_handle, cl_device_id device_handle,
                                                      const cl_queue_properties* properties,
                                                      cl_int* errcode) {
    std::vector<cl_queue_properties> list;
    std::optional<cl_command_queue_properties> bits;
    std::optional<cl_queue_properties> device_size;
    if (properties) {
        const cl_queue_properties* at = properties;
        for (; *at; at += 2)
            if (*at == CL_QUEUE_PROPERTIES && !bits)
                bits = at[1];
            else if (*at == CL_QUEUE_SIZE && !device_size)
                device_size = at[1];
            else
                return fail<cl_command_queue>(errcode, CL_INVALID_VALUE);
        list.assign(properties, at + 1);
    }
    if (device_size) // only for queues on the device
        return fail<cl_command_queue>(
            errcode, bits.value_or(0) & CL_QUEUE_ON_DEVICE ? CL_INVALID_QUEUE_PROPERTIES : CL_INVALID_VALUE);
    return create(context_handle, device_handle, bits.value_or(0), std::move(list), errcode);
}

cl_int retain_command_queue(cl_command_queue handle) {
    queue* const one = from_handle<queue>(handle);
    if (!one)
        return CL_INVALID_COMMAND_QUEUE;
    one->retain_for_user();
    return CL_SUCCESS;
}

cl_int release_command_queue(cl_command_queue handle) {
    queue* const one = from_handle<queue>(handle);
    if (!one)
        return CL_INVALID_COMMAND_QUEUE;
    // Whoever has to wait for its early writes can't put a marker behind them any more.
    if (early_writes& writes = one->owner().writes(); writes.unmarked(*one)) {
        ref<event> marker;
        if (mark_early_write(*one, marker) != CL_SUCCESS) // the device is lost, and they are, too
            writes.forget(one->id(), UINT64_MAX);
    }
    // The standard: releasing flushes.
    if (one->needs_flush.load(std::memory_order_relaxed))
        one->owner().link().flush(one);
    return one->release_for_user() ? CL_SUCCESS : CL_INVALID_COMMAND_QUEUE;
}

cl_int get_command_queue_info(cl_command_queue handle, cl_command_queue_info name, size_t size, void* value,
                              size_t* size_ret) {
    const info_answer to(size, value, size_ret);
    queue* const one = from_handle<queue>(handle);
    if (!one)
        return CL_INVALID_COMMAND_QUEUE;
    switch (name) {
    case CL_QUEUE_CONTEXT:
        return to.value(to_handle<cl_context>(&one->owner()));
    case CL_QUEUE_DEVICE:
        return to.value(to_handle<cl_device_id>(&one->owner().gpu()));
    case CL_QUEUE_REFERENCE_COUNT:
        return to.value<cl_uint>(one->user_references.load());
    case CL_QUEUE_PROPERTIES:
        return to.value(one->properties());
    case CL_QUEUE_PROPERTIES_ARRAY:
        return to.array(std::span<const cl_queue_properties>(one->property_list()));
    case CL_QUEUE_SIZE: // no queue of this driver is on the device
        return CL_INVALID_COMMAND_QUEUE;
    case CL_QUEUE_DEVICE_DEFAULT:
        return to.value<cl_command_queue>(nullptr);
    default:
        return CL_INVALID_VALUE;
    }
}

cl_int set_command_queue_property(cl_command_queue handle, cl_command_queue_properties, cl_bool,
                                  cl_command_queue_properties*) {
    // Removed after OpenCL 1.0.
    return from_handle<queue>(handle) ? CL_INVALID_OPERATION : CL_INVALID_COMMAND_QUEUE;
}

cl_int set_default_device_command_queue(cl_context context_handle, cl_device_id device_handle,
                                        cl_command_queue) {
    if (!from_handle<context>(context_handle))
        return CL_INVALID_CONTEXT;
    if (!from_handle<device>(device_handle))
        return CL_INVALID_DEVICE;
    return CL_INVALID_OPERATION; // the device has no queues of its own
}

cl_int flush(cl_command_queue handle) {
    queue* const one = from_handle<queue>(handle);
    return one ? one->owner().link().flush(one) : CL_INVALID_COMMAND_QUEUE;
}

cl_int finish(cl_command_queue handle) {
    queue* const one = from_handle<queue>(handle);
    return one ? finish_queue(*one) : CL_INVALID_COMMAND_QUEUE;
}

} // namespace api
} // namespace kagemusha::opencl
