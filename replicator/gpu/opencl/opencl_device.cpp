// SPDX-License-Identifier: GPL-2.0-or-later
// opencl_device: the device; contexts, queues, memory, samplers, kernels, user events.
#include "gpu/opencl/opencl_device.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

#include "base/checked.hpp"
#include "codec/image_format.hpp"
#include "gpu/copy_crew.hpp"
#include "gpu/opencl/run_scatter.hpp"

namespace kagemusha::gpu {

namespace {

// Content that is scattered in guest memory is gathered up to this size, because then the runtime copies it
// once more at most; above it goes piece by piece.
constexpr std::uint64_t gather_limit_bytes = 64ull << 20;

std::unique_ptr<std::byte[]> allocate(std::uint64_t bytes) {
    return std::unique_ptr<std::byte[]>(new (std::nothrow) std::byte[bytes]);
}

// One poller serves every device of the process.
std::atomic<std::uint64_t> next_lane{1};

// PoCL's device that runs each command on the thread that enqueues it ("cpu-minimal" since PoCL 4).
bool is_pocl_basic(const gpu_description& d) {
    return d.platform == "Portable Computing Language" &&
           (d.name.starts_with("basic") || d.name.starts_with("cpu-minimal"));
}

// "OpenCL 3.0 …" -> 300
std::uint32_t version_number(const std::string& text) {
    constexpr std::string_view prefix = "OpenCL ";
    if (!text.starts_with(prefix))
        return 100;
    char* end = nullptr;
    const unsigned long major = std::strtoul(text.c_str() + prefix.size(), &end, 10);
    const unsigned long minor = *end == '.' ? std::strtoul(end + 1, nullptr, 10) : 0;
    return static_cast<std::uint32_t>(major * 100 + minor * 10);
}

} // namespace

opencl_device::opencl_device(const opencl_api& api, cl_platform_id platform, cl_device_id device,
                             gpu_description description, const opencl_options& options)
    : api_(api)
    , platform_(platform)
    , device_(device)
    , description_(std::move(description))
    , mode_(options.transfer)
    , version_(version_number(description_.version)) {
    cl_device_exec_capabilities can = 0;
    api_.clGetDeviceInfo(device_, CL_DEVICE_EXECUTION_CAPABILITIES, sizeof(can), &can, nullptr);
    native_kernels_ = (can & CL_EXEC_NATIVE_KERNEL) != 0;
    cl_device_type type = CL_DEVICE_TYPE_GPU;
    api_.clGetDeviceInfo(device_, CL_DEVICE_TYPE, sizeof(type), &type, nullptr);
    polls_ = options.completion == completion_mode::poll ||
             (options.completion == completion_mode::automatic && (type & CL_DEVICE_TYPE_CPU) == 0);
    holds_events_ = (type & CL_DEVICE_TYPE_CPU) != 0;
    user_events_ = !is_pocl_basic(description_);
    cl_bool unified = CL_FALSE;
    api_.clGetDeviceInfo(device_, CL_DEVICE_HOST_UNIFIED_MEMORY, sizeof(unified), &unified, nullptr);
    unified_memory_ = unified == CL_TRUE;
    pins_ = mode_ == transfer_mode::pinned ||
            (mode_ == transfer_mode::automatic && !native_kernels_ && !unified_memory_);
    // A runtime copies with one thread, and as much as it would bring another one doesn't gain by.
    if (mode_ == transfer_mode::pinned)
        smallest_pinned_bytes_ = std::uint64_t{64} << 10;
    else if (pins_ && copy_crew::common_helpers() > 0)
        smallest_pinned_bytes_ = copy_crew::smallest_shared_bytes;
}

bool opencl_device::means_lost(std::int32_t status) const {
    // The device was there when it was opened. Other codes that drivers give after a fault (out of resources,
    // invalid queue) also have harmless meanings and stay with the command.
    return status == CL_DEVICE_NOT_AVAILABLE;
}

std::int32_t opencl_device::flush(host_queue& queue) {
    return api_.clFlush(static_cast<opencl_queue&>(queue).native.get());
}

// A kernel of ours writes what those of the guest may only read (run_scatter).
std::uint64_t opencl_device::flags_of_buffer(std::uint64_t flags) const {
    constexpr std::uint64_t one_way = CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY;
    flags = flags_on_host(flags);
    return pins_ && (flags & one_way) != 0 ? (flags & ~one_way) | CL_MEM_READ_WRITE : flags;
}

// Large scattered content: one write for each run. Waits only for these writes, on a queue that the guest
// does not know.
std::int32_t opencl_device::fill_from_content(cl_context context, cl_mem memory,
                                              const guest_payload& content) {
    cl_int error = CL_SUCCESS;
    const queue_handle queue(api_, api_.clCreateCommandQueue(context, device_, 0, &error));
    for (const guest_payload::run& run : content.runs()) {
        if (error != CL_SUCCESS)
            break;
        error = api_.clEnqueueWriteBuffer(queue.get(), memory, CL_FALSE, run.offset, run.bytes, run.base, 0,
                                          nullptr, nullptr);
    }
    if (queue) {
        const cl_int finish_error = api_.clFinish(queue.get());
        error = error == CL_SUCCESS ? finish_error : error;
    }
    return error;
}

struct opencl_device::native_creation {
    opencl_device& device;

    std::int32_t operator()(const resolved<codec::op_create_context>& r) const {
        const auto& [place] = r.parts;
        const cl_context_properties properties[] = {
            CL_CONTEXT_PLATFORM, reinterpret_cast<cl_context_properties>(device.platform_), 0};
        cl_int error = CL_SUCCESS;
        auto object = std::make_unique<opencl_context>();
        object->native = {device.api_, device.api_.clCreateContext(properties, 1, &device.device_, nullptr,
                                                                   nullptr, &error)};
        if (error == CL_SUCCESS && device.pins_) {
            object->pinned = std::make_shared<pinned_pool>(device.api_, object->native.get(), device.device_);
            object->scatter =
                std::make_shared<run_scatter>(device.api_, object->native.get(), device.device_,
                                              object->pinned, device.mode_ == transfer_mode::pinned);
        }
        if (error == CL_SUCCESS)
            place = std::move(object);
        return error;
    }

    std::int32_t operator()(const resolved<codec::op_create_queue>& r) const {
        const auto& [place, context] = r.parts;
        const std::uint64_t properties = r.op.c->properties;
        if (properties & (VGPU_QUEUE_LEGACY | VGPU_QUEUE_NON_BLOCKING | VGPU_QUEUE_URGENT))
            return CL_INVALID_QUEUE_PROPERTIES;
        cl_int error = CL_SUCCESS;
        auto object = std::make_unique<opencl_queue>();
        object->native = {device.api_,
                          device.api_.clCreateCommandQueue(static_cast<opencl_context&>(context).native.get(),
                                                           device.device_, properties, &error)};
        auto& owner = static_cast<opencl_context&>(context);
        object->pinned = owner.pinned;
        object->scatter = owner.scatter;
        object->queues = owner.queues;
        *owner.queues += (r.op.c->id & VGPU_HOST_ID_BIT) == 0;
        object->in_order = (properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) == 0;
        object->lane = next_lane.fetch_add(1, std::memory_order_relaxed);
        if (error == CL_SUCCESS)
            place = std::move(object);
        return error;
    }

    // OpenCL hides addresses.
    std::int32_t operator()(const resolved<codec::op_create_arena>&) const { return CL_INVALID_OPERATION; }
    std::int32_t operator()(const resolved<codec::op_create_variable>&) const { return CL_INVALID_OPERATION; }
    // Its kernels are given images and samplers, not numbers.
    std::int32_t operator()(const resolved<codec::op_create_texture>&) const { return CL_INVALID_OPERATION; }

    std::int32_t operator()(const resolved<codec::op_create_buffer>& r) const {
        const auto& [place, context, content] = r.parts;
        const std::uint64_t bytes = r.op.c->bytes;
        const cl_context native_context = static_cast<opencl_context&>(context).native.get();
        const std::uint64_t flags =
            device.flags_of_buffer(r.op.c->flags) &
            ~static_cast<std::uint64_t>(CL_MEM_KERNEL_READ_AND_WRITE); // of images only
        void* initial = content ? content->contiguous() : nullptr;
        std::unique_ptr<std::byte[]> gathered;
        if (content && !initial && bytes <= gather_limit_bytes) {
            gathered = allocate(bytes);
            if (!gathered)
                return CL_OUT_OF_HOST_MEMORY;
            if (!content->read(0, gathered.get(), bytes))
                return CL_OUT_OF_RESOURCES;
            initial = gathered.get();
        }

        cl_int error = CL_SUCCESS;
        auto object = std::make_unique<opencl_memory>();
        object->native = {device.api_, device.api_.clCreateBuffer(
                                           native_context, flags | (initial ? CL_MEM_COPY_HOST_PTR : 0),
                                           bytes, initial, &error)};
        if (error != CL_SUCCESS)
            return error;
        if (content && !initial &&
            (error = device.fill_from_content(native_context, object->native.get(), *content)))
            return error;
        device.api_.clRetainMemObject(object->native.get());
        object->root = {device.api_, object->native.get()};
        object->bytes = bytes;
        place = std::move(object);
        return CL_SUCCESS;
    }

    std::int32_t operator()(const resolved<codec::op_create_sub_buffer>& r) const {
        const auto& [place, buffer] = r.parts;
        const std::uint64_t flags = device.flags_of_buffer(r.op.c->flags);
        auto& parent = static_cast<opencl_memory&>(buffer);
        const cl_buffer_region region{r.op.c->origin, r.op.c->bytes};
        cl_int error = CL_SUCCESS;
        auto object = std::make_unique<opencl_memory>();
        object->native = {device.api_,
                          device.api_.clCreateSubBuffer(parent.native.get(), flags,
                                                        CL_BUFFER_CREATE_TYPE_REGION, &region, &error)};
        if (error != CL_SUCCESS)
            return error;
        device.api_.clRetainMemObject(parent.root.get());
        object->root = {device.api_, parent.root.get()};
        object->root_offset = parent.root_offset + r.op.c->origin;
        object->bytes = r.op.c->bytes;
        place = std::move(object);
        return CL_SUCCESS;
    }

    std::int32_t operator()(const resolved<codec::op_create_image>& r) const {
        const auto& [place, context, content, buffer] = r.parts;
        const vgpu_cmd_create_image& c = *r.op.c;
        const std::uint64_t flags = flags_on_host(c.flags);
        const cl_image_format format{c.channel_order, c.channel_type};
        cl_image_desc desc{};
        desc.image_type = c.image_type;
        desc.image_width = c.width;
        desc.image_height = c.height;
        desc.image_depth = c.depth;
        desc.image_array_size = c.array_size;
        if (buffer) {
            desc.mem_object = static_cast<opencl_memory*>(buffer)->native.get();
            desc.image_row_pitch = c.row_pitch;
            desc.image_slice_pitch = c.slice_pitch;
        }

        // Content is always given to the runtime without gaps, so that it can't read behind the end of the
        // last row.
        std::unique_ptr<std::byte[]> gathered;
        if (content) {
            const std::uint64_t element = codec::image_element_bytes(c.channel_order, c.channel_type);
            if (element == 0)
                return CL_INVALID_IMAGE_FORMAT_DESCRIPTOR;
            const codec::image_extent extent = codec::image_extent_of(c);
            const auto& side = extent.side;
            const bool layers_are_rows = c.image_type == CL_MEM_OBJECT_IMAGE1D_ARRAY;
            const auto row_bytes = (base::checked_u64(side[0]) * element).value();
            if (!row_bytes)
                return CL_INVALID_IMAGE_SIZE;
            const std::uint64_t row_pitch =
                layers_are_rows && c.slice_pitch ? c.slice_pitch : (c.row_pitch ? c.row_pitch : *row_bytes);
            const auto tight_slice = (base::checked_u64(*row_bytes) * side[1]).value();
            const auto padded_slice = (base::checked_u64(row_pitch) * side[1]).value();
            if (!tight_slice || !padded_slice)
                return CL_INVALID_IMAGE_SIZE;
            const std::uint64_t slice_pitch = c.slice_pitch ? c.slice_pitch : *padded_slice;
            const auto total = (base::checked_u64(*tight_slice) * side[2]).value();
            const auto needed = (base::checked_u64(side[2] - 1) * slice_pitch +
                                 base::checked_u64(side[1] - 1) * row_pitch + *row_bytes)
                                    .value();
            if (!total || !needed || row_pitch < *row_bytes || *needed > content->bytes() ||
                *total > content->bytes())
                return CL_INVALID_VALUE;
            gathered = allocate(*total);
            if (!gathered)
                return CL_OUT_OF_HOST_MEMORY;
            if (!content->read_box({*row_bytes, side[1], side[2]}, {row_pitch, slice_pitch}, gathered.get(),
                                   {*row_bytes, *tight_slice}))
                return CL_OUT_OF_RESOURCES;
        }

        cl_int error = CL_SUCCESS;
        auto object = std::make_unique<opencl_memory>();
        object->native = {device.api_,
                          device.api_.clCreateImage(static_cast<opencl_context&>(context).native.get(),
                                                    flags | (gathered ? CL_MEM_COPY_HOST_PTR : 0), &format,
                                                    &desc, gathered.get(), &error)};
        if (error != CL_SUCCESS)
            return error;
        std::size_t element_bytes = 0;
        if ((error = device.api_.clGetImageInfo(object->native.get(), CL_IMAGE_ELEMENT_SIZE,
                                                sizeof(element_bytes), &element_bytes, nullptr)))
            return error;
        object->type = c.image_type;
        object->element_bytes = element_bytes;
        place = std::move(object);
        return CL_SUCCESS;
    }

    std::int32_t operator()(const resolved<codec::op_create_sampler>& r) const {
        const auto& [place, context] = r.parts;
        const vgpu_cmd_create_sampler& c = *r.op.c;
        cl_int error = CL_SUCCESS;
        auto object = std::make_unique<opencl_sampler>();
        object->native = {device.api_,
                          device.api_.clCreateSampler(static_cast<opencl_context&>(context).native.get(),
                                                      c.normalized != 0, c.addressing, c.filter, &error)};
        if (error == CL_SUCCESS)
            place = std::move(object);
        return error;
    }

    std::int32_t operator()(const resolved<codec::op_create_kernel>& r) const {
        const auto& [place, program] = r.parts;
        const cl_program native = static_cast<opencl_program&>(program).native.get();
        if (!native)
            return CL_INVALID_PROGRAM_EXECUTABLE;
        cl_int error = CL_SUCCESS;
        auto object = std::make_unique<opencl_kernel>();
        object->native = {device.api_,
                          device.api_.clCreateKernel(native, std::string(r.op.name).c_str(), &error)};
        if (error == CL_SUCCESS)
            place = std::move(object);
        return error;
    }
};

std::int32_t opencl_device::create(const creation& what) {
    return std::visit(native_creation{*this}, what);
}

std::int32_t opencl_device::create_user_event(host_context& context, std::unique_ptr<host_event>& out) {
    if (!user_events_)
        return CL_OUT_OF_RESOURCES;
    cl_int error = CL_SUCCESS;
    event_handle event(api_,
                       api_.clCreateUserEvent(static_cast<opencl_context&>(context).native.get(), &error));
    if (error != CL_SUCCESS)
        return error;
    auto made = std::make_unique<opencl_event>(api_, event_handle(), std::move(event), nullptr);
    made->count_unset(counted(counts_.unset_user_events));
    out = std::move(made);
    return CL_SUCCESS;
}

} // namespace kagemusha::gpu
