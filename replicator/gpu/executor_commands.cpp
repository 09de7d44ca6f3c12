// SPDX-License-Identifier: GPL-2.0-or-later
// executor_commands: what all enqueued commands share, arguments of kernels, and packed writes, whose bytes
// are not fields, so that the command table (executor_resolve.hpp) can't find their objects.
#include <CL/cl.h>

#include <algorithm>
#include <utility>

#include "gpu/executor_impl.hpp"

namespace kagemusha::gpu {

memory_object* executor::impl::find_buffer(codec::guest_id id) {
    auto* object = objects.find<memory_object>(id);
    return object && !object->is_image ? object : nullptr;
}

memory_object* executor::impl::find_image(codec::guest_id id) {
    auto* object = objects.find<memory_object>(id);
    return object && object->is_image ? object : nullptr;
}

// ---- what every command shares
// ------------------------------------------------------------------------------------

// Fills `waits`. Events that are complete need not be waited for. One that has failed fails the command here,
// with the standard's code, because runtimes differ in what they do with it.
std::int32_t executor::impl::collect_waits(codec::id_list ids) {
    waits.clear();
    complete_wait = nullptr;
    for (const codec::guest_id id : ids) {
        auto* event = objects.find<event_object>(id);
        if (!event)
            return CL_INVALID_EVENT_WAIT_LIST;
        std::int32_t status = event->state->status.load(std::memory_order_acquire);
        if (status == status_pending && event->state->native->poll() < 0)
            status = CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST; // failed, but not yet reported
        if (status < 0)
            return CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
        if (status == status_pending)
            waits.push_back(event->state->native.get());
        else
            complete_wait = event->state->native.get();
    }
    return CL_SUCCESS;
}

// A command that never reached the GPU: the guest is told the same way as of one that failed there.
void executor::impl::refuse(const vgpu_cmd& cmd, const vgpu_enqueue& e, std::int32_t error) {
    auto state = std::make_shared<event_state>();
    state->status.store(error, std::memory_order_relaxed);
    if (e.event != 0)
        objects.insert(e.event, event_object{state, false});
    pending_command command;
    command.shared = shared;
    command.event_id = e.event;
    command.queue_id = e.queue;
    command.opcode = cmd.opcode;
    check_lost(error); // first, as in pending_command::finished()
    command.report(error, {});
}

std::int32_t executor::impl::enqueue(const vgpu_cmd& cmd, const vgpu_enqueue& e, codec::id_list wait_ids,
                                     const command& what, payload_ptr data) {
    const auto refused = [&](std::int32_t error) {
        report_written(data);
        refuse(cmd, e, error);
        return error;
    };
    auto* queue = objects.find<queue_object>(e.queue);
    if (!queue)
        return refused(CL_INVALID_COMMAND_QUEUE);
    if (e.event != 0 && objects.contains(e.event))
        return refused(CL_INVALID_VALUE);
    if (const std::int32_t error = collect_waits(wait_ids))
        return refused(error);
    // A marker that waits for nothing waits for everything.
    if (waits.empty() && complete_wait && std::holds_alternative<resolved<codec::op_sync>>(what))
        waits.push_back(complete_wait);

    if (gate != nullptr && !task) {
        gate->begin(unset_user_events != 0);
        task = std::make_shared<gated_task>(*gate);
    }
    // A command that waits may fail because of what it waits for, so it has an event of its own.
    const bool wants_event = e.event != 0 || data || !waits.empty() || !queue->in_order;
    enqueued out;
    if (const std::int32_t error = device().enqueue(*queue->native, what, waits, wants_event, out))
        return refused(error);
    if (std::find(touched.begin(), touched.end(), e.queue) == touched.end())
        touched.push_back(e.queue);
    if (!out.event) {
        queue->unmarked_opcode = cmd.opcode;
        return CL_SUCCESS;
    }
    if (queue->in_order)
        queue->unmarked_opcode = 0; // this event stands for those before it

    auto pending = std::make_unique<pending_command>();
    pending->shared = shared;
    pending->event = std::make_shared<event_state>();
    pending->event->native = std::move(out.event);
    pending->event_id = e.event;
    pending->queue_id = e.queue;
    pending->opcode = cmd.opcode;
    pending->profiles = queue->profiles && e.event != 0;
    if (out.payload_busy && data && data->in_guest_memory()) {
        if (!pending_request)
            pending_request = std::make_shared<request_state>(shared, request->token);
        pending_request->add_use();
        pending->request = pending_request;
    } else {
        report_written(data);
    }
    pending->payload = std::move(data);
    if (e.event != 0)
        objects.insert(e.event, event_object{pending->event, false});

    return watch(std::move(pending));
}

void executor::impl::report_written(const payload_ptr& data) {
    if (data && data->written_as())
        shared->sink.on_written(request->token, *data->written_as());
}

std::int32_t executor::impl::watch(std::unique_ptr<pending_command> pending) {
    pending->task = task;
    // From here on the callback owns the command, and may have finished it before notify() returns.
    host_event& native = *pending->event->native;
    pending_command* raw = pending.release();
    if (const std::int32_t error = native.notify(&pending_command::finished, raw)) {
        // The runtime runs the command but won't tell when it ends: it can't be waited for without trusting
        // the guest, so the GPU is given up. `raw` stays, because its payload may still be in use.
        shared->report_lost(error);
        return error;
    }
    return CL_SUCCESS;
}

void executor::impl::mark(codec::guest_id id, queue_object& queue) {
    if (queue.unmarked_opcode == 0)
        return;
    auto pending = std::make_unique<pending_command>();
    pending->shared = shared;
    pending->event = std::make_shared<event_state>();
    pending->queue_id = id;
    pending->opcode = std::exchange(queue.unmarked_opcode, 0);
    if (const std::int32_t error = device().mark(*queue.native, pending->event->native)) {
        check_lost(error);
        pending->report(error, {});
        return;
    }
    watch(std::move(pending));
}

// ---- packed writes
// --------------------------------------------------------------------------------------------------

void executor::impl::run(const codec::op_write_runs& op) {
    auto* memory = find_buffer(op.c->buffer);
    if (!memory)
        return refuse(op.c->cmd, op.c->enqueue, CL_INVALID_MEM_OBJECT);
    if (op.end > memory->bytes)
        return refuse(op.c->cmd, op.c->enqueue, CL_INVALID_VALUE);
    const payload_ptr data = payload({op.bytes.size(), VGPU_PAYLOAD_INLINE, op.bytes}, false);
    enqueue(op.c->cmd, op.c->enqueue, op.waits, resolved<codec::op_write_runs>{op, {*memory->native, data}},
            data);
}

// ---- arguments
// ---------------------------------------------------------------------------------------------------------

std::int32_t executor::impl::changed_arguments(const codec::argument_list& arguments, kernel_object& kernel) {
    changed.clear();
    std::int32_t error = CL_SUCCESS;
    arguments.for_each([&](const codec::launch_argument& a) {
        if (error || a.index >= VGPU_MAX_ARGUMENTS) {
            error = error ? error : CL_INVALID_ARG_INDEX;
            return;
        }
        host_argument argument{a.index, a.kind, a.bytes, a.value, nullptr, nullptr};
        std::uint64_t serial = 0;
        if (a.kind == VGPU_ARGUMENT_MEMORY && a.object != 0) {
            auto* memory = objects.find<memory_object>(a.object);
            if (!memory) {
                error = CL_INVALID_MEM_OBJECT;
                return;
            }
            argument.memory = memory->native.get();
            serial = memory->serial;
        } else if (a.kind == VGPU_ARGUMENT_SAMPLER) {
            auto* sampler = objects.find<sampler_object>(a.object);
            if (!sampler) {
                error = CL_INVALID_SAMPLER;
                return;
            }
            argument.sampler = sampler->native.get();
            serial = sampler->serial;
        }
        if (a.index >= kernel.arguments.size())
            kernel.arguments.resize(a.index + 1);
        argument_cache& cache = kernel.arguments[a.index];
        if (cache.valid && cache.kind == a.kind && cache.bytes == a.bytes && cache.serial == serial &&
            std::equal(a.value.begin(), a.value.end(), cache.value.begin(), cache.value.end()))
            return;
        // Valid again once the launch has succeeded.
        cache.valid = false;
        cache.kind = a.kind;
        cache.bytes = a.bytes;
        cache.serial = serial;
        cache.value.assign(a.value.begin(), a.value.end());
        changed.push_back(argument);
    });
    return error;
}

void executor::impl::arguments_set(kernel_object& kernel, std::int32_t error) {
    if (error)
        for (argument_cache& cache : kernel.arguments)
            cache.valid = false;
    else
        for (const host_argument& argument : changed)
            kernel.arguments[argument.index].valid = true;
}

} // namespace kagemusha::gpu
