// SPDX-License-Identifier: GPL-2.0-or-later
//
// Questions that only the host can answer (VGPU_CMD_INFO).
#pragma once

#include "info.hpp"
#include "proto/abi/vgpu_protocol.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kagemusha::opencl {

class connection;

struct question {
    vgpu_info_subject subject;
    std::uint32_t name = 0;
    std::uint64_t object = 0;
    std::uint64_t index = 0;
    std::span<const std::byte> input{}; // at most a few words
};

struct answer {
    cl_int error = CL_SUCCESS;
    std::vector<std::byte> bytes;

    // The value, if the answer is one of this size.
    template <class T>
    std::optional<T> as() const {
        if (error != CL_SUCCESS || bytes.size() != sizeof(T))
            return std::nullopt;
        T value;
        std::memcpy(&value, bytes.data(), sizeof value);
        return value;
    }

    // Text without its terminating 0.
    std::string text() const {
        std::string result(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        while (!result.empty() && result.back() == 0)
            result.pop_back();
        return result;
    }
};

answer ask(connection& link, const question& asked);

// Several at once: all are sent before the first answer is awaited.
std::vector<answer> ask_all(connection& link, std::span<const question> asked);

// A bit for each opcode that the device says it knows; 0 from an older one.
std::uint64_t known_commands(connection& link);

// Gives the host's answer to the program as it is.
cl_int forward(connection& link, const question& asked, const info_answer& to);

} // namespace kagemusha::opencl
