// SPDX-License-Identifier: GPL-2.0-or-later
//
// An answer's size is not known before: a first try has room for what nearly every query gives, a second one
// has exactly what the first one said.
#include "query.hpp"

#include "connection.hpp"

#include <algorithm>

namespace kagemusha::opencl {
namespace {

constexpr std::size_t first_try_bytes = 1024;
constexpr std::size_t concurrent_questions = 16;

struct pending_question {
    std::uint64_t ticket = 0;
    cl_int error = CL_SUCCESS;
};

pending_question begin(connection& link, const question& asked, std::vector<std::byte>& place) {
    auto command = make_command<commands::info>();
    command.subject = asked.subject;
    command.name = asked.name;
    command.object = asked.object;
    command.index = asked.index;
    const payload result{place.data(), place.size(), true};
    const codec::payload_source input = inlined(asked.input.data(), asked.input.size());
    pending_question begun;
    begun.error = link.begin_call(make_outgoing(command, result, input), begun.ticket);
    return begun;
}

// True when `result` is final, false when the question has to be asked again with the room that place now
// has.
bool finish(connection& link, const pending_question& begun, std::vector<std::byte>& place, cl_int& error) {
    error = begun.error;
    if (error != CL_SUCCESS)
        return true;
    vgpu_response response{};
    error = link.finish_call(begun.ticket, &response);
    const bool too_small = response.status == VGPU_STATUS_OK && response.result_bytes > place.size();
    if (too_small && (error == CL_SUCCESS || error == CL_INVALID_VALUE)) {
        if (response.result_bytes > VGPU_MAX_RESULT_BYTES) {
            error = CL_OUT_OF_HOST_MEMORY;
            return true;
        }
        place.resize(response.result_bytes);
        return false;
    }
    place.resize(error == CL_SUCCESS ? response.result_bytes : 0);
    return true;
}

} // namespace

answer ask(connection& link, const question& asked) {
    answer result;
    result.bytes.resize(first_try_bytes);
    // Twice suffices unless the answer grows in between (a build log while another thread builds).
    for (int attempt = 0; attempt < 4; ++attempt)
        if (finish(link, begin(link, asked, result.bytes), result.bytes, result.error))
            return result;
    return {CL_OUT_OF_RESOURCES, {}};
}

std::vector<answer> ask_all(connection& link, std::span<const question> asked) {
    std::vector<answer> results(asked.size());
    std::vector<pending_question> begun(asked.size());
    const std::size_t window =
        std::clamp<std::size_t>(link.limits().max_requests / 4, 1, concurrent_questions);
    for (std::size_t first = 0; first < asked.size(); first += window) {
        const std::size_t end = std::min(first + window, asked.size());
        for (std::size_t i = first; i < end; ++i) {
            results[i].bytes.resize(first_try_bytes);
            begun[i] = begin(link, asked[i], results[i].bytes);
        }
        for (std::size_t i = first; i < end; ++i)
            if (!finish(link, begun[i], results[i].bytes, results[i].error))
                results[i] = ask(link, asked[i]);
    }
    return results;
}

std::uint64_t known_commands(connection& link) {
    return ask(link, {VGPU_INFO_PLATFORM, VGPU_PLATFORM_COMMANDS}).as<std::uint64_t>().value_or(0);
}

cl_int forward(connection& link, const question& asked, const info_answer& to) {
    const answer result = ask(link, asked);
    return result.error != CL_SUCCESS ? result.error : to.bytes(result.bytes.data(), result.bytes.size());
}

} // namespace kagemusha::opencl
