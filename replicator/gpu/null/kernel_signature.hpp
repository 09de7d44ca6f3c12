// SPDX-License-Identifier: GPL-2.0-or-later
// kernel_signature: names and argument lists of the kernels in an OpenCL C source, found without a compiler,
// for the null backend: guests ask for them before they launch. Macros are not expanded: a kernel that a
// macro declares is not found.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::gpu {

struct kernel_argument {
    std::uint32_t address_qualifier; // CL_KERNEL_ARG_ADDRESS_*
    std::uint32_t access_qualifier;  // CL_KERNEL_ARG_ACCESS_*
    std::uint64_t type_qualifier;    // CL_KERNEL_ARG_TYPE_*
    std::string type_name;           // "float*", "uint"
    std::string name;
};

struct kernel_signature {
    std::string name;
    std::vector<kernel_argument> arguments;
};

std::vector<kernel_signature> find_kernels(std::string_view source);

} // namespace kagemusha::gpu
