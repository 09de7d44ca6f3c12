// SPDX-License-Identifier: GPL-2.0-or-later
// executor_info: queries. Finds the object, refuses names that info_table.hpp does not have, copies the
// answer out.
#include <CL/cl.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "gpu/executor_impl.hpp"
#include "gpu/info_table.hpp"
#include "gpu/program_variables.hpp"

namespace kagemusha::gpu {

namespace {

// VGPU_PLATFORM_COMMANDS
constexpr std::uint64_t commands_of_guests = [] {
    static_assert(VGPU_OPCODE_COUNT <= 64);
    std::uint64_t bits = 0;
    codec::commands::all_rows::for_each([&]<class Row>() {
        if (Row::answers != codec::commands::answer::log)
            bits |= std::uint64_t{1} << Row::opcode;
    });
    return bits;
}();

// Of a program that has built, but not for a guest.
void report_refusal(std::uint32_t name, std::vector<std::byte>& answer) {
    if (name == CL_PROGRAM_BUILD_STATUS) {
        const cl_build_status status = CL_BUILD_ERROR;
        answer.resize(sizeof status);
        std::memcpy(answer.data(), &status, sizeof status);
    } else if (name == CL_PROGRAM_BUILD_LOG) {
        while (!answer.empty() && answer.back() == std::byte{0})
            answer.pop_back();
        const auto text = std::as_bytes(std::span(no_program_variables));
        answer.insert(answer.end(), text.begin(), text.end());
        answer.push_back(std::byte{0});
    }
}

} // namespace

std::int32_t executor::impl::run(const codec::op_info& op) {
    info_query query{};
    query.subject = static_cast<vgpu_info_subject>(op.c->subject);
    query.name = op.c->name;
    query.index = op.c->index;
    query.input = op.input.inline_bytes;

    result.clear();
    if (query.subject == VGPU_INFO_PLATFORM && query.name == VGPU_PLATFORM_COMMANDS) {
        const auto bytes = std::as_bytes(std::span(&commands_of_guests, 1));
        result.assign(bytes.begin(), bytes.end());
        return give_result(op.result);
    }
    bool refused = false; // the program, by us
    switch (query.subject) {
    case VGPU_INFO_PLATFORM:
    case VGPU_INFO_TIMERS:
        break;
    case VGPU_INFO_DEVICE:
        if (op.c->index != 0)
            return CL_INVALID_DEVICE;
        break;
    case VGPU_INFO_IMAGE_FORMATS: {
        auto* context = objects.find<context_object>(op.c->object);
        if (!context)
            return CL_INVALID_CONTEXT;
        query.context = context->native.get();
        break;
    }
    case VGPU_INFO_MEMORY: {
        auto* memory = objects.find<memory_object>(op.c->object);
        if (!memory)
            return CL_INVALID_MEM_OBJECT;
        query.memory = memory->native.get();
        break;
    }
    case VGPU_INFO_IMAGE: {
        auto* memory = find_image(op.c->object);
        if (!memory)
            return CL_INVALID_MEM_OBJECT;
        query.memory = memory->native.get();
        break;
    }
    case VGPU_INFO_PROGRAM:
    case VGPU_INFO_PROGRAM_BUILD: {
        auto* program = objects.find<program_object>(op.c->object);
        if (!program)
            return CL_INVALID_PROGRAM;
        query.program = program->native.get();
        refused = program->refused;
        break;
    }
    case VGPU_INFO_KERNEL:
    case VGPU_INFO_KERNEL_ARG:
    case VGPU_INFO_KERNEL_WORK_GROUP:
    case VGPU_INFO_KERNEL_SUB_GROUP: {
        auto* kernel = objects.find<kernel_object>(op.c->object);
        if (!kernel)
            return CL_INVALID_KERNEL;
        query.kernel = kernel->native.get();
        break;
    }
    default:
        return CL_INVALID_VALUE;
    }
    const bool named = query.subject != VGPU_INFO_IMAGE_FORMATS && query.subject != VGPU_INFO_TIMERS;
    if (named && !find_info(query.subject, query.name))
        return CL_INVALID_VALUE;

    if (const std::int32_t error = device().info(query, result))
        return error;
    without_program_variables(query, result);
    if (refused && query.subject == VGPU_INFO_PROGRAM_BUILD)
        report_refusal(query.name, result);
    return give_result(op.result);
}

std::int32_t executor::impl::give_result(const codec::payload_source& to) {
    if (result.size() > VGPU_MAX_RESULT_BYTES)
        return CL_OUT_OF_HOST_MEMORY;
    const payload_ptr out = payload(to, true);
    if (malformed)
        return CL_INVALID_VALUE;
    if (out && !out->write(0, result.data(), std::min<std::uint64_t>(result.size(), out->bytes())))
        return CL_OUT_OF_RESOURCES;
    result_bytes = result.size();
    if (result.capacity() > (1u << 20))
        std::vector<std::byte>().swap(result); // a binary once does not keep its memory for ever
    return CL_SUCCESS;
}

} // namespace kagemusha::gpu
