// SPDX-License-Identifier: GPL-2.0-or-later
// executor_programs: programs.
#include <CL/cl.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "gpu/executor_impl.hpp"
#include "gpu/host_files.hpp"
#include "gpu/program_variables.hpp"

namespace kagemusha::gpu {

namespace {

// Says for the time of a build that the executor is alive; what it added to progress() stays there
// afterwards, so that progress never goes back.
class build_heartbeat {
public:
    build_heartbeat(std::atomic<std::int64_t>& began_s, std::atomic<std::uint64_t>& progress)
        : began_s_(began_s), progress_(progress), start_s_(now_s()) {
        began_s_.store(start_s_, std::memory_order_relaxed);
    }
    ~build_heartbeat() {
        const auto elapsed = static_cast<std::uint64_t>(now_s() - start_s_);
        progress_.fetch_add(std::min(elapsed, max_build_seconds) + 1, std::memory_order_relaxed);
        began_s_.store(-1, std::memory_order_relaxed);
    }
    build_heartbeat(const build_heartbeat&) = delete;
    build_heartbeat& operator=(const build_heartbeat&) = delete;

private:
    static std::int64_t now_s() {
        return std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }
    std::atomic<std::int64_t>& began_s_;
    std::atomic<std::uint64_t>& progress_;
    std::int64_t start_s_;
};

// The guest's driver classifies arguments (value, memory object, sampler, local memory) by what the compiler
// knows about them, so that knowledge must stay in the program. A compiler that does not know the option gets
// the guest's options alone. Returns the result of `build`.
template <class Build>
std::int32_t with_argument_info(bool is_source, std::string_view options, Build&& build) {
    const std::string plain(options);
    if (!is_source)
        return build(plain);
    const std::int32_t error = build(plain + (plain.empty() ? "" : " ") + "-cl-kernel-arg-info");
    return error == CL_INVALID_BUILD_OPTIONS || error == CL_INVALID_COMPILER_OPTIONS ? build(plain) : error;
}

bool mentions_print(std::span<const std::byte> source) {
    static constexpr std::string_view word = "printf";
    const std::string_view text(reinterpret_cast<const char*>(source.data()), source.size());
    return text.find(word) != text.npos;
}

} // namespace

std::int32_t executor::impl::run(const codec::op_create_program& op) {
    auto* context = objects.find<context_object>(op.c->context);
    if (!context)
        return CL_INVALID_CONTEXT;
    if (objects.contains(op.c->id))
        return id_taken;
    const payload_ptr content = payload(op.content, false);
    if (malformed)
        return CL_INVALID_VALUE;
    std::vector<std::byte> bytes(content ? content->bytes() : 0);
    if (content && !content->read(0, bytes.data(), bytes.size()))
        return CL_OUT_OF_RESOURCES;

    const auto kind = static_cast<vgpu_program_kind>(op.c->kind);
    if (kind == VGPU_PROGRAM_SOURCE)
        bytes = without_host_files(bytes);
    program_object object{nullptr, kind == VGPU_PROGRAM_SOURCE};
    if (const std::int32_t error = device().create_program(*context->native, kind, bytes, object.native))
        return error;
    // Source may also get the word through a macro given as an option or from a header, which is a program of
    // its own.
    if (kind != VGPU_PROGRAM_SOURCE || mentions_print(bytes))
        shared->may_print.store(true, std::memory_order_relaxed);
    objects.insert(op.c->id, std::move(object));
    return CL_SUCCESS;
}

std::int32_t executor::impl::run(const codec::op_build_program& op) {
    auto* program = objects.find<program_object>(op.c->program);
    if (!program)
        return CL_INVALID_PROGRAM;
    const auto allowed = without_host_files(op.options);
    if (!allowed)
        return CL_INVALID_BUILD_OPTIONS;
    const build_heartbeat alive(build_began_s, shared->progress);
    if (op.options.find("printf") != op.options.npos)
        shared->may_print.store(true, std::memory_order_relaxed);
    program->refused = false;
    const std::int32_t built =
        with_argument_info(program->is_source, *allowed, [&](const std::string& options) {
            return device().build_program(*program->native, options);
        });
    return refuse_program_variables(*program, built, CL_BUILD_PROGRAM_FAILURE);
}

// The result of a build for the guest.
std::int32_t executor::impl::refuse_program_variables(program_object& program, std::int32_t built,
                                                      std::int32_t failure) {
    if (built != CL_SUCCESS || device().program_variable_bytes(*program.native) == 0)
        return built;
    program.refused = true;
    return failure;
}

std::int32_t executor::impl::run(const codec::op_compile_program& op) {
    auto* program = objects.find<program_object>(op.c->program);
    if (!program)
        return CL_INVALID_PROGRAM;
    std::vector<host_program*> headers;
    std::vector<const char*> names;
    const char* name = op.names.data();
    std::size_t left = op.names.size();
    for (const codec::guest_id id : op.headers) {
        auto* header = objects.find<program_object>(id);
        if (!header)
            return CL_INVALID_PROGRAM;
        const void* end = left ? std::memchr(name, 0, left) : nullptr;
        if (!end)
            return CL_INVALID_VALUE;
        const auto length = static_cast<std::size_t>(static_cast<const char*>(end) - name) + 1;
        headers.push_back(header->native.get());
        names.push_back(name);
        name += length;
        left -= length;
    }
    const auto allowed = without_host_files(op.options);
    if (!allowed)
        return CL_INVALID_COMPILER_OPTIONS;
    const build_heartbeat alive(build_began_s, shared->progress);
    if (op.options.find("printf") != op.options.npos)
        shared->may_print.store(true, std::memory_order_relaxed);
    return with_argument_info(program->is_source, *allowed, [&](const std::string& options) {
        return device().compile_program(*program->native, options, headers, names);
    });
}

std::int32_t executor::impl::run(const codec::op_link_program& op) {
    auto* context = objects.find<context_object>(op.c->context);
    if (!context)
        return CL_INVALID_CONTEXT;
    if (objects.contains(op.c->id))
        return id_taken;
    std::vector<host_program*> inputs;
    for (const codec::guest_id id : op.inputs) {
        auto* input = objects.find<program_object>(id);
        if (!input)
            return CL_INVALID_PROGRAM;
        inputs.push_back(input->native.get());
    }
    const auto allowed = without_host_files(op.options);
    if (!allowed)
        return CL_INVALID_LINKER_OPTIONS;
    const build_heartbeat alive(build_began_s, shared->progress);
    program_object object{nullptr, false};
    std::int32_t error = device().link_program(*context->native, *allowed, inputs, object.native);
    if (object.native)
        error = refuse_program_variables(object, error, CL_LINK_PROGRAM_FAILURE);
    if (object.native && (error == CL_SUCCESS || error == CL_LINK_PROGRAM_FAILURE))
        objects.insert(op.c->id, std::move(object));
    return error;
}

// For the replication. What it can't do it leaves: programs are compiled then.
std::int32_t executor::impl::run(const codec::op_built& op) {
    const payload_ptr data = payload(op.data, op.take());
    if (malformed || !data)
        return CL_INVALID_VALUE;
    if (!built)
        built.emplace(device().built_files_directory());
    std::vector<std::byte> pack;
    if (op.take()) {
        pack = built->take((op.c->flags & VGPU_BUILT_ALL) != 0, data->bytes());
        return data->write(0, pack.data(), pack.size()) ? CL_SUCCESS : CL_OUT_OF_RESOURCES;
    }
    pack.resize(data->bytes());
    if (!data->read(0, pack.data(), pack.size()))
        return CL_OUT_OF_RESOURCES;
    built->store(pack);
    return CL_SUCCESS;
}

std::int32_t executor::impl::run(const codec::op_set_spec_constant& op) {
    auto* program = objects.find<program_object>(op.c->program);
    return program ? device().set_spec_constant(*program->native, op.c->constant, op.value)
                   : CL_INVALID_PROGRAM;
}

} // namespace kagemusha::gpu
