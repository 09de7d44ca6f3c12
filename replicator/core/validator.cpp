// SPDX-License-Identifier: GPL-2.0-or-later
// What the parts of a row mean to the validator (part_checker), then what is checked by hand, then what every
// enqueued command shares. The decoder has checked everything that needs no object, so offsets and lengths
// below are known not to overflow where it says so.
#include "core/validator.hpp"

#include <array>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>

#include "base/checked.hpp"
#include "codec/cl_numbers.hpp"
#include "codec/commands/table.hpp"
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

// ---- by the row
// -----------------------------------------------------------------------------------------------------

struct table_kind {
    vgpu_object_kind kind;
    const char* missing; // what is said when an id names no such object
};
constexpr const char* missing(vgpu_object_kind kind) {
    switch (kind) {
    case VGPU_OBJECT_CONTEXT:
        return no_context;
    case VGPU_OBJECT_QUEUE:
        return no_queue;
    case VGPU_OBJECT_SAMPLER:
        return no_sampler;
    case VGPU_OBJECT_PROGRAM:
        return no_program;
    case VGPU_OBJECT_KERNEL:
        return no_kernel;
    case VGPU_OBJECT_EVENT:
        return no_event;
    case VGPU_OBJECT_MEMORY:
        break;
    }
    return no_memory;
}
constexpr table_kind kind_of(commands::object kind) {
    const vgpu_object_kind on_wire = commands::wire_kind(kind);
    return {on_wire, missing(on_wire)};
}

// What the row of one op says about objects. All of them belong to one context: an enqueued command's is that
// of its queue, another's is that of the object that it names first.
//
// The order: objects that are named one by one, a new object's id, objects in lists; then what is checked by
// hand (also()); then ranges. It decides which of two errors a program gets; that a broken rule counts more
// than any error does not depend on it.
template <class Op>
class part_checker {
    using row = commands::row_of<Op>;
    static constexpr std::size_t parts = std::tuple_size_v<std::remove_cvref_t<decltype(row::parts)>>;

public:
    // `context`: a serial, or 0 where no object has been looked at.
    part_checker(const object_table& table, const Op& op, std::uint64_t context)
        : table_(table), op_(op), context_(context) {}

    verdict check() {
        const bool no_rule_broken =
            for_each([&]<std::size_t I>(const auto& part) { return named<I>(part); }) &&
            for_each([&]<std::size_t>(const auto& part) { return fresh(part); }) &&
            for_each([&]<std::size_t>(const auto& part) { return listed(part); });
        if (no_rule_broken && verdict_.ok()) {
            verdict_ = also(op_);
            if (verdict_.ok() && !for_each([&]<std::size_t>(const auto& part) { return inside(part); }))
                verdict_ = verdict::refuse(cl_invalid_value);
        }
        return verdict_;
    }

    std::uint64_t context() const { return context_; }

    // The object that the part with this id named.
    template <class Field>
    const object& at(Field id) const {
        const object* found = nullptr;
        for_each([&]<std::size_t I>(const auto& part) {
            if constexpr (std::is_same_v<std::remove_cvref_t<decltype(part)>, commands::uses_part<Field>>) {
                if (part.id == id)
                    found = found_[I];
            }
            return true;
        });
        return *found;
    }

private:
    // While f.operator()<number of the part>(part) holds.
    template <class F>
    static bool for_each(F&& f) {
        return [&]<std::size_t... I>(std::index_sequence<I...>) {
            return (f.template operator()<I>(std::get<I>(row::parts)) && ...);
        }(std::make_index_sequence<parts>());
    }
    template <class Field>
    decltype(auto) get(const Field& field) const {
        return std::invoke(field, *std::to_address(op_.c));
    }
    bool note(const verdict& v) {
        verdict_ = graver(verdict_, v);
        return v.what != verdict::kind::malformed;
    }
    bool of_this_context(const object& o) {
        context_ = context_ == 0 ? o.context : context_;
        return o.context == context_ || note(verdict::refuse(cl_invalid_context));
    }

    // ---- objects that are named one by one

    template <std::size_t I, class... A>
    bool named(const commands::uses_part<A...>& part) {
        constexpr commands::object kind = std::get<I>(row::parts).kind;
        const object* const o = table_.find(get(part.id), kind_of(kind).kind);
        found_[I] = o;
        if (!o)
            return note(verdict::malformed(kind_of(kind).missing));
        if ((kind == commands::object::buffer && o->is_image()) ||
            (kind == commands::object::image && !o->is_image())) {
            return note(verdict::refuse(cl_invalid_mem_object));
        }
        return of_this_context(*o);
    }
    template <std::size_t>
    bool named(const auto&) {
        return true;
    }

    // ---- a new object's id

    template <class... A>
    bool fresh(const commands::creates_part<A...>& part) {
        return !table_.taken(get(part.id)) || note(verdict::malformed(id_taken));
    }
    bool fresh(const auto&) { return true; }

    // ---- objects in lists

    template <class... A>
    bool listed(const commands::ids_part<A...>& part) {
        for (const guest_id id : op_.*part.view) {
            const object* const o = table_.find(id, kind_of(part.kind).kind);
            if (!o)
                return note(verdict::malformed(kind_of(part.kind).missing));
            of_this_context(*o);
        }
        return true;
    }
    template <class... A>
    bool listed(const commands::arguments_part<A...>& part) {
        bool all = true;
        (op_.*part.view).for_each([&](const launch_argument& a) {
            const bool memory = a.kind == VGPU_ARGUMENT_MEMORY && a.object != 0; // 0: a null pointer
            if (!memory && a.kind != VGPU_ARGUMENT_SAMPLER)
                return;
            const table_kind kind = kind_of(memory ? commands::object::memory : commands::object::sampler);
            const object* const o = table_.find(a.object, kind.kind);
            all = (o ? of_this_context(*o) : note(verdict::malformed(kind.missing))) && all;
        });
        return all;
    }
    bool listed(const auto&) { return true; }

    // ---- by hand, after the objects

    verdict also(const op_create_queue& o) {
        return o.c->device_index == 0 ? verdict{} : verdict::refuse(cl_invalid_device);
    }
    verdict also(const op_create_sub_buffer&) {
        return at(&vgpu_cmd_create_sub_buffer::buffer).sub_buffer ? verdict::refuse(cl_invalid_mem_object)
                                                                  : verdict{};
    }
    // How long the payload must be depends on the image.
    verdict also(const op_transfer_image& o) {
        const vgpu_cmd_transfer_image& c = *o.c;
        const std::uint32_t element_bytes = at(&vgpu_cmd_transfer_image::image).element_bytes;
        if (image_linear_bytes(c.region, element_bytes, c.row_pitch, c.slice_pitch).value() != o.data.bytes)
            return verdict::malformed("the payload is not as long as the region in host memory");
        const bool pitches_hold =
            (base::checked_u64(c.region[0]) * element_bytes).within(c.row_pitch) &&
            (c.region[2] == 1 || (base::checked_u64(c.row_pitch) * c.region[1]).within(c.slice_pitch));
        return pitches_hold ? verdict{} : verdict::refuse(cl_invalid_value);
    }
    // How long the range is too.
    verdict also(const op_copy_image_buffer& o) {
        const vgpu_cmd_copy_image_buffer& c = *o.c;
        const base::checked_u64 end = base::checked_u64(c.region[0]) * c.region[1] * c.region[2] *
                                          at(&vgpu_cmd_copy_image_buffer::image).element_bytes +
                                      c.offset;
        return end.within(at(&vgpu_cmd_copy_image_buffer::buffer).bytes) ? verdict{}
                                                                         : verdict::refuse(cl_invalid_value);
    }
    verdict also(const op_write_runs& o) { // packed: the range is no field
        return o.end <= at(&write_runs_fields::buffer).bytes ? verdict{} : verdict::refuse(cl_invalid_value);
    }
    verdict also(const auto&) { return {}; }

    // ---- ranges

    template <class... A>
    bool inside(const commands::range_part<A...>& part) {
        return range_inside(get(part.offset), get(part.bytes), at(part.in).bytes);
    }
    template <class... A>
    bool inside(const commands::rect_part<A...>& part) {
        return rect_end(get(part.origin), get(part.region), get(part.row), get(part.slice))
            .within(at(part.in).bytes);
    }
    template <class... A>
    bool inside(const commands::box_part<A...>& part) {
        return box_inside(get(part.origin), get(part.region), at(part.in).extent);
    }
    bool inside(const auto&) { return true; }

    const object_table& table_;
    const Op& op_;
    std::uint64_t context_;
    verdict verdict_;
    std::array<const object*, parts> found_{}; // by part
};

} // namespace

template <class Op>
verdict validator::check(const Op& o) {
    part_checker<Op> parts(table_, o, 0);
    const verdict v = parts.check();
    if constexpr (commands::creates_object<commands::row_of<Op>>) {
        if (!v.ok())
            return v;
        object made;
        made.kind = commands::created_kind<commands::row_of<Op>>;
        made.context = parts.context();
        if constexpr (std::is_same_v<Op, op_create_buffer> || std::is_same_v<Op, op_create_arena> ||
                      std::is_same_v<Op, op_create_variable>) {
            made.bytes = o.c->bytes;
            return insert_memory(o.c->id, made, made.bytes);
        } else if constexpr (std::is_same_v<Op, op_create_sub_buffer>) {
            made.sub_buffer = true;
            made.bytes = o.c->bytes;
            return insert_shared_memory(o.c->id, made, parts.at(&vgpu_cmd_create_sub_buffer::buffer));
        } else {
            if constexpr (std::is_same_v<Op, op_create_user_event>)
                made.event = event_state::user_unset;
            return insert(o.c->id, made);
        }
    } else {
        return v;
    }
}

verdict validator::insert(guest_id id, const object& o) {
    if (!table_.room_for_object())
        return verdict::refuse(cl_out_of_host_memory);
    created_ = {id, table_.insert(id, o)};
    return {};
}

verdict validator::insert_memory(guest_id id, const object& o, std::uint64_t charge) {
    if (!table_.room_for_object())
        return verdict::refuse(cl_out_of_host_memory);
    if (!table_.room_for_memory(charge))
        return verdict::refuse(cl_mem_object_allocation_failure);
    created_ = {id, table_.insert_memory(id, o, charge)};
    return {};
}

verdict validator::insert_shared_memory(guest_id id, const object& o, const object& owner) {
    if (!table_.room_for_object())
        return verdict::refuse(cl_out_of_host_memory);
    created_ = {id, table_.insert_shared_memory(id, o, owner)};
    return {};
}

// ---- by hand
// --------------------------------------------------------------------------------------------------------

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
        if (!memory)
            return verdict::malformed(no_memory);
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

verdict validator::check(const op_create_image& o) {
    const vgpu_cmd_create_image& c = *o.c;
    const object* context = table_.find(c.context, VGPU_OBJECT_CONTEXT);
    if (!context)
        return verdict::malformed(no_context);
    if (table_.taken(c.id))
        return verdict::malformed(id_taken);
    const object* owner = nullptr;
    if (c.buffer != 0 && !(owner = table_.find(c.buffer, VGPU_OBJECT_MEMORY)))
        return verdict::malformed(no_memory);
    const std::uint32_t element_bytes = image_element_bytes(c.channel_order, c.channel_type);
    if (element_bytes == 0)
        return verdict::refuse(cl_image_format_not_supported);
    const image_extent extent = image_extent_of(c);
    if (extent.side[0] == 0 || extent.side[1] == 0 || extent.side[2] == 0)
        return verdict::refuse(cl_invalid_image_size);
    const base::checked_u64 row = base::checked_u64(extent.side[0]) * element_bytes;
    const base::checked_u64 packed = row * extent.side[1] * extent.side[2];
    if (!packed.ok())
        return verdict::refuse(cl_invalid_image_size);
    const std::uint64_t row_pitch = c.row_pitch != 0 ? std::uint64_t{c.row_pitch} : *row.value();
    const base::checked_u64 slice = base::checked_u64(row_pitch) * extent.side[1];
    const std::uint64_t slice_pitch =
        c.slice_pitch != 0 ? std::uint64_t{c.slice_pitch} : slice.value().value_or(UINT64_MAX);
    const base::checked_u64 linear = image_linear_bytes(extent.side, element_bytes, row_pitch, slice_pitch);
    if (!row.within(row_pitch) || (extent.side[2] > 1 && !slice.within(slice_pitch)))
        return verdict::refuse(cl_invalid_image_descriptor);
    if (o.content.bytes != 0 && !linear.within(o.content.bytes))
        return verdict::malformed("the content of an image is shorter than the image");
    if (owner) {
        const bool shape_allowed =
            c.image_type == cl_mem_object_image1d_buffer || c.image_type == cl_mem_object_image2d;
        if (!shape_allowed || owner->is_image() || !linear.within(owner->bytes))
            return verdict::refuse(cl_invalid_image_descriptor);
        if (owner->context != context->context)
            return verdict::refuse(cl_invalid_context);
    }
    object i;
    i.kind = VGPU_OBJECT_MEMORY;
    i.context = context->context;
    i.element_bytes = element_bytes;
    for (int d = 0; d < 3; ++d)
        i.extent[d] = extent.side[d];
    return owner ? insert_shared_memory(c.id, i, *owner) : insert_memory(c.id, i, *packed.value());
}

verdict validator::check(const op_set_user_event& o) {
    const object* e = table_.find(o.c->event, VGPU_OBJECT_EVENT);
    if (!e)
        return verdict::malformed(no_event);
    if (e->event != event_state::user_unset)
        return verdict::malformed("an event that is set is not a user event or was set before");
    table_.set_user_event(o.c->event, o.c->status);
    return {};
}

verdict validator::check(const op_destroy& o) {
    const object* victim = table_.find(o.c->id, static_cast<vgpu_object_kind>(o.c->kind));
    if (!victim)
        return verdict::malformed(no_object);
    // The worker never heard of the event of a refused command; what it does not know it must not be asked to
    // destroy.
    const bool unknown_to_worker = victim->kind == VGPU_OBJECT_EVENT && victim->event == event_state::refused;
    table_.destroy(o.c->id);
    return unknown_to_worker ? verdict::refuse(cl_success) : verdict{};
}

// Refused without an error: it is the device's to carry out, so the worker does not get it. Only what is
// pending now counts: commands behind it may use an id again.
verdict validator::check(const op_await& o) {
    if (!awaited_)
        return verdict::malformed("a guest can't use AWAIT");
    for (const guest_id id : o.events)
        if (const std::uint64_t serial = table_.pending_serial(id))
            awaited_->push_back({id, serial});
    return verdict::refuse(cl_success);
}

// The replication's own: with a standby's log, never with a guest's request. TAKE is given to workers past
// this (mirror_port::inject), so nobody else has it.
verdict validator::check(const op_built& o) {
    if (!awaited_ || o.take()) {
        return verdict::malformed(o.take() ? "only the replication can use TAKE_BUILT"
                                           : "a guest can't use STORE_BUILT");
    }
    return {};
}

// ---- enqueued commands
// -----------------------------------------------------------------------------------------------

// The queue, the wait list, and whether the event's id is free.
verdict validator::enqueue(const vgpu_enqueue& e, id_list waits, const object*& queue) {
    queue = table_.find(e.queue, VGPU_OBJECT_QUEUE);
    if (!queue)
        return verdict::malformed(no_queue);
    if (e.event != 0 && table_.taken(e.event))
        return verdict::malformed(id_taken);
    verdict v;
    for (const guest_id id : waits) {
        const object* event = table_.find(id, VGPU_OBJECT_EVENT);
        if (!event)
            return verdict::malformed(no_event);
        if (event->context != queue->context)
            v = verdict::refuse(cl_invalid_context);
        else if (v.ok() && event->event == event_state::refused)
            v = verdict::refuse(cl_wait_list_error);
    }
    return v;
}

// Quotas of events, and the event's object.
verdict validator::finish_enqueue(const vgpu_enqueue& e, const object& queue, verdict v) {
    if (e.event == 0)
        return v;
    if (v.ok() && (events_.in_flight >= events_.limit || !table_.room_for_object()))
        v = verdict::refuse(cl_out_of_resources);
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
                if ((x.c->enqueue.event & VGPU_HOST_ID_BIT) != 0 && !awaited_)
                    return verdict::malformed(id_of_host);
                const object* queue = nullptr;
                verdict v = enqueue(x.c->enqueue, x.waits, queue);
                if (v.what == verdict::kind::malformed)
                    return v;
                const verdict of_body =
                    part_checker<std::decay_t<decltype(x)>>(table_, x, queue->context).check();
                if (of_body.what == verdict::kind::malformed)
                    return of_body;
                context_ = queue->context;
                return finish_enqueue(x.c->enqueue, *queue, v.ok() ? of_body : v);
            } else {
                if constexpr (requires { x.c->id; }) { // what creates an object, and DESTROY
                    if ((x.c->id & VGPU_HOST_ID_BIT) != 0 && !awaited_)
                        return verdict::malformed(id_of_host);
                }
                if constexpr (std::is_same_v<std::decay_t<decltype(x)>, op_await>) {
                    if (!first)
                        return verdict::malformed(late_await);
                }
                return check(x);
            }
        },
        o);
}

} // namespace kagemusha::core
