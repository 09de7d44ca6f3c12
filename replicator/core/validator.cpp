// SPDX-License-Identifier: GPL-2.0-or-later
// In the order of proto/abi/vgpu_protocol.h: calls, silent commands, enqueued commands. The decoder has
// checked everything that needs no object, so offsets and lengths below are known not to overflow where it
// says so.
#include "core/validator.hpp"

#include "base/checked.hpp"
#include "codec/cl_numbers.hpp"
#include "codec/image_format.hpp"
#include "codec/rect.hpp"
#include "core/limits.hpp"

namespace kagemusha::core {

using namespace codec;
using base::range_inside;

namespace {

constexpr const char* no_context = "an id does not name a context of this file";
constexpr const char* no_queue = "an id does not name a queue of this file";
constexpr const char* no_memory = "an id does not name a memory object of this file";
constexpr const char* no_sampler = "an id does not name a sampler of this file";
constexpr const char* no_program = "an id does not name a program of this file";
constexpr const char* no_kernel = "an id does not name a kernel of this file";
constexpr const char* no_event = "an id does not name an event of this file";
constexpr const char* no_object = "an id does not name an object of this kind of this file";
constexpr const char* id_taken = "a new object has an id that is in use";
constexpr const char* id_of_host = "a new object has an id that belongs to the host (VGPU_HOST_ID_BIT)";

bool box_inside(const wire_triple& origin, const wire_triple& region, const std::uint64_t (&extent)[3]) {
    return range_inside(origin[0], region[0], extent[0]) && range_inside(origin[1], region[1], extent[1]) &&
           range_inside(origin[2], region[2], extent[2]);
}

constexpr const char* late_await = "an AWAIT is not before all other commands of its stream";

// Of two objects that a command names, at least one of which was refused: a broken rule counts more than an
// OpenCL error, else the first refusal counts.
verdict graver(const verdict& first, const verdict& second) {
    return second.what == verdict::kind::malformed || first.ok() ? second : first;
}

} // namespace

// ---- calls
// -----------------------------------------------------------------------------------------------------------

verdict validator::check(const op_info& o) {
    const guest_id id = o.c->object;
    switch (o.c->subject) {
    case VGPU_INFO_DEVICE:
        return o.c->index == 0 ? verdict{} : verdict::refuse(cl_invalid_device);
    case VGPU_INFO_IMAGE_FORMATS:
        return table_.find(id, VGPU_OBJECT_CONTEXT) ? verdict{} : verdict::malformed(no_context);
    case VGPU_INFO_MEMORY:
        return table_.find(id, VGPU_OBJECT_MEMORY) ? verdict{} : verdict::malformed(no_memory);
    case VGPU_INFO_IMAGE: {
        const object* memory = table_.find(id, VGPU_OBJECT_MEMORY);
        if (!memory) {
            return verdict::malformed(no_memory);
        }
        return memory->is_image() ? verdict{} : verdict::refuse(cl_invalid_mem_object);
    }
    case VGPU_INFO_PROGRAM:
    case VGPU_INFO_PROGRAM_BUILD:
        return table_.find(id, VGPU_OBJECT_PROGRAM) ? verdict{} : verdict::malformed(no_program);
    case VGPU_INFO_KERNEL:
    case VGPU_INFO_KERNEL_ARG:
    case VGPU_INFO_KERNEL_WORK_GROUP:
    case VGPU_INFO_KERNEL_SUB_GROUP:
        return table_.find(id, VGPU_OBJECT_KERNEL) ? verdict{} : verdict::malformed(no_kernel);
    default: // PLATFORM, TIMERS
        return {};
    }
}

verdict validator::insert(guest_id id, vgpu_object_kind kind, std::uint64_t context) {
    if (table_.taken(id)) {
        return verdict::malformed(id_taken);
    }
    if (!table_.room_for_object()) {
        return verdict::refuse(cl_out_of_host_memory);
    }
    object o;
    o.kind = kind;
    o.context = context;
    created_ = {id, table_.insert(id, o)};
    return {};
}

verdict validator::create(guest_id id, guest_id context, vgpu_object_kind kind) {
    const object* c = table_.find(context, VGPU_OBJECT_CONTEXT);
    return c ? insert(id, kind, c->context) : verdict::malformed(no_context);
}

verdict validator::check(const op_create_context& o) {
    return insert(o.c->id, VGPU_OBJECT_CONTEXT, 0);
}

verdict validator::check(const op_create_queue& o) {
    if (table_.taken(o.c->id)) {
        return verdict::malformed(id_taken);
    }
    if (!table_.find(o.c->context, VGPU_OBJECT_CONTEXT)) {
        return verdict::malformed(no_context);
    }
    return o.c->device_index == 0 ? create(o.c->id, o.c->context, VGPU_OBJECT_QUEUE)
                                  : verdict::refuse(cl_invalid_device);
}

verdict validator::check(const op_create_buffer& o) {
    const object* context = table_.find(o.c->context, VGPU_OBJECT_CONTEXT);
    if (!context) {
        return verdict::malformed(no_context);
    }
    if (table_.taken(o.c->id)) {
        return verdict::malformed(id_taken);
    }
    if (!table_.room_for_object()) {
        return verdict::refuse(cl_out_of_host_memory);
    }
    if (!table_.room_for_memory(o.c->bytes)) {
        return verdict::refuse(cl_mem_object_allocation_failure);
    }
    object b;
    b.kind = VGPU_OBJECT_MEMORY;
    b.context = context->context;
    b.bytes = o.c->bytes;
    created_ = {o.c->id, table_.insert_memory(o.c->id, b, o.c->bytes)};
    return {};
}

verdict validator::check(const op_create_sub_buffer& o) {
    const object* parent = table_.find(o.c->buffer, VGPU_OBJECT_MEMORY);
    if (!parent) {
        return verdict::malformed(no_memory);
    }
    if (table_.taken(o.c->id)) {
        return verdict::malformed(id_taken);
    }
    if (parent->is_image() || parent->sub_buffer) {
        return verdict::refuse(cl_invalid_mem_object);
    }
    if (!range_inside(o.c->origin, o.c->bytes, parent->bytes)) {
        return verdict::refuse(cl_invalid_value);
    }
    if (!table_.room_for_object()) {
        return verdict::refuse(cl_out_of_host_memory);
    }
    object b;
    b.kind = VGPU_OBJECT_MEMORY;
    b.sub_buffer = true;
    b.context = parent->context;
    b.bytes = o.c->bytes;
    created_ = {o.c->id, table_.insert_shared_memory(o.c->id, b, *parent)};
    return {};
}

verdict validator::check(const op_create_image& o) {
    const vgpu_cmd_create_image& c = *o.c;
    const object* context = table_.find(c.context, VGPU_OBJECT_CONTEXT);
    if (!context) {
        return verdict::malformed(no_context);
    }
    if (table_.taken(c.id)) {
        return verdict::malformed(id_taken);
    }
    const object* owner = nullptr;
    if (c.buffer != 0 && !(owner = table_.find(c.buffer, VGPU_OBJECT_MEMORY))) {
        return verdict::malformed(no_memory);
    }
    const std::uint32_t element_bytes = image_element_bytes(c.channel_order, c.channel_type);
    if (element_bytes == 0) {
        return verdict::refuse(cl_image_format_not_supported);
    }
    const image_extent extent = image_extent_of(c);
    if (extent.side[0] == 0 || extent.side[1] == 0 || extent.side[2] == 0) {
        return verdict::refuse(cl_invalid_image_size);
    }
    const base::checked_u64 row = base::checked_u64(extent.side[0]) * element_bytes;
    const base::checked_u64 packed = row * extent.side[1] * extent.side[2];
    if (!packed.ok()) {
        return verdict::refuse(cl_invalid_image_size);
    }
    const std::uint64_t row_pitch = c.row_pitch != 0 ? std::uint64_t{c.row_pitch} : *row.value();
    const base::checked_u64 slice = base::checked_u64(row_pitch) * extent.side[1];
    const std::uint64_t slice_pitch =
        c.slice_pitch != 0 ? std::uint64_t{c.slice_pitch} : slice.value().value_or(UINT64_MAX);
    const base::checked_u64 linear = image_linear_bytes(extent.side, element_bytes, row_pitch, slice_pitch);
    if (!row.within(row_pitch) || (extent.side[2] > 1 && !slice.within(slice_pitch))) {
        return verdict::refuse(cl_invalid_image_descriptor);
    }
    if (o.content.bytes != 0 && !linear.within(o.content.bytes)) {
        return verdict::malformed("the content of an image is shorter than the image");
    }
    if (owner) {
        const bool shape_allowed =
            c.image_type == cl_mem_object_image1d_buffer || c.image_type == cl_mem_object_image2d;
        if (!shape_allowed || owner->is_image() || !linear.within(owner->bytes)) {
            return verdict::refuse(cl_invalid_image_descriptor);
        }
        if (owner->context != context->context) {
            return verdict::refuse(cl_invalid_context);
        }
    }
    if (!table_.room_for_object()) {
        return verdict::refuse(cl_out_of_host_memory);
    }
    if (!owner && !table_.room_for_memory(*packed.value())) {
        return verdict::refuse(cl_mem_object_allocation_failure);
    }
    object i;
    i.kind = VGPU_OBJECT_MEMORY;
    i.context = context->context;
    i.element_bytes = element_bytes;
    for (int d = 0; d < 3; ++d) {
        i.extent[d] = extent.side[d];
    }
    created_ = {c.id, owner ? table_.insert_shared_memory(c.id, i, *owner)
                            : table_.insert_memory(c.id, i, *packed.value())};
    return {};
}

verdict validator::check(const op_create_sampler& o) {
    return create(o.c->id, o.c->context, VGPU_OBJECT_SAMPLER);
}

verdict validator::check(const op_create_program& o) {
    return create(o.c->id, o.c->context, VGPU_OBJECT_PROGRAM);
}

verdict validator::check(const op_build_program& o) {
    return table_.find(o.c->program, VGPU_OBJECT_PROGRAM) ? verdict{} : verdict::malformed(no_program);
}

verdict validator::check(const op_compile_program& o) {
    const object* program = table_.find(o.c->program, VGPU_OBJECT_PROGRAM);
    if (!program) {
        return verdict::malformed(no_program);
    }
    verdict v;
    for (const guest_id id : o.headers) {
        const object* header = table_.find(id, VGPU_OBJECT_PROGRAM);
        if (!header) {
            return verdict::malformed(no_program);
        }
        if (header->context != program->context) {
            v = verdict::refuse(cl_invalid_context);
        }
    }
    return v;
}

verdict validator::check(const op_link_program& o) {
    const object* context = table_.find(o.c->context, VGPU_OBJECT_CONTEXT);
    if (!context) {
        return verdict::malformed(no_context);
    }
    if (table_.taken(o.c->id)) {
        return verdict::malformed(id_taken);
    }
    verdict v;
    for (const guest_id id : o.inputs) {
        const object* input = table_.find(id, VGPU_OBJECT_PROGRAM);
        if (!input) {
            return verdict::malformed(no_program);
        }
        if (input->context != context->context) {
            v = verdict::refuse(cl_invalid_context);
        }
    }
    return v.ok() ? insert(o.c->id, VGPU_OBJECT_PROGRAM, context->context) : v;
}

verdict validator::check(const op_create_kernel& o) {
    const object* program = table_.find(o.c->program, VGPU_OBJECT_PROGRAM);
    return program ? insert(o.c->id, VGPU_OBJECT_KERNEL, program->context) : verdict::malformed(no_program);
}

verdict validator::check(const op_create_user_event& o) {
    const object* context = table_.find(o.c->context, VGPU_OBJECT_CONTEXT);
    if (!context) {
        return verdict::malformed(no_context);
    }
    if (table_.taken(o.c->id)) {
        return verdict::malformed(id_taken);
    }
    if (!table_.room_for_object()) {
        return verdict::refuse(cl_out_of_host_memory);
    }
    object e;
    e.kind = VGPU_OBJECT_EVENT;
    e.event = event_state::user_unset;
    e.context = context->context;
    created_ = {o.c->id, table_.insert(o.c->id, e)};
    return {};
}

verdict validator::check(const op_set_spec_constant& o) {
    return table_.find(o.c->program, VGPU_OBJECT_PROGRAM) ? verdict{} : verdict::malformed(no_program);
}

// ---- silent commands
// -------------------------------------------------------------------------------------------------

verdict validator::check(const op_set_user_event& o) {
    const object* e = table_.find(o.c->event, VGPU_OBJECT_EVENT);
    if (!e) {
        return verdict::malformed(no_event);
    }
    if (e->event != event_state::user_unset) {
        return verdict::malformed("an event that is set is not a user event or was set before");
    }
    table_.set_user_event(o.c->event, o.c->status);
    return {};
}

verdict validator::check(const op_destroy& o) {
    const object* victim = table_.find(o.c->id, static_cast<vgpu_object_kind>(o.c->kind));
    if (!victim) {
        return verdict::malformed(no_object);
    }
    // The worker never heard of the event of a refused command; what it does not know it must not be asked to
    // destroy.
    const bool unknown_to_worker = victim->kind == VGPU_OBJECT_EVENT && victim->event == event_state::refused;
    table_.destroy(o.c->id);
    return unknown_to_worker ? verdict::refuse(cl_success) : verdict{};
}

verdict validator::check(const op_flush& o) {
    return table_.find(o.c->queue, VGPU_OBJECT_QUEUE) ? verdict{} : verdict::malformed(no_queue);
}

// Refused without an error: it is the device's to carry out, so the worker does not get it. Only what is
// pending now counts: commands behind it may use an id again.
verdict validator::check(const op_await& o) {
    if (!awaited_) {
        return verdict::malformed("a guest can't use AWAIT");
    }
    for (const guest_id id : o.events) {
        if (const std::uint64_t serial = table_.pending_serial(id)) {
            awaited_->push_back({id, serial});
        }
    }
    return verdict::refuse(cl_success);
}

// ---- enqueued commands
// -----------------------------------------------------------------------------------------------

verdict validator::buffer(guest_id id, const object& queue, const object*& out) {
    out = table_.find(id, VGPU_OBJECT_MEMORY);
    if (!out) {
        return verdict::malformed(no_memory);
    }
    if (out->is_image()) {
        return verdict::refuse(cl_invalid_mem_object);
    }
    return out->context == queue.context ? verdict{} : verdict::refuse(cl_invalid_context);
}

verdict validator::image(guest_id id, const object& queue, const object*& out) {
    out = table_.find(id, VGPU_OBJECT_MEMORY);
    if (!out) {
        return verdict::malformed(no_memory);
    }
    if (!out->is_image()) {
        return verdict::refuse(cl_invalid_mem_object);
    }
    return out->context == queue.context ? verdict{} : verdict::refuse(cl_invalid_context);
}

verdict validator::body(const op_transfer_buffer& o, const object& queue) {
    const object* b = nullptr;
    const verdict v = buffer(o.c->buffer, queue, b);
    return !v.ok() || range_inside(o.c->offset, o.data.bytes, b->bytes) ? v
                                                                        : verdict::refuse(cl_invalid_value);
}

verdict validator::body(const op_transfer_rect& o, const object& queue) {
    const object* b = nullptr;
    const verdict v = buffer(o.c->buffer, queue, b);
    const bool inside =
        v.ok() && rect_end(o.c->buffer_origin, o.c->region, o.c->buffer_row_pitch, o.c->buffer_slice_pitch)
                      .within(b->bytes);
    return !v.ok() || inside ? v : verdict::refuse(cl_invalid_value);
}

verdict validator::body(const op_copy_buffer& o, const object& queue) {
    const object* source = nullptr;
    const object* destination = nullptr;
    const verdict v = buffer(o.c->source, queue, source);
    const verdict w = buffer(o.c->destination, queue, destination);
    if (!v.ok() || !w.ok()) {
        return graver(v, w);
    }
    return range_inside(o.c->source_offset, o.c->bytes, source->bytes) &&
                   range_inside(o.c->destination_offset, o.c->bytes, destination->bytes)
               ? verdict{}
               : verdict::refuse(cl_invalid_value);
}

verdict validator::body(const op_copy_rect& o, const object& queue) {
    const object* source = nullptr;
    const object* destination = nullptr;
    const verdict v = buffer(o.c->source, queue, source);
    const verdict w = buffer(o.c->destination, queue, destination);
    if (!v.ok() || !w.ok()) {
        return graver(v, w);
    }
    return rect_end(o.c->source_origin, o.c->region, o.c->source_row_pitch, o.c->source_slice_pitch)
                       .within(source->bytes) &&
                   rect_end(o.c->destination_origin, o.c->region, o.c->destination_row_pitch,
                            o.c->destination_slice_pitch)
                       .within(destination->bytes)
               ? verdict{}
               : verdict::refuse(cl_invalid_value);
}

verdict validator::body(const op_fill_buffer& o, const object& queue) {
    const object* b = nullptr;
    const verdict v = buffer(o.c->buffer, queue, b);
    return !v.ok() || range_inside(o.c->offset, o.c->bytes, b->bytes) ? v : verdict::refuse(cl_invalid_value);
}

verdict validator::body(const op_transfer_image& o, const object& queue) {
    const object* i = nullptr;
    const verdict v = image(o.c->image, queue, i);
    if (!v.ok()) {
        return v;
    }
    const wire_triple& region = o.c->region;
    if (image_linear_bytes(region, i->element_bytes, o.c->row_pitch, o.c->slice_pitch).value() !=
        o.data.bytes) {
        return verdict::malformed("the payload is not as long as the region in host memory");
    }
    const bool pitches_hold =
        (base::checked_u64(region[0]) * i->element_bytes).within(o.c->row_pitch) &&
        (region[2] == 1 || (base::checked_u64(o.c->row_pitch) * region[1]).within(o.c->slice_pitch));
    return pitches_hold && box_inside(o.c->origin, region, i->extent) ? verdict{}
                                                                      : verdict::refuse(cl_invalid_value);
}

verdict validator::body(const op_copy_image& o, const object& queue) {
    const object* source = nullptr;
    const object* destination = nullptr;
    const verdict v = image(o.c->source, queue, source);
    const verdict w = image(o.c->destination, queue, destination);
    if (!v.ok() || !w.ok()) {
        return graver(v, w);
    }
    return box_inside(o.c->source_origin, o.c->region, source->extent) &&
                   box_inside(o.c->destination_origin, o.c->region, destination->extent)
               ? verdict{}
               : verdict::refuse(cl_invalid_value);
}

verdict validator::body(const op_copy_image_buffer& o, const object& queue) {
    const object* i = nullptr;
    const object* b = nullptr;
    const verdict v = image(o.c->image, queue, i);
    const verdict w = buffer(o.c->buffer, queue, b);
    if (!v.ok() || !w.ok()) {
        return graver(v, w);
    }
    const base::checked_u64 end =
        base::checked_u64(o.c->region[0]) * o.c->region[1] * o.c->region[2] * i->element_bytes + o.c->offset;
    return end.within(b->bytes) && box_inside(o.c->origin, o.c->region, i->extent)
               ? verdict{}
               : verdict::refuse(cl_invalid_value);
}

verdict validator::body(const op_fill_image& o, const object& queue) {
    const object* i = nullptr;
    const verdict v = image(o.c->image, queue, i);
    return !v.ok() || box_inside(o.c->origin, o.c->region, i->extent) ? v : verdict::refuse(cl_invalid_value);
}

verdict validator::body(const op_launch& o, const object& queue) {
    const object* kernel = table_.find(o.c->kernel, VGPU_OBJECT_KERNEL);
    if (!kernel) {
        return verdict::malformed(no_kernel);
    }
    verdict v = kernel->context == queue.context ? verdict{} : verdict::refuse(cl_invalid_context);
    o.arguments.for_each([&](const launch_argument& a) {
        const object* argument = nullptr;
        if (a.kind == VGPU_ARGUMENT_MEMORY && a.object != 0) {
            argument = table_.find(a.object, VGPU_OBJECT_MEMORY);
        } else if (a.kind == VGPU_ARGUMENT_SAMPLER) {
            argument = table_.find(a.object, VGPU_OBJECT_SAMPLER);
        } else {
            return; // bytes, local memory, a null pointer
        }
        if (!argument) {
            v = verdict::malformed(a.kind == VGPU_ARGUMENT_MEMORY ? no_memory : no_sampler);
        } else if (v.ok() && argument->context != queue.context) {
            v = verdict::refuse(cl_invalid_context);
        }
    });
    return v;
}

verdict validator::body(const op_sync&, const object&) {
    return {};
}

verdict validator::body(const op_migrate& o, const object& queue) {
    verdict v;
    for (const guest_id id : o.objects) {
        const object* memory = table_.find(id, VGPU_OBJECT_MEMORY);
        if (!memory) {
            return verdict::malformed(no_memory);
        }
        if (memory->context != queue.context) {
            v = verdict::refuse(cl_invalid_context);
        }
    }
    return v;
}

verdict validator::body(const op_write_runs& o, const object& queue) {
    const object* b = nullptr;
    const verdict v = buffer(o.c->buffer, queue, b);
    return !v.ok() || o.end <= b->bytes ? v : verdict::refuse(cl_invalid_value);
}

// The queue, the wait list, and whether the event's id is free.
verdict validator::enqueue(const vgpu_enqueue& e, id_list waits, const object*& queue) {
    queue = table_.find(e.queue, VGPU_OBJECT_QUEUE);
    if (!queue) {
        return verdict::malformed(no_queue);
    }
    if (e.event != 0 && table_.taken(e.event)) {
        return verdict::malformed(id_taken);
    }
    verdict v;
    for (const guest_id id : waits) {
        const object* event = table_.find(id, VGPU_OBJECT_EVENT);
        if (!event) {
            return verdict::malformed(no_event);
        }
        if (event->context != queue->context) {
            v = verdict::refuse(cl_invalid_context);
        } else if (v.ok() && event->event == event_state::refused) {
            v = verdict::refuse(cl_wait_list_error);
        }
    }
    return v;
}

// Quotas of events, and the event's object.
verdict validator::finish_enqueue(const vgpu_enqueue& e, const object& queue, verdict v) {
    if (e.event == 0) {
        return v;
    }
    if (v.ok() && (events_.in_flight >= events_.limit || !table_.room_for_object())) {
        v = verdict::refuse(cl_out_of_resources);
    }
    object event;
    event.kind = VGPU_OBJECT_EVENT;
    event.context = queue.context;
    if (v.ok()) {
        event.event = event_state::pending;
    } else {
        if (events_.in_flight >= events_.limit + max_refused_per_file ||
            !table_.room_for_object(max_refused_per_file)) {
            return verdict::limit("too many commands failed by quotas or errors and were not fetched");
        }
        event.event = event_state::refused;
    }
    ++events_.in_flight;
    table_.insert(e.event, event);
    return v;
}

bool validator::check_again(const repeated_launches::repetition& r) {
    bool fits = true;
    r.memory.for_each([&](std::size_t word) {
        const object* memory = table_.find(r.command[word], VGPU_OBJECT_MEMORY);
        fits &= memory && memory->context == r.context;
    });
    r.waits.for_each([&](std::size_t word) {
        const object* event = table_.find(r.command[word], VGPU_OBJECT_EVENT);
        fits &= event && event->context == r.context && event->event != event_state::refused;
    });
    const guest_id id = r.launch().enqueue.event;
    if (!fits || (id != 0 && ((id & VGPU_HOST_ID_BIT) != 0 || table_.taken(id) ||
                              events_.in_flight >= events_.limit || !table_.room_for_object()))) {
        return false;
    }
    if (id != 0) {
        object event;
        event.kind = VGPU_OBJECT_EVENT;
        event.context = r.context;
        event.event = event_state::pending;
        ++events_.in_flight;
        table_.insert(id, event);
    }
    created_ = {};
    return true;
}

verdict validator::check(const op& o) {
    created_ = {};
    const bool first = only_awaits_;
    only_awaits_ = first && std::holds_alternative<op_await>(o);
    return std::visit(
        [this, first](const auto& x) -> verdict {
            if constexpr (requires { x.c->enqueue; }) {
                if ((x.c->enqueue.event & VGPU_HOST_ID_BIT) != 0 && !awaited_) {
                    return verdict::malformed(id_of_host);
                }
                const object* queue = nullptr;
                verdict v = enqueue(x.c->enqueue, x.waits, queue);
                if (v.what == verdict::kind::malformed) {
                    return v;
                }
                const verdict of_body = body(x, *queue);
                if (of_body.what == verdict::kind::malformed) {
                    return of_body;
                }
                context_ = queue->context;
                return finish_enqueue(x.c->enqueue, *queue, v.ok() ? of_body : v);
            } else {
                if constexpr (requires { x.c->id; }) { // what creates an object, and DESTROY
                    if ((x.c->id & VGPU_HOST_ID_BIT) != 0 && !awaited_) {
                        return verdict::malformed(id_of_host);
                    }
                }
                if constexpr (std::is_same_v<std::decay_t<decltype(x)>, op_await>) {
                    if (!first) {
                        return verdict::malformed(late_await);
                    }
                }
                return check(x);
            }
        },
        o);
}

} // namespace kagemusha::core
