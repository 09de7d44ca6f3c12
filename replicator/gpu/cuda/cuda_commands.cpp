// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_commands: enqueue(). Bytes of guest memory are copied once on their way: the GPU's driver reads and
// writes memory of this process until the command is over, and guest memory may be taken away before.
#include <CL/cl.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/checked.hpp"
#include "gpu/cuda/cuda_boxes.hpp"
#include "gpu/cuda/cuda_device.hpp"

namespace kagemusha::gpu {

namespace {

// A cluster that every GPU with clusters has, and the largest that any has.
constexpr std::uint64_t portable_cluster_blocks = 8, most_cluster_blocks = 16;

CUdeviceptr address_of(const host_memory& memory, std::uint64_t offset) {
    return static_cast<const cuda_memory&>(memory).address + offset;
}

// Blocks of a launch: CUDA counts them, the wire has their threads.
bool blocks_of(const vgpu_cmd_launch& c, unsigned (&grid)[3], unsigned (&block)[3]) {
    if (!(c.flags & VGPU_LAUNCH_LOCAL_SIZE))
        return false;
    for (int d = 0; d < 3; ++d) {
        const std::uint64_t blocks = c.global[d] / c.local[d];
        constexpr std::uint64_t most = std::numeric_limits<unsigned>::max();
        if ((c.offset[d] != 0 && !(c.flags & VGPU_LAUNCH_CLUSTERS)) || blocks * c.local[d] != c.global[d] ||
            blocks > most || c.local[d] > most)
            return false;
        grid[d] = static_cast<unsigned>(blocks);
        block[d] = static_cast<unsigned>(c.local[d]);
    }
    return true;
}

// Puts what the guest gave into the block of parameters. Its lengths are not to be trusted.
bool set_parameters(cuda_kernel& kernel, std::span<const host_argument> changed) {
    for (const host_argument& a : changed) {
        if (a.kind == VGPU_ARGUMENT_LOCAL && a.index == kernel.parameters.size()) {
            kernel.shared_bytes = a.bytes;
            continue;
        }
        if (a.index >= kernel.parameters.size())
            return false;
        const cuda_kernel::parameter& where = kernel.parameters[a.index];
        // Replication names memory by its object, as it does on GPUs without addresses.
        const CUdeviceptr address = a.kind == VGPU_ARGUMENT_MEMORY && a.memory ? address_of(*a.memory, 0) : 0;
        const auto value = a.kind == VGPU_ARGUMENT_MEMORY ? std::as_bytes(std::span(&address, 1)) : a.value;
        if ((a.kind != VGPU_ARGUMENT_BYTES && a.kind != VGPU_ARGUMENT_MEMORY) || value.size() != where.bytes)
            return false;
        std::memcpy(kernel.block.data() + where.offset, value.data(), value.size());
    }
    return true;
}

} // namespace

struct cuda_device::native_call {
    static constexpr std::uint64_t step_bytes = std::uint64_t{8} << 20; // of a write

    cuda_primary& primary;
    CUstream stream;
    std::unique_ptr<cuda_copy_back>& rest;
    const cuda_api& api = primary.api;

    std::int32_t operator()(const resolved<codec::op_transfer_buffer>& r) const {
        const auto& [memory, data] = r.parts;
        rest = std::make_unique<cuda_copy_back>();
        rest->bytes = primary.staging.take(data->bytes());
        const CUdeviceptr address = address_of(memory, r.op.c->offset);
        if (!r.op.write()) {
            rest->to = data;
            return cuda_error(api.cuMemcpyDtoHAsync_v2(rest->bytes.data(), address, data->bytes(), stream));
        }
        // By steps, so that the bus carries one while the next is copied.
        for (std::uint64_t at = 0; at < data->bytes(); at += step_bytes) {
            const std::uint64_t bytes = std::min(step_bytes, data->bytes() - at);
            std::byte* const from = rest->bytes.data() + at;
            if (!data->read(at, from, bytes))
                return CL_OUT_OF_RESOURCES;
            if (const CUresult error = api.cuMemcpyHtoDAsync_v2(address + at, from, bytes, stream))
                return cuda_error(error);
        }
        return CL_SUCCESS;
    }
    std::int32_t operator()(const resolved<codec::op_copy_buffer>& r) const {
        const auto& [source, destination] = r.parts;
        const vgpu_cmd_copy_buffer& c = *r.op.c;
        return cuda_error(api.cuMemcpyDtoDAsync_v2(address_of(destination, c.destination_offset),
                                                   address_of(source, c.source_offset), c.bytes, stream));
    }
    std::int32_t operator()(const resolved<codec::op_fill_buffer>& r) const {
        const auto& [buffer] = r.parts;
        const vgpu_cmd_fill_buffer& c = *r.op.c;
        const CUdeviceptr to = address_of(buffer, c.offset);
        std::uint32_t value = 0;
        std::memcpy(&value, c.pattern, sizeof value);
        switch (c.pattern_bytes) {
        case 1:
            return cuda_error(api.cuMemsetD8Async(to, static_cast<std::uint8_t>(value), c.bytes, stream));
        case 2:
            return cuda_error(
                api.cuMemsetD16Async(to, static_cast<std::uint16_t>(value), c.bytes / 2, stream));
        case 4:
            return cuda_error(api.cuMemsetD32Async(to, value, c.bytes / 4, stream));
        default:
            return CL_INVALID_VALUE;
        }
    }
    std::int32_t operator()(const resolved<codec::op_launch>& r) const {
        const auto& [host_kernel, changed] = r.parts;
        auto& kernel = static_cast<cuda_kernel&>(host_kernel);
        unsigned grid[3], block[3];
        if (!blocks_of(*r.op.c, grid, block) || !set_parameters(kernel, changed) ||
            r.op.arguments.size() < kernel.parameters.size() ||
            kernel.shared_bytes > std::numeric_limits<int>::max())
            return CL_INVALID_KERNEL_ARGS;
        // The last argument is the shared memory, where there is some.
        const std::uint64_t shared =
            r.op.arguments.size() > kernel.parameters.size() ? kernel.shared_bytes : 0;
        CUlaunchAttribute attributes[2]{};
        CUlaunchConfig config{};
        std::copy(grid, grid + 3, &config.gridDimX);
        std::copy(block, block + 3, &config.blockDimX);
        config.sharedMemBytes = static_cast<unsigned>(shared);
        config.hStream = stream;
        config.attrs = attributes;
        if (r.op.c->flags & VGPU_LAUNCH_COOPERATIVE) {
            attributes[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
            attributes[config.numAttrs++].value.cooperative = 1;
        }
        std::uint64_t cluster_blocks = 1;
        if (r.op.c->flags & VGPU_LAUNCH_CLUSTERS) {
            CUlaunchAttribute& cluster = attributes[config.numAttrs++];
            cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            unsigned* const side = &cluster.value.clusterDim.x;
            for (int d = 0; d < 3; ++d) {
                if (r.op.c->offset[d] == 0 || r.op.c->offset[d] > most_cluster_blocks)
                    return cuda_error(CUDA_ERROR_INVALID_CLUSTER_SIZE);
                side[d] = static_cast<unsigned>(r.op.c->offset[d]);
                cluster_blocks *= r.op.c->offset[d];
            }
        }
        if (const std::int32_t error =
                raise_limits(api, kernel, shared, cluster_blocks > portable_cluster_blocks))
            return error;
        std::size_t bytes = kernel.block.size();
        void* parameters[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, kernel.block.data(),
                              CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
        return cuda_error(api.cuLaunchKernelEx(&config, kernel.native, nullptr, parameters));
    }
    std::int32_t operator()(const resolved<codec::op_sync>&) const { return CL_SUCCESS; } // its waits are all
    std::int32_t operator()(const resolved<codec::op_transfer_rect>& r) const {
        const auto& [memory, data] = r.parts;
        return cuda_error(move_rect(api, stream, r.op, static_cast<const cuda_memory&>(memory), data, rest));
    }
    std::int32_t operator()(const resolved<codec::op_copy_rect>& r) const {
        const auto& [source, destination] = r.parts;
        return cuda_error(copy_rect(api, stream, *r.op.c, static_cast<const cuda_memory&>(source),
                                    static_cast<const cuda_memory&>(destination)));
    }
    std::int32_t operator()(const resolved<codec::op_transfer_image>& r) const {
        const auto& [image, data] = r.parts;
        return cuda_error(move_image(api, stream, r.op, static_cast<const cuda_array&>(image), data, rest));
    }
    std::int32_t operator()(const resolved<codec::op_copy_image>& r) const {
        const auto& [source, destination] = r.parts;
        return cuda_error(copy_image(api, stream, *r.op.c, static_cast<const cuda_array&>(source),
                                     static_cast<const cuda_array&>(destination)));
    }
    std::int32_t operator()(const resolved<codec::op_copy_image_buffer>& r) const {
        return cuda_error(copy_image_buffer(api, stream, r));
    }
    // Sets of images, and stores into mapped memory: a guest's driver for CUDA sends none of these.
    template <class Other>
    std::int32_t operator()(const Other&) const {
        return CL_INVALID_OPERATION;
    }
};

// An event behind everything that is in the stream.
std::int32_t cuda_device::record(cuda_queue& queue, std::span<host_event* const> waits,
                                 std::unique_ptr<cuda_copy_back> rest, std::unique_ptr<host_event>& out) {
    CUevent native = nullptr;
    if (const CUresult result = api_.cuEventCreate(&native, CU_EVENT_DEFAULT))
        return cuda_error(result);
    if (const CUresult result = api_.cuEventRecord(native, queue.native)) {
        api_.cuEventDestroy_v2(native);
        return cuda_error(result);
    }
    std::vector<std::uint64_t> numbers;
    for (const host_event* wait : waits)
        numbers.push_back(static_cast<const cuda_event*>(wait)->number());
    out = std::make_unique<cuda_event>(primary_, poller_, native, queue.lane, std::move(rest),
                                       std::move(numbers));
    return CL_SUCCESS;
}

std::int32_t cuda_device::enqueue(host_queue& queue, const command& what, std::span<host_event* const> waits,
                                  bool wants_event, enqueued& out) {
    primary_->make_current();
    auto& stream = static_cast<cuda_queue&>(queue);
    for (const host_event* wait : waits) {
        const auto* const awaited = dynamic_cast<const cuda_event*>(wait);
        if (!awaited)
            return CL_INVALID_EVENT_WAIT_LIST; // a user event that is not set
        if (const CUresult result = api_.cuStreamWaitEvent(stream.native, awaited->native(), 0))
            return cuda_error(result);
    }
    std::unique_ptr<cuda_copy_back> rest;
    const std::int32_t error = std::visit(native_call{*primary_, stream.native, rest}, what);
    if (rest && error == CL_SUCCESS && !rest->to)
        out.payload_busy = false; // a write: its bytes were taken
    else
        out.payload_busy = rest != nullptr;
    if (error != CL_SUCCESS) {
        if (rest)
            api_.cuCtxSynchronize(); // a part of it may be on its way
        return error;
    }
    return wants_event || rest ? record(stream, waits, std::move(rest), out.event) : CL_SUCCESS;
}

std::int32_t cuda_device::mark(host_queue& queue, std::unique_ptr<host_event>& out) {
    primary_->make_current();
    return record(static_cast<cuda_queue&>(queue), {}, nullptr, out);
}

} // namespace kagemusha::gpu
