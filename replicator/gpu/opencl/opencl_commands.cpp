// SPDX-License-Identifier: GPL-2.0-or-later
// opencl_commands: enqueue() and every command that does not touch guest memory.
#include <type_traits>

#include "gpu/opencl/opencl_device.hpp"

namespace kagemusha::gpu {

namespace {

cl_mem native_of(host_memory& memory) {
    return static_cast<opencl_memory&>(memory).native.get();
}

struct triple {
    std::size_t v[3];
    explicit triple(const __u64 (&from)[3]) : v{from[0], from[1], from[2]} {}
};

template <class T>
constexpr bool is_transfer =
    std::is_same_v<T, command_transfer_buffer> || std::is_same_v<T, command_transfer_rect> ||
    std::is_same_v<T, command_transfer_image> || std::is_same_v<T, command_write_runs>;

} // namespace

std::int32_t opencl_device::enqueue(host_queue& queue, const command& what,
                                    std::span<host_event* const> waits, bool wants_event, enqueued& out) {
    auto& native_queue = static_cast<opencl_queue&>(queue);
    wait_scratch_.clear();
    for (host_event* event : waits)
        wait_scratch_.push_back(static_cast<opencl_event*>(event)->native());
    const wait_list list{static_cast<cl_uint>(wait_scratch_.size()),
                         wait_scratch_.empty() ? nullptr : wait_scratch_.data()};
    const std::int32_t error = std::visit(
        [&](const auto& c) -> std::int32_t {
            if constexpr (is_transfer<std::decay_t<decltype(c)>>) {
                return enqueue_transfer(native_queue, c, list, out);
            } else {
                const bool with_event = wants_event || holds_events_;
                cl_event event = nullptr;
                if (const std::int32_t refused =
                        enqueue_command(native_queue.native.get(), c, list, with_event ? &event : nullptr))
                    return refused;
                if (with_event)
                    out.event = std::make_unique<opencl_event>(api_, event_handle(),
                                                               event_handle(api_, event), nullptr);
                return CL_SUCCESS;
            }
        },
        what);
    if (out.event) {
        const auto* sync = std::get_if<command_sync>(&what);
        place_in(native_queue, *out.event, sync && waits.empty(), sync && sync->barrier, waits);
    }
    return error;
}

std::int32_t opencl_device::mark(host_queue& queue, std::unique_ptr<host_event>& out) {
    auto& native_queue = static_cast<opencl_queue&>(queue);
    cl_event event = nullptr;
    if (const cl_int error = api_.clEnqueueMarkerWithWaitList(native_queue.native.get(), 0, nullptr, &event))
        return error;
    out = std::make_unique<opencl_event>(api_, event_handle(), event_handle(api_, event), nullptr);
    place_in(native_queue, *out, true, false, {});
    return CL_SUCCESS;
}

void opencl_device::place_in(opencl_queue& queue, host_event& event, bool for_all, bool barrier,
                             std::span<host_event* const> waits) const {
    auto& native = static_cast<opencl_event&>(event);
    std::vector<std::uint64_t> numbers; // of what may be told later than this event without a rule
    for (const host_event* wait : waits)
        if (const std::uint64_t number = static_cast<const opencl_event*>(wait)->number())
            numbers.push_back(number);
    if (holds_events_)
        native.keep_failed();
    native.stand_at({queue.lane, queue.in_order, for_all, barrier}, polls_, std::move(numbers));
}

std::int32_t opencl_device::enqueue_command(cl_command_queue queue, const command_copy_buffer& c,
                                            wait_list waits, cl_event* event) {
    return api_.clEnqueueCopyBuffer(queue, native_of(c.source), native_of(c.destination), c.c.source_offset,
                                    c.c.destination_offset, c.c.bytes, waits.count, waits.events, event);
}

std::int32_t opencl_device::enqueue_command(cl_command_queue queue, const command_copy_rect& c,
                                            wait_list waits, cl_event* event) {
    return api_.clEnqueueCopyBufferRect(
        queue, native_of(c.source), native_of(c.destination), triple(c.c.source_origin).v,
        triple(c.c.destination_origin).v, triple(c.c.region).v, c.c.source_row_pitch, c.c.source_slice_pitch,
        c.c.destination_row_pitch, c.c.destination_slice_pitch, waits.count, waits.events, event);
}

std::int32_t opencl_device::enqueue_command(cl_command_queue queue, const command_copy_image& c,
                                            wait_list waits, cl_event* event) {
    return api_.clEnqueueCopyImage(queue, native_of(c.source), native_of(c.destination),
                                   triple(c.c.source_origin).v, triple(c.c.destination_origin).v,
                                   triple(c.c.region).v, waits.count, waits.events, event);
}

std::int32_t opencl_device::enqueue_command(cl_command_queue queue, const command_copy_image_buffer& c,
                                            wait_list waits, cl_event* event) {
    const triple origin(c.c.origin), region(c.c.region);
    if (c.to_buffer)
        return api_.clEnqueueCopyImageToBuffer(queue, native_of(c.image), native_of(c.buffer), origin.v,
                                               region.v, c.c.offset, waits.count, waits.events, event);
    return api_.clEnqueueCopyBufferToImage(queue, native_of(c.buffer), native_of(c.image), c.c.offset,
                                           origin.v, region.v, waits.count, waits.events, event);
}

std::int32_t opencl_device::enqueue_command(cl_command_queue queue, const command_fill_buffer& c,
                                            wait_list waits, cl_event* event) {
    return api_.clEnqueueFillBuffer(queue, native_of(c.memory), c.c.pattern, c.c.pattern_bytes, c.c.offset,
                                    c.c.bytes, waits.count, waits.events, event);
}

std::int32_t opencl_device::enqueue_command(cl_command_queue queue, const command_fill_image& c,
                                            wait_list waits, cl_event* event) {
    return api_.clEnqueueFillImage(queue, native_of(c.memory), c.c.color, triple(c.c.origin).v,
                                   triple(c.c.region).v, waits.count, waits.events, event);
}

std::int32_t opencl_device::enqueue_command(cl_command_queue queue, const command_launch& c, wait_list waits,
                                            cl_event* event) {
    const cl_kernel kernel = static_cast<opencl_kernel&>(c.kernel).native.get();
    for (const host_argument& a : c.changed) {
        cl_int error = CL_SUCCESS;
        switch (a.kind) {
        case VGPU_ARGUMENT_BYTES:
            error = api_.clSetKernelArg(kernel, a.index, a.bytes, a.value.data());
            break;
        case VGPU_ARGUMENT_MEMORY: {
            const cl_mem memory = a.memory ? native_of(*a.memory) : nullptr;
            error = api_.clSetKernelArg(kernel, a.index, sizeof(memory), &memory);
            break;
        }
        case VGPU_ARGUMENT_SAMPLER: {
            const cl_sampler sampler = static_cast<opencl_sampler*>(a.sampler)->native.get();
            error = api_.clSetKernelArg(kernel, a.index, sizeof(sampler), &sampler);
            break;
        }
        case VGPU_ARGUMENT_LOCAL:
            error = api_.clSetKernelArg(kernel, a.index, a.bytes, nullptr);
            break;
        }
        if (error != CL_SUCCESS)
            return error;
    }
    const triple offset(c.c.offset), global(c.c.global), local(c.c.local);
    const bool has_local = (c.c.flags & VGPU_LAUNCH_LOCAL_SIZE) != 0;
    return api_.clEnqueueNDRangeKernel(queue, kernel, c.c.work_dim, offset.v, global.v,
                                       has_local ? local.v : nullptr, waits.count, waits.events, event);
}

std::int32_t opencl_device::enqueue_command(cl_command_queue queue, const command_sync& c, wait_list waits,
                                            cl_event* event) {
    return c.barrier ? api_.clEnqueueBarrierWithWaitList(queue, waits.count, waits.events, event)
                     : api_.clEnqueueMarkerWithWaitList(queue, waits.count, waits.events, event);
}

std::int32_t opencl_device::enqueue_command(cl_command_queue queue, const command_migrate& c, wait_list waits,
                                            cl_event* event) {
    std::vector<cl_mem> objects;
    for (host_memory* memory : c.objects)
        objects.push_back(native_of(*memory));
    // Memory that is the host's is there already. PoCL 6's device without threads waits for itself for ever
    // when it is asked for that.
    const cl_mem_migration_flags flags =
        unified_memory_ ? c.flags & ~cl_mem_migration_flags{CL_MIGRATE_MEM_OBJECT_HOST} : c.flags;
    return api_.clEnqueueMigrateMemObjects(queue, static_cast<cl_uint>(objects.size()), objects.data(), flags,
                                           waits.count, waits.events, event);
}

} // namespace kagemusha::gpu
