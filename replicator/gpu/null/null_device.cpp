// SPDX-License-Identifier: GPL-2.0-or-later
// null_device: objects of the null backend, and the module that offers it.
#include "gpu/null/null_device.hpp"

#include <CL/cl.h>

#include <cstdlib>
#include <cstring>

namespace kagemusha::gpu {

namespace {

gpu_description null_description() {
    gpu_description d;
    d.platform = "Kagemusha";
    d.name = "Null GPU";
    d.vendor = "Kagemusha";
    d.type = "none";
    d.memory_bytes = null_memory_bytes;
    d.version = "OpenCL 3.0 Kagemusha null";
    d.driver_version = "1";
    d.fingerprint = "0000000000000000";
    d.is_default = true;
    return d;
}

bool read_options(const backend_options& options, null_device_options& out, std::string& error) {
    out = {};
    for (const auto& [key, value] : options) {
        if ((key != "memory" && key != "variables") || (value != "0" && value != "1")) {
            error = "the null backend does not know the option '" + key + "=" + value +
                    "'; it has memory and variables, each 0 or 1";
            return false;
        }
        (key == "memory" ? out.has_memory : out.has_variables) = value == "1";
    }
    return true;
}

class null_backend final : public backend_module {
public:
    std::string_view name() const override { return "null"; }
    std::vector<gpu_description> list(const backend_options& options, std::string& error) const override {
        null_device_options read;
        if (!read_options(options, read, error))
            return {};
        return {null_description()};
    }
    std::shared_ptr<backend_device> open(const gpu_description& gpu, const backend_options& options,
                                         std::string& error) const override {
        null_device_options read;
        return read_options(options, read, error) ? std::make_shared<null_device>(gpu, read) : nullptr;
    }
};

constexpr std::string_view binary_magic = "kagemusha-null-binary\n";

} // namespace

const backend_module& null_module() {
    static const null_backend module;
    return module;
}

null_device::null_device(gpu_description description, const null_device_options& options)
    : description_(std::move(description)), options_(options) {}

bool null_device::means_lost(std::int32_t status) const {
    return status == CL_DEVICE_NOT_AVAILABLE;
}

namespace {

struct null_creation {
    const null_device_options& options;

    std::int32_t operator()(const resolved<codec::op_create_context>& r) const {
        const auto& [place] = r.parts;
        place = std::make_unique<null_context>();
        return CL_SUCCESS;
    }
    std::int32_t operator()(const resolved<codec::op_create_queue>& r) const {
        const auto& [place, context] = r.parts;
        const std::uint64_t properties = r.op.c->properties;
        auto queue = std::make_unique<null_queue>();
        queue->in_order = (properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) == 0;
        queue->profiles = (properties & CL_QUEUE_PROFILING_ENABLE) != 0;
        place = std::move(queue);
        return CL_SUCCESS;
    }
    std::int32_t operator()(const resolved<codec::op_create_buffer>& r) const {
        const auto& [place, context, content] = r.parts;
        return new_memory(r.op.c->bytes, flags_on_host(r.op.c->flags), content.get(), place);
    }
    // Nothing runs here that could know the address.
    std::int32_t operator()(const resolved<codec::op_create_arena>& r) const {
        const auto& [place, context] = r.parts;
        return new_memory(r.op.c->bytes, 0, nullptr, place);
    }
    // No program of this device has variables, so each is what the guest says.
    std::int32_t operator()(const resolved<codec::op_create_variable>& r) const {
        const auto& [place, program] = r.parts;
        return new_memory(r.op.c->bytes, 0, nullptr, place);
    }
    std::int32_t new_memory(std::uint64_t bytes, std::uint64_t flags, const guest_payload* content,
                            std::unique_ptr<host_memory>& place) const {
        if (bytes == 0 || bytes > null_max_allocation_bytes)
            return CL_INVALID_BUFFER_SIZE;
        auto memory = std::make_unique<null_memory>();
        memory->bytes = bytes;
        memory->flags = flags;
        if (options.has_memory) {
            memory->storage.reset(static_cast<std::byte*>(std::calloc(bytes, 1)),
                                  [](std::byte* p) { std::free(p); });
            if (!memory->storage)
                return CL_MEM_OBJECT_ALLOCATION_FAILURE;
            if (content && !content->read(0, memory->storage.get(), bytes))
                return CL_OUT_OF_RESOURCES;
        }
        place = std::move(memory);
        return CL_SUCCESS;
    }
    std::int32_t operator()(const resolved<codec::op_create_sub_buffer>& r) const {
        const auto& [place, buffer] = r.parts;
        const auto& parent = static_cast<null_memory&>(buffer);
        const std::uint64_t flags = flags_on_host(r.op.c->flags);
        auto memory = std::make_unique<null_memory>();
        memory->storage = parent.storage;
        memory->origin = parent.origin + r.op.c->origin;
        memory->parent_origin = r.op.c->origin;
        memory->bytes = r.op.c->bytes;
        memory->flags = flags ? flags : parent.flags;
        place = std::move(memory);
        return CL_SUCCESS;
    }
    // The standard's answer of a device without images.
    std::int32_t operator()(const resolved<codec::op_create_image>&) const { return CL_INVALID_OPERATION; }
    std::int32_t operator()(const resolved<codec::op_create_sampler>&) const { return CL_INVALID_OPERATION; }
    std::int32_t operator()(const resolved<codec::op_create_texture>&) const { return CL_INVALID_OPERATION; }
    std::int32_t operator()(const resolved<codec::op_create_kernel>& r) const {
        const auto& [place, program] = r.parts;
        const auto& p = static_cast<null_program&>(program);
        if (p.binary_type != CL_PROGRAM_BINARY_TYPE_EXECUTABLE || !p.built)
            return CL_INVALID_PROGRAM_EXECUTABLE;
        for (const kernel_signature& signature : p.kernels)
            if (signature.name == r.op.name) {
                auto kernel = std::make_unique<null_kernel>();
                kernel->signature = signature;
                place = std::move(kernel);
                return CL_SUCCESS;
            }
        return CL_INVALID_KERNEL_NAME;
    }
};

} // namespace

std::int32_t null_device::create(const creation& what) {
    return std::visit(null_creation{options_}, what);
}

std::int32_t null_device::create_user_event(host_context&, std::unique_ptr<host_event>& out) {
    out = std::make_unique<null_event>(std::make_shared<null_signal>());
    return CL_SUCCESS;
}

// ---- programs
// -------------------------------------------------------------------------------------------------------

std::int32_t null_device::create_program(host_context&, vgpu_program_kind kind,
                                         std::span<const std::byte> content,
                                         std::unique_ptr<host_program>& out) {
    auto program = std::make_unique<null_program>();
    program->kind = kind;
    program->content.assign(reinterpret_cast<const char*>(content.data()), content.size());
    if (kind == VGPU_PROGRAM_BINARY) {
        if (!program->content.starts_with(binary_magic))
            return CL_INVALID_BINARY;
        program->content.erase(0, binary_magic.size());
        program->binary_type = CL_PROGRAM_BINARY_TYPE_EXECUTABLE;
    } else if (kind != VGPU_PROGRAM_SOURCE) {
        return CL_INVALID_OPERATION;
    }
    out = std::move(program);
    return CL_SUCCESS;
}

std::int32_t null_device::set_spec_constant(host_program&, std::uint32_t, std::span<const std::byte>) {
    return CL_INVALID_OPERATION; // no IL
}

std::int32_t null_device::build_program(host_program& program, const std::string& options) {
    auto& p = static_cast<null_program&>(program);
    p.kernels = find_kernels(p.content);
    p.options = options;
    p.built = true;
    p.binary_type = CL_PROGRAM_BINARY_TYPE_EXECUTABLE;
    return CL_SUCCESS;
}

std::int32_t null_device::compile_program(host_program& program, const std::string& options,
                                          std::span<host_program* const>, std::span<const char* const>) {
    auto& p = static_cast<null_program&>(program);
    p.options = options;
    p.built = true;
    p.binary_type = CL_PROGRAM_BINARY_TYPE_COMPILED_OBJECT;
    return CL_SUCCESS;
}

std::int32_t null_device::link_program(host_context&, const std::string& options,
                                       std::span<host_program* const> inputs,
                                       std::unique_ptr<host_program>& out) {
    auto program = std::make_unique<null_program>();
    program->kind = VGPU_PROGRAM_SOURCE;
    for (host_program* input : inputs) {
        const auto& p = static_cast<null_program&>(*input);
        if (!p.built)
            return CL_INVALID_OPERATION;
        program->content += p.content + "\n";
    }
    build_program(*program, options);
    out = std::move(program);
    return CL_SUCCESS;
}

} // namespace kagemusha::gpu
