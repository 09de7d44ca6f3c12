// SPDX-License-Identifier: GPL-2.0-or-later
// executor_objects: contexts, queues, memory, samplers, user events; create and destroy.
#include <CL/cl.h>

#include "gpu/executor_impl.hpp"

namespace kagemusha::gpu {

// An id that is taken is refused by the device (core) before it comes here; the maps refuse it again.
constexpr std::int32_t id_taken = CL_INVALID_VALUE;

// What the host may not do with memory is a promise of the guest's program, and its driver keeps it. On this
// side all memory can be read and written: replication does, with memory of every kind.
constexpr std::uint64_t host_access = CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS;

std::int32_t executor::impl::run(const codec::op_create_context& op) {
    context_object object;
    if (objects.contains(op.c->id))
        return id_taken;
    if (const std::int32_t error = device().create_context(object.native))
        return error;
    objects.insert(op.c->id, std::move(object));
    return CL_SUCCESS;
}

std::int32_t executor::impl::run(const codec::op_create_queue& op) {
    auto* context = objects.find<context_object>(op.c->context);
    if (!context)
        return CL_INVALID_CONTEXT;
    if (op.c->device_index != 0)
        return CL_INVALID_DEVICE;
    if (objects.contains(op.c->id))
        return id_taken;
    queue_object object{nullptr, (op.c->properties & CL_QUEUE_PROFILING_ENABLE) != 0,
                        (op.c->properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) == 0};
    if (const std::int32_t error = device().create_queue(*context->native, op.c->properties, object.native))
        return error;
    objects.insert(op.c->id, std::move(object));
    return CL_SUCCESS;
}

std::int32_t executor::impl::run(const codec::op_create_buffer& op) {
    auto* context = objects.find<context_object>(op.c->context);
    if (!context)
        return CL_INVALID_CONTEXT;
    if (objects.contains(op.c->id))
        return id_taken;
    const payload_ptr content = payload(op.content, false);
    if (malformed)
        return CL_INVALID_VALUE;
    if (content && content->bytes() != op.c->bytes) {
        malformed = true;
        return CL_INVALID_VALUE;
    }
    memory_object object{nullptr, next_serial++, op.c->bytes, false};
    if (const std::int32_t error = device().create_buffer(*context->native, op.c->flags & ~host_access,
                                                          op.c->bytes, content.get(), object.native))
        return error;
    objects.insert(op.c->id, std::move(object));
    return CL_SUCCESS;
}

std::int32_t executor::impl::run(const codec::op_create_sub_buffer& op) {
    auto* parent = find_buffer(op.c->buffer);
    if (!parent)
        return CL_INVALID_MEM_OBJECT;
    if (objects.contains(op.c->id))
        return id_taken;
    if (op.c->bytes == 0 || op.c->bytes > parent->bytes || op.c->origin > parent->bytes - op.c->bytes)
        return CL_INVALID_VALUE;
    memory_object object{nullptr, next_serial++, op.c->bytes, false};
    if (const std::int32_t error = device().create_sub_buffer(*parent->native, op.c->flags & ~host_access,
                                                              op.c->origin, op.c->bytes, object.native))
        return error;
    objects.insert(op.c->id, std::move(object));
    return CL_SUCCESS;
}

std::int32_t executor::impl::run(const codec::op_create_image& op) {
    auto* context = objects.find<context_object>(op.c->context);
    if (!context)
        return CL_INVALID_CONTEXT;
    host_memory* buffer = nullptr;
    if (op.c->buffer != 0) {
        auto* object = objects.find<memory_object>(op.c->buffer);
        if (!object)
            return CL_INVALID_MEM_OBJECT;
        buffer = object->native.get();
    }
    if (objects.contains(op.c->id))
        return id_taken;
    const payload_ptr content = payload(op.content, false);
    if (malformed)
        return CL_INVALID_VALUE;
    memory_object object{nullptr, next_serial++, 0, true};
    vgpu_cmd_create_image c = *op.c;
    c.flags &= ~host_access;
    if (const std::int32_t error =
            device().create_image(*context->native, c, buffer, content.get(), object.native))
        return error;
    objects.insert(op.c->id, std::move(object));
    return CL_SUCCESS;
}

std::int32_t executor::impl::run(const codec::op_create_sampler& op) {
    auto* context = objects.find<context_object>(op.c->context);
    if (!context)
        return CL_INVALID_CONTEXT;
    if (objects.contains(op.c->id))
        return id_taken;
    sampler_object object{nullptr, next_serial++};
    if (const std::int32_t error = device().create_sampler(*context->native, op.c->normalized != 0,
                                                           op.c->addressing, op.c->filter, object.native))
        return error;
    objects.insert(op.c->id, std::move(object));
    return CL_SUCCESS;
}

std::int32_t executor::impl::run(const codec::op_create_user_event& op) {
    auto* context = objects.find<context_object>(op.c->context);
    if (!context)
        return CL_INVALID_CONTEXT;
    if (objects.contains(op.c->id))
        return id_taken;
    event_object object{std::make_shared<event_state>(), true};
    if (const std::int32_t error = device().create_user_event(*context->native, object.state->native))
        return error;
    objects.insert(op.c->id, std::move(object));
    return CL_SUCCESS;
}

std::int32_t executor::impl::run(const codec::op_set_user_event& op) {
    auto* event = objects.find<event_object>(op.c->event);
    if (!event || !event->user)
        return CL_INVALID_EVENT;
    std::int32_t expected = status_pending;
    if (!event->state->status.compare_exchange_strong(expected, op.c->status, std::memory_order_acq_rel))
        return CL_INVALID_OPERATION;
    return event->state->native->set_status(op.c->status);
}

std::int32_t executor::impl::run(const codec::op_flush& op) {
    auto* queue = objects.find<queue_object>(op.c->queue);
    return queue ? device().flush(*queue->native) : CL_INVALID_COMMAND_QUEUE;
}

// The device takes it out of the stream: whoever puts one into the ring is not the device.
std::int32_t executor::impl::run(const codec::op_await&) {
    malformed = true;
    return CL_INVALID_OPERATION;
}

std::int32_t executor::impl::run(const codec::op_destroy& op) {
    const codec::guest_id id = op.c->id;
    switch (op.c->kind) {
    case VGPU_OBJECT_CONTEXT:
        return objects.erase<context_object>(id) ? CL_SUCCESS : CL_INVALID_CONTEXT;
    case VGPU_OBJECT_QUEUE:
        return objects.erase<queue_object>(id) ? CL_SUCCESS : CL_INVALID_COMMAND_QUEUE;
    case VGPU_OBJECT_MEMORY:
        return objects.erase<memory_object>(id) ? CL_SUCCESS : CL_INVALID_MEM_OBJECT;
    case VGPU_OBJECT_SAMPLER:
        return objects.erase<sampler_object>(id) ? CL_SUCCESS : CL_INVALID_SAMPLER;
    case VGPU_OBJECT_PROGRAM:
        return objects.erase<program_object>(id) ? CL_SUCCESS : CL_INVALID_PROGRAM;
    case VGPU_OBJECT_KERNEL:
        return objects.erase<kernel_object>(id) ? CL_SUCCESS : CL_INVALID_KERNEL;
    case VGPU_OBJECT_EVENT:
        // Nobody can set a user event any more: what waits for it must not wait for ever.
        if (auto* event = objects.find<event_object>(id);
            event && event->user && event->state->status.load(std::memory_order_acquire) == status_pending)
            event->state->native->set_status(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
        return objects.erase<event_object>(id) ? CL_SUCCESS : CL_INVALID_EVENT;
    default:
        return CL_INVALID_VALUE;
    }
}

} // namespace kagemusha::gpu
