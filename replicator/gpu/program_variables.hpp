// SPDX-License-Identifier: GPL-2.0-or-later
// program_variables: variables of a program in the GPU's global memory (OpenCL C 2.0 and 3.0), which no guest
// gets.
//
// Such a variable is state of the GPU that no object of the guest stands for: a state transfer does not copy
// it, digests do not compare it, and a kernel on the standby would find its initial value. So the device has
// none, which OpenCL 3.0 allows, and a program that has one all the same does not build and says why. This
// is so for every guest: a VM may get its standby at any time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "gpu/backend_module.hpp"

namespace kagemusha::gpu {

// Takes them out of the device's answer.
void without_program_variables(const info_query& query, std::vector<std::byte>& answer);

// Added to the build log of a program that has some.
inline constexpr std::string_view no_program_variables =
    "error: this program has variables at program scope in global memory. This virtual machine's GPU does "
    "not "
    "offer them (CL_DEVICE_MAX_GLOBAL_VARIABLE_SIZE is 0), because they would not be on its standby: pass a "
    "buffer to the kernels instead.\n";

} // namespace kagemusha::gpu
