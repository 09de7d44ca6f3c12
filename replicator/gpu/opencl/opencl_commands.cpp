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

} // namespace

cl_int set_arguments(const opencl_api& api, cl_kernel kernel, std::span<const host_argument> arguments) {
    for (const host_argument& a : arguments) {
        cl_int error = CL_SUCCESS;
        switch (a.kind) {
        case VGPU_ARGUMENT_BYTES:
            error = api.clSetKernelArg(kernel, a.index, a.bytes, a.value.data());
            break;
        case VGPU_ARGUMENT_MEMORY: {
            const cl_mem memory = a.memory ? native_of(*a.memory) : nullptr;
            error = api.clSetKernelArg(kernel, a.index, sizeof(memory), &memory);
            break;
        }
        case VGPU_ARGUMENT_SAMPLER: {
            const cl_sampler sampler = static_cast<opencl_sampler*>(a.sampler)->native.get();
            error = api.clSetKernelArg(kernel, a.index, sizeof(sampler), &sampler);
            break;
        }
        case VGPU_ARGUMENT_LOCAL:
            error = api.clSetKernelArg(kernel, a.index, a.bytes, nullptr);
            break;
        }
        if (error != CL_SUCCESS)
            return error;
    }
    return CL_SUCCESS;
}

// The native call of each command that moves no guest memory. What there is no overload for, here or as
// enqueue_transfer(), does not compile.
struct opencl_device::native_call {
    const opencl_device& device;
    cl_command_queue queue;
    wait_list waits;
    cl_event* event;

    cl_int operator()(const resolved<codec::op_copy_buffer>& r) const {
        const auto& [source, destination] = r.parts;
        const vgpu_cmd_copy_buffer& c = *r.op.c;
        return device.api_.clEnqueueCopyBuffer(queue, native_of(source), native_of(destination),
                                               c.source_offset, c.destination_offset, c.bytes, waits.count,
                                               waits.events, event);
    }
    cl_int operator()(const resolved<codec::op_copy_rect>& r) const {
        const auto& [source, destination] = r.parts;
        const vgpu_cmd_copy_rect& c = *r.op.c;
        return device.api_.clEnqueueCopyBufferRect(
            queue, native_of(source), native_of(destination), triple(c.source_origin).v,
            triple(c.destination_origin).v, triple(c.region).v, c.source_row_pitch, c.source_slice_pitch,
            c.destination_row_pitch, c.destination_slice_pitch, waits.count, waits.events, event);
    }
    cl_int operator()(const resolved<codec::op_copy_image>& r) const {
        const auto& [source, destination] = r.parts;
        const vgpu_cmd_copy_image& c = *r.op.c;
        return device.api_.clEnqueueCopyImage(queue, native_of(source), native_of(destination),
                                              triple(c.source_origin).v, triple(c.destination_origin).v,
                                              triple(c.region).v, waits.count, waits.events, event);
    }
    cl_int operator()(const resolved<codec::op_copy_image_buffer>& r) const {
        const auto& [image, buffer] = r.parts;
        const vgpu_cmd_copy_image_buffer& c = *r.op.c;
        const triple origin(c.origin), region(c.region);
        if (r.op.to_buffer())
            return device.api_.clEnqueueCopyImageToBuffer(queue, native_of(image), native_of(buffer),
                                                          origin.v, region.v, c.offset, waits.count,
                                                          waits.events, event);
        return device.api_.clEnqueueCopyBufferToImage(queue, native_of(buffer), native_of(image), c.offset,
                                                      origin.v, region.v, waits.count, waits.events, event);
    }
    cl_int operator()(const resolved<codec::op_fill_buffer>& r) const {
        const auto& [buffer] = r.parts;
        const vgpu_cmd_fill_buffer& c = *r.op.c;
        return device.api_.clEnqueueFillBuffer(queue, native_of(buffer), c.pattern, c.pattern_bytes, c.offset,
                                               c.bytes, waits.count, waits.events, event);
    }
    cl_int operator()(const resolved<codec::op_fill_image>& r) const {
        const auto& [image] = r.parts;
        const vgpu_cmd_fill_image& c = *r.op.c;
        return device.api_.clEnqueueFillImage(queue, native_of(image), c.color, triple(c.origin).v,
                                              triple(c.region).v, waits.count, waits.events, event);
    }
    cl_int operator()(const resolved<codec::op_launch>& r) const {
        const auto& [host_kernel, changed] = r.parts;
        if (r.op.c->flags & ~VGPU_LAUNCH_LOCAL_SIZE)
            return CL_INVALID_OPERATION; // of another API's launches
        const cl_kernel kernel = static_cast<opencl_kernel&>(host_kernel).native.get();
        if (const cl_int error = set_arguments(device.api_, kernel, changed))
            return error;
        const vgpu_cmd_launch& c = *r.op.c;
        const triple offset(c.offset), global(c.global), local(c.local);
        const bool has_local = (c.flags & VGPU_LAUNCH_LOCAL_SIZE) != 0;
        return device.api_.clEnqueueNDRangeKernel(queue, kernel, c.work_dim, offset.v, global.v,
                                                  has_local ? local.v : nullptr, waits.count, waits.events,
                                                  event);
    }
    cl_int operator()(const resolved<codec::op_sync>& r) const {
        const auto enqueue = r.op.barrier() ? device.api_.clEnqueueBarrierWithWaitList
                                            : device.api_.clEnqueueMarkerWithWaitList;
        return enqueue(queue, waits.count, waits.events, event);
    }
    cl_int operator()(const resolved<codec::op_migrate>& r) const {
        const auto& [moved] = r.parts;
        std::vector<cl_mem> objects;
        for (host_memory* memory : moved)
            objects.push_back(native_of(*memory));
        // Memory that is the host's is there already. PoCL 6's device without threads waits for itself for
        // ever when it is asked for that.
        const cl_mem_migration_flags flags =
            device.unified_memory_ ? r.op.c->flags & ~cl_mem_migration_flags{CL_MIGRATE_MEM_OBJECT_HOST}
                                   : r.op.c->flags;
        return device.api_.clEnqueueMigrateMemObjects(queue, static_cast<cl_uint>(objects.size()),
                                                      objects.data(), flags, waits.count, waits.events,
                                                      event);
    }
};

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
            if constexpr (!std::is_invocable_v<native_call, decltype(c)>) {
                return enqueue_transfer(native_queue, c, list, out);
            } else {
                const bool with_event = wants_event || holds_events_;
                cl_event event = nullptr;
                const native_call call{*this, native_queue.native.get(), list, with_event ? &event : nullptr};
                if (const std::int32_t refused = call(c))
                    return refused;
                if (with_event)
                    out.event = std::make_unique<opencl_event>(api_, event_handle(),
                                                               event_handle(api_, event), nullptr);
                return CL_SUCCESS;
            }
        },
        what);
    if (out.event) {
        const auto* sync = std::get_if<resolved<codec::op_sync>>(&what);
        place_in(native_queue, *out.event, sync && waits.empty(), sync && sync->op.barrier(), waits);
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

} // namespace kagemusha::gpu
