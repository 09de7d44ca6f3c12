// SPDX-License-Identifier: GPL-2.0-or-later
#include "gpu/program_variables.hpp"

#include <CL/cl.h>

#include <algorithm>
#include <cstring>

namespace kagemusha::gpu {

namespace {

constexpr std::string_view feature = "__opencl_c_program_scope_global_variables";

std::uint64_t size_of(backend_device& device, const info_query& query) {
    std::vector<std::byte> answer;
    std::size_t bytes = 0;
    if (device.info(query, answer) != CL_SUCCESS || answer.size() != sizeof bytes)
        return 0;
    std::memcpy(&bytes, answer.data(), sizeof bytes);
    return bytes;
}

} // namespace

void without_program_variables(const info_query& query, std::vector<std::byte>& answer) {
    if (query.subject != VGPU_INFO_DEVICE)
        return;
    switch (query.name) {
    case CL_DEVICE_MAX_GLOBAL_VARIABLE_SIZE:
    case CL_DEVICE_GLOBAL_VARIABLE_PREFERRED_TOTAL_SIZE:
        std::ranges::fill(answer, std::byte{0});
        break;
    case CL_DEVICE_OPENCL_C_FEATURES: {
        std::size_t kept = 0;
        for (std::size_t at = 0; at + sizeof(cl_name_version) <= answer.size();
             at += sizeof(cl_name_version)) {
            cl_name_version one;
            std::memcpy(&one, answer.data() + at, sizeof one);
            if (std::string_view(one.name, strnlen(one.name, sizeof one.name)) == feature)
                continue;
            std::memcpy(answer.data() + kept, &one, sizeof one);
            kept += sizeof one;
        }
        answer.resize(kept);
        break;
    }
    default:
        break;
    }
}

std::uint64_t backend_device::program_variable_bytes(host_program& program) {
    info_query of_device{};
    of_device.subject = VGPU_INFO_DEVICE;
    of_device.name = CL_DEVICE_MAX_GLOBAL_VARIABLE_SIZE;
    // A device that has none may count something else as such.
    if (size_of(*this, of_device) == 0)
        return 0;
    info_query of_program{};
    of_program.subject = VGPU_INFO_PROGRAM_BUILD;
    of_program.name = CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE;
    of_program.program = &program;
    return size_of(*this, of_program);
}

} // namespace kagemusha::gpu
