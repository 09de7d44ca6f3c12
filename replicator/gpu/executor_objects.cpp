// SPDX-License-Identifier: GPL-2.0-or-later
// executor_objects: user events, destroy and flush. Other objects are created by the command table:
// executor_resolve.hpp.
#include <CL/cl.h>

#include "gpu/executor_impl.hpp"

namespace kagemusha::gpu {

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
    ++unset_user_events;
    return CL_SUCCESS;
}

std::int32_t executor::impl::run(const codec::op_set_user_event& op) {
    auto* event = objects.find<event_object>(op.c->event);
    if (!event || !event->user)
        return CL_INVALID_EVENT;
    std::int32_t expected = status_pending;
    if (!event->state->status.compare_exchange_strong(expected, op.c->status, std::memory_order_acq_rel))
        return CL_INVALID_OPERATION;
    --unset_user_events;
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
            event && event->user && event->state->status.load(std::memory_order_acquire) == status_pending) {
            --unset_user_events;
            event->state->native->set_status(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
        }
        return objects.erase<event_object>(id) ? CL_SUCCESS : CL_INVALID_EVENT;
    default:
        return CL_INVALID_VALUE;
    }
}

} // namespace kagemusha::gpu
