// SPDX-License-Identifier: GPL-2.0-or-later
//
// The common part of enqueueing; enqueue.hpp has the idea.
#include "enqueue.hpp"

namespace kagemusha::opencl {

namespace {

// Behind these events, or behind everything that is in the queue.
cl_int append_marker(queue& where, awaited_by who, std::span<const std::uint64_t> wait_ids,
                     ref<event>& marker) {
    marker = make_object<event>(where.owner_ref(), ref<queue>(&where), CL_COMMAND_MARKER);
    if (!marker)
        return CL_OUT_OF_HOST_MEMORY;
    marker->awaited = who;
    auto command = make_command<commands::marker>();
    command.enqueue.queue = where.id();
    command.enqueue.event = marker->id();
    return where.owner().link().append(make_outgoing(command, codec::id_list(wait_ids)), marker.get(), where);
}

} // namespace

enqueueing::enqueueing(cl_command_queue where, cl_command_type command, cl_uint wait_count,
                       const cl_event* wait_list, cl_event* event_out, bool blocking)
    : where_(from_handle<queue>(where)), command_(command), event_out_(event_out), blocking_(blocking) {
    if (!where_)
        error_ = CL_INVALID_COMMAND_QUEUE;
    else
        read_wait_list(wait_count, wait_list);
}

void enqueueing::read_wait_list(cl_uint count, const cl_event* list) {
    if ((count == 0) != (list == nullptr)) {
        error_ = CL_INVALID_EVENT_WAIT_LIST;
        return;
    }
    for (cl_uint i = 0; i < count; ++i) {
        event* const one = from_handle<event>(list[i]);
        if (!one) {
            error_ = CL_INVALID_EVENT_WAIT_LIST;
            return;
        }
        if (&one->owner() != &owner()) {
            error_ = CL_INVALID_CONTEXT;
            return;
        }
        const cl_int status = one->status();
        if (status == CL_COMPLETE) {
            if (one->known_to_device())
                complete_id_ = one->id();
            continue;
        }
        if (!one->known_to_device()) {
            error_ = CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
            return;
        }
        wait_ids_.push_back(one->id());
    }
    // A marker or a barrier without a list waits for what is in its own queue.
    if (count > 0 || (command_ != CL_COMMAND_MARKER && command_ != CL_COMMAND_BARRIER))
        wait_for_early_writes();
    if (error_ == CL_SUCCESS && wait_ids_.size() > VGPU_MAX_WAIT_COUNT)
        error_ = shorten_wait_list();
}

void enqueueing::wait_for_early_writes() {
    early_writes& writes = owner().writes();
    for (early_writes::write& one : writes.elsewhere(*where_)) {
        ref<event> marker;
        if (one.where && one.where->over_until.load(std::memory_order_acquire) < one.number) {
            error_ = mark_early_write(*one.where, marker);
            if (error_ != CL_SUCCESS)
                return;
        } else if (!one.where) {
            marker = owner().link().pending_event(one.marker);
        }
        if (!marker) {
            writes.forget(one.queue_id, one.number);
            continue;
        }
        wait_ids_.push_back(marker->id());
        written_.push_back(std::move(marker));
    }
}

// More events than one command may wait for: markers that wait for some of them each take their place.
cl_int enqueueing::shorten_wait_list() {
    while (wait_ids_.size() > VGPU_MAX_WAIT_COUNT) {
        std::vector<std::uint64_t> rest(wait_ids_.begin() + VGPU_MAX_WAIT_COUNT, wait_ids_.end());
        wait_ids_.resize(VGPU_MAX_WAIT_COUNT);
        ref<event> marker;
        const cl_int error = append_marker(*where_, awaited_by::program, wait_ids_, marker);
        if (error != CL_SUCCESS)
            return error;
        rest.push_back(marker->id());
        steps_.push_back(
            std::move(marker)); // its id stays valid until the command that names it is in the batch
        wait_ids_ = std::move(rest);
    }
    return CL_SUCCESS;
}

// Whatever is not known to change nothing, or to be looked after elsewhere: launches and unmaps.
void enqueueing::note_change() {
    switch (command_) {
    case CL_COMMAND_READ_BUFFER:
    case CL_COMMAND_READ_BUFFER_RECT:
    case CL_COMMAND_READ_IMAGE:
    case CL_COMMAND_MARKER:
    case CL_COMMAND_BARRIER:
    case CL_COMMAND_MAP_BUFFER:
    case CL_COMMAND_MAP_IMAGE:
    case CL_COMMAND_UNMAP_MEM_OBJECT:
    case CL_COMMAND_NDRANGE_KERNEL:
    case CL_COMMAND_TASK:
        break;
    default:
        owner().note_change();
    }
}

// The command's queue, event and wait list.
cl_int enqueueing::begin(bool step, std::uint16_t opcode, vgpu_enqueue& enqueue, ref<event>& made) {
    note_change();
    // An in-order queue keeps steps in order by itself: the first waits, the last tells.
    const bool waits = blocking_ && !returns_early_;
    const bool needs_event = step ? !where_->in_order() : event_out_ || waits || kept_ || !read_into_.empty();
    if (needs_event) {
        made = make_object<event>(where_->owner_ref(), ref<queue>(where_), command_);
        if (!made)
            return CL_OUT_OF_HOST_MEMORY;
        if (kept_)
            made->keep(kept_);
        if (!step)
            made->set_reads_into(read_into_);
        if (waits && !step)
            made->awaited = awaited_by::call;
        else if (!event_out_)
            made->awaited = awaited_by::nobody;
    }
    // A marker that names no event would wait for everything before it.
    if (wait_ids_.empty() && complete_id_ && (opcode == VGPU_CMD_MARKER || opcode == VGPU_CMD_BARRIER))
        wait_ids_.push_back(complete_id_);
    enqueue.queue = where_->id();
    enqueue.event = made ? made->id() : 0;
    return CL_SUCCESS;
}

cl_int enqueueing::end(bool step, const outgoing& out, ref<event> made) {
    std::uint64_t number = 0;
    const cl_int error = owner().link().append(out, made.get(), *where_, &number);
    if (error != CL_SUCCESS)
        return error;
    if (step) {
        if (made)
            steps_.push_back(std::move(made));
        else
            wait_ids_.clear();
        return CL_SUCCESS;
    }
    if (returns_early_) {
        owner().writes().add(*where_, number);
    } else if (blocking_) {
        const cl_int result = wait_blocking(*made, *where_);
        if (result != CL_SUCCESS)
            return result;
    }
    if (event_out_)
        *event_out_ = hand_out<cl_event>(std::move(made));
    return CL_SUCCESS;
}

bool enqueueing::order_with_reads(bool writes, const void* first, std::size_t bytes) {
    const std::span<const std::byte> memory{static_cast<const std::byte*>(first), bytes};
    if (!writes) {
        if (!blocking_)
            read_into_ = memory;
        return true;
    }
    connection& link = owner().link();
    while (const ref<event> earlier = link.read_in_flight(memory)) {
        if (link.has_unset_user_events())
            return false;
        link.flush(earlier->where()); // an error here completes the event
        earlier->wait();
    }
    return true;
}

cl_int enqueueing::join() {
    // In the order of the queue everything before counts; elsewhere only the steps do.
    for (const ref<event>& one : steps_)
        wait_ids_.push_back(one->id());
    if (wait_ids_.size() > VGPU_MAX_WAIT_COUNT) {
        const cl_int error = shorten_wait_list();
        if (error != CL_SUCCESS)
            return error;
    }
    auto command = make_command<commands::marker>();
    return send(command);
}

cl_int wait_blocking(event& awaited, queue& where) {
    if (!awaited.is_over())
        where.owner().link().flush(&where); // an error here completes the event
    const cl_int status = awaited.wait();
    const cl_int earlier = where.take_error();
    if (status == CL_COMPLETE && where.in_order() && awaited.where() == &where)
        where.over_until.store(awaited.command_number, std::memory_order_release);
    return status < 0 ? status : earlier;
}

cl_int finish_queue(queue& where) {
    // Behind a blocking read, which is how most programs wait, there is nothing left to wait for.
    const std::uint64_t over = where.over_until.load(std::memory_order_acquire);
    if (connection& link = where.owner().link(); over != 0 && over == link.command_count()) {
        const cl_int error = link.flush(nullptr); // objects that were given up meanwhile
        return error != CL_SUCCESS ? error : where.take_error();
    }
    ref<event> marker;
    const cl_int error = append_marker(where, awaited_by::call, {}, marker);
    return error != CL_SUCCESS ? error : wait_blocking(*marker, where);
}

cl_int mark_early_write(queue& where, ref<event>& marker) {
    const cl_int error = append_marker(where, awaited_by::nobody, {}, marker);
    if (error == CL_SUCCESS)
        where.owner().writes().mark(where.id(), marker->command_number, marker->id());
    return error;
}

} // namespace kagemusha::opencl
