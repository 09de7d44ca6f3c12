// SPDX-License-Identifier: GPL-2.0-or-later
// answering_protocol: what crosses between a worker, its answering broker and an answering process
// (answering_broker.hpp): one message of fixed size each way. Pure.
#pragma once

#include <cstdint>

#include "proto/abi/vgpu_cuda.h"

namespace kagemusha::worker {

enum class answering_wants : std::uint32_t { tables = 1, proof = 2 };

struct answering_request {
    answering_wants wants;
    std::uint32_t pad;
    vgpu_cuda_question question; // for `proof`
    std::uint8_t uuid[16];       // of the GPU that the driver has to see alone
};

enum class answering_status : std::uint32_t {
    answered,
    malformed,       // the request
    no_process,      // with such ids, or in a place of its own
    no_driver,       // or it does not start, or has no such tables
    other_addresses, // than the program knows
    died,            // while it was asked, or took too long
};

struct answering_answer {
    answering_status status;
    std::uint32_t pad;
    vgpu_cuda_tables tables;
    vgpu_cuda_proof proof;
};

// Linux's process ids end there (PID_MAX_LIMIT).
inline constexpr std::uint32_t max_process_id = 1u << 22;

// Where the C library can have put what it keeps of a thread, which is what pthread_self() says.
inline constexpr std::uint64_t first_thread = std::uint64_t{64} << 20;
inline constexpr std::uint64_t last_thread = (std::uint64_t{1} << 47) - (std::uint64_t{64} << 20);
inline constexpr std::uint64_t thread_alignment = 64;

// Whether a broker goes on with it. What is inside comes from a guest.
constexpr bool is_sound(const answering_request& r) {
    if (r.wants == answering_wants::tables)
        return true;
    return r.wants == answering_wants::proof && r.question.process != 0 &&
           r.question.process < max_process_id && r.question.thread >= first_thread &&
           r.question.thread < last_thread && r.question.thread % thread_alignment == 0;
}

// Whether an answering process that has these ids and this GPU is the one for `r`.
constexpr bool fits(const answering_request& has, const answering_request& r) {
    if (r.wants == answering_wants::tables)
        return true;
    if (has.wants != answering_wants::proof || has.question.process != r.question.process ||
        has.question.thread != r.question.thread)
        return false;
    for (unsigned i = 0; i < sizeof r.uuid; ++i)
        if (has.uuid[i] != r.uuid[i])
            return false;
    return true;
}

} // namespace kagemusha::worker
