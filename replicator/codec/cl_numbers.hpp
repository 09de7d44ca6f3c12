// SPDX-License-Identifier: GPL-2.0-or-later
// cl_numbers: the few numbers of OpenCL that decoding and validation decide by. Written out so that neither
// needs OpenCL's headers (they configure themselves by macros that belong to the including program);
// cl_numbers_test.cpp compares them with <CL/cl.h>.
#pragma once

#include <cstdint>

namespace kagemusha::codec {

// cl_mem_flags
inline constexpr std::uint64_t cl_mem_read_write = 1u << 0;
inline constexpr std::uint64_t cl_mem_write_only = 1u << 1;
inline constexpr std::uint64_t cl_mem_read_only = 1u << 2;
inline constexpr std::uint64_t cl_mem_alloc_host_ptr = 1u << 4;
inline constexpr std::uint64_t cl_mem_host_write_only = 1u << 7;
inline constexpr std::uint64_t cl_mem_host_read_only = 1u << 8;
inline constexpr std::uint64_t cl_mem_host_no_access = 1u << 9;
inline constexpr std::uint64_t cl_mem_kernel_read_and_write = 1u << 12;
inline constexpr std::uint64_t cl_mem_device_access_flags =
    cl_mem_read_write | cl_mem_write_only | cl_mem_read_only;
inline constexpr std::uint64_t cl_mem_host_access_flags =
    cl_mem_host_write_only | cl_mem_host_read_only | cl_mem_host_no_access;
inline constexpr std::uint64_t cl_mem_known_flags = cl_mem_device_access_flags | cl_mem_host_access_flags |
                                                    cl_mem_alloc_host_ptr | cl_mem_kernel_read_and_write;

// cl_command_queue_properties, cl_mem_migration_flags
inline constexpr std::uint64_t cl_queue_out_of_order = 1u << 0;
inline constexpr std::uint64_t cl_queue_profiling = 1u << 1;
inline constexpr std::uint64_t cl_migrate_host = 1u << 0;
inline constexpr std::uint64_t cl_migrate_content_undefined = 1u << 1;

// cl_mem_object_type
inline constexpr std::uint32_t cl_mem_object_image2d = 0x10F1;
inline constexpr std::uint32_t cl_mem_object_image3d = 0x10F2;
inline constexpr std::uint32_t cl_mem_object_image2d_array = 0x10F3;
inline constexpr std::uint32_t cl_mem_object_image1d = 0x10F4;
inline constexpr std::uint32_t cl_mem_object_image1d_array = 0x10F5;
inline constexpr std::uint32_t cl_mem_object_image1d_buffer = 0x10F6;

constexpr bool is_image_type(std::uint32_t type) {
    return type >= cl_mem_object_image2d && type <= cl_mem_object_image1d_buffer;
}

// cl_addressing_mode, cl_filter_mode
inline constexpr std::uint32_t cl_address_none = 0x1130;
inline constexpr std::uint32_t cl_address_mirrored_repeat = 0x1134;
inline constexpr std::uint32_t cl_filter_nearest = 0x1140;
inline constexpr std::uint32_t cl_filter_linear = 0x1141;

// Error codes that the device itself answers with.
inline constexpr std::int32_t cl_success = 0;
inline constexpr std::int32_t cl_mem_object_allocation_failure = -4;
inline constexpr std::int32_t cl_out_of_resources = -5;
inline constexpr std::int32_t cl_out_of_host_memory = -6;
inline constexpr std::int32_t cl_image_format_not_supported = -10;
inline constexpr std::int32_t cl_build_program_failure = -11;
inline constexpr std::int32_t cl_wait_list_error = -14; // CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST
inline constexpr std::int32_t cl_compile_program_failure = -15;
inline constexpr std::int32_t cl_invalid_binary = -42;
inline constexpr std::int32_t cl_link_program_failure = -17;
inline constexpr std::int32_t cl_invalid_value = -30;
inline constexpr std::int32_t cl_invalid_device = -33;
inline constexpr std::int32_t cl_invalid_context = -34;
inline constexpr std::int32_t cl_invalid_mem_object = -38;
inline constexpr std::int32_t cl_invalid_image_size = -40;
inline constexpr std::int32_t cl_invalid_image_descriptor = -65;

constexpr bool at_most_one_bit(std::uint64_t value) {
    return (value & (value - 1)) == 0;
}

} // namespace kagemusha::codec
