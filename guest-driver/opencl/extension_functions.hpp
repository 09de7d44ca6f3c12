// SPDX-License-Identifier: GPL-2.0-or-later
//
// How functions of ours become entry points, and those that programs and the ICD loader ask for by name.
//
// Every entry goes through a wrapper that keeps exceptions inside: the only one that our code lets happen is
// std::bad_alloc, and the standard's name for it is CL_OUT_OF_HOST_MEMORY.
#pragma once

#include "opencl_headers.hpp"
#include "proto/abi/vgpu_protocol.h"

#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace kagemusha::opencl {

template <auto Function>
struct entry;

template <class Result, class... Arguments, Result (*Function)(Arguments...)>
struct entry<Function> {
    static Result CL_API_CALL call(Arguments... arguments) noexcept {
        try {
            return Function(arguments...);
        } catch (...) {
            if constexpr (std::is_same_v<Result, cl_int>) {
                return CL_OUT_OF_HOST_MEMORY;
            } else if constexpr (!std::is_void_v<Result>) {
                // What creates something has a place for the error as its last argument.
                if constexpr (sizeof...(Arguments) > 0) {
                    auto last = std::get<sizeof...(Arguments) - 1>(std::tuple(arguments...));
                    if constexpr (std::is_same_v<decltype(last), cl_int*>)
                        if (last)
                            *last = CL_OUT_OF_HOST_MEMORY;
                }
                return nullptr;
            }
        }
    }
};

template <class Function>
void* untyped(Function* function) {
    return reinterpret_cast<void*>(function);
}

// A function that is found by name, declared beside it as a constant of its file. With `extension`, the
// device reports that extension if the host's device has it and ours knows the command.
struct extension_function {
    extension_function(const char* its_extension, vgpu_opcode its_command, const char* its_name,
                       void* its_address) noexcept
        : extension(its_extension), command(its_command), name(its_name), address(its_address), next(first) {
        first = this;
    }
    extension_function(const extension_function&) = delete;
    extension_function& operator=(const extension_function&) = delete;

    const char* const extension; // null: none that a device reports
    const vgpu_opcode command;   // that it sends
    const char* const name;
    void* const address;
    const extension_function* const next;

    // Made while the library is loaded, never changed after that.
    static inline constinit const extension_function* first = nullptr;
};

// Null for a name that is not an extension's function of this driver.
void* find_extension_function(const char* name) noexcept;
bool has_functions_of(std::string_view extension, std::uint64_t commands) noexcept;

} // namespace kagemusha::opencl
