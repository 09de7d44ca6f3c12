// SPDX-License-Identifier: GPL-2.0-or-later
// info_table: see info_table.hpp. In the order of the OpenCL 3.0 specification's tables.
#include "gpu/info_table.hpp"

#include <CL/cl.h>
#include <CL/cl_ext.h>

#include "proto/abi/vgpu_cuda.h"

namespace kagemusha::gpu {

namespace {

using enum info_type;

// Not in the headers of Debian 12.
enum : std::uint32_t {
    async_engine_count_nv = 0x4007,
    single_fp_atomic_capabilities = 0x4231, // cl_ext_float_atomics
    double_fp_atomic_capabilities = 0x4232,
    half_fp_atomic_capabilities = 0x4233,
};

constexpr info_entry platform_names[] = {
    {CL_PLATFORM_PROFILE, text},
    {CL_PLATFORM_VERSION, text},
    {CL_PLATFORM_NUMERIC_VERSION, u32},
    {CL_PLATFORM_NAME, text},
    {CL_PLATFORM_VENDOR, text},
    {CL_PLATFORM_EXTENSIONS, text},
    {CL_PLATFORM_EXTENSIONS_WITH_VERSION, bytes},
    {CL_PLATFORM_HOST_TIMER_RESOLUTION, u64},
};

constexpr info_entry device_names[] = {
    {CL_DEVICE_TYPE, u64},
    {CL_DEVICE_VENDOR_ID, u32},
    {CL_DEVICE_MAX_COMPUTE_UNITS, u32},
    {CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS, u32},
    {CL_DEVICE_MAX_WORK_ITEM_SIZES, sizes},
    {CL_DEVICE_MAX_WORK_GROUP_SIZE, size},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_CHAR, u32},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_SHORT, u32},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_INT, u32},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_LONG, u32},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT, u32},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_DOUBLE, u32},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_HALF, u32},
    {CL_DEVICE_NATIVE_VECTOR_WIDTH_CHAR, u32},
    {CL_DEVICE_NATIVE_VECTOR_WIDTH_SHORT, u32},
    {CL_DEVICE_NATIVE_VECTOR_WIDTH_INT, u32},
    {CL_DEVICE_NATIVE_VECTOR_WIDTH_LONG, u32},
    {CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, u32},
    {CL_DEVICE_NATIVE_VECTOR_WIDTH_DOUBLE, u32},
    {CL_DEVICE_NATIVE_VECTOR_WIDTH_HALF, u32},
    {CL_DEVICE_MAX_CLOCK_FREQUENCY, u32},
    {CL_DEVICE_ADDRESS_BITS, u32},
    {CL_DEVICE_MAX_MEM_ALLOC_SIZE, u64},
    {CL_DEVICE_IMAGE_SUPPORT, u32},
    {CL_DEVICE_MAX_READ_IMAGE_ARGS, u32},
    {CL_DEVICE_MAX_WRITE_IMAGE_ARGS, u32},
    {CL_DEVICE_MAX_READ_WRITE_IMAGE_ARGS, u32},
    {CL_DEVICE_IL_VERSION, text},
    {CL_DEVICE_ILS_WITH_VERSION, bytes},
    {CL_DEVICE_IMAGE2D_MAX_WIDTH, size},
    {CL_DEVICE_IMAGE2D_MAX_HEIGHT, size},
    {CL_DEVICE_IMAGE3D_MAX_WIDTH, size},
    {CL_DEVICE_IMAGE3D_MAX_HEIGHT, size},
    {CL_DEVICE_IMAGE3D_MAX_DEPTH, size},
    {CL_DEVICE_IMAGE_MAX_BUFFER_SIZE, size},
    {CL_DEVICE_IMAGE_MAX_ARRAY_SIZE, size},
    {CL_DEVICE_MAX_SAMPLERS, u32},
    {CL_DEVICE_IMAGE_PITCH_ALIGNMENT, u32},
    {CL_DEVICE_IMAGE_BASE_ADDRESS_ALIGNMENT, u32},
    {CL_DEVICE_MAX_PIPE_ARGS, u32},
    {CL_DEVICE_PIPE_MAX_ACTIVE_RESERVATIONS, u32},
    {CL_DEVICE_PIPE_MAX_PACKET_SIZE, u32},
    {CL_DEVICE_MAX_PARAMETER_SIZE, size},
    {CL_DEVICE_MEM_BASE_ADDR_ALIGN, u32},
    {CL_DEVICE_MIN_DATA_TYPE_ALIGN_SIZE, u32},
    {CL_DEVICE_SINGLE_FP_CONFIG, u64},
    {CL_DEVICE_DOUBLE_FP_CONFIG, u64},
    {CL_DEVICE_HALF_FP_CONFIG, u64},
    {CL_DEVICE_GLOBAL_MEM_CACHE_TYPE, u32},
    {CL_DEVICE_GLOBAL_MEM_CACHELINE_SIZE, u32},
    {CL_DEVICE_GLOBAL_MEM_CACHE_SIZE, u64},
    {CL_DEVICE_GLOBAL_MEM_SIZE, u64},
    {CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE, u64},
    {CL_DEVICE_MAX_CONSTANT_ARGS, u32},
    {CL_DEVICE_MAX_GLOBAL_VARIABLE_SIZE, size},
    {CL_DEVICE_GLOBAL_VARIABLE_PREFERRED_TOTAL_SIZE, size},
    {CL_DEVICE_LOCAL_MEM_TYPE, u32},
    {CL_DEVICE_LOCAL_MEM_SIZE, u64},
    {CL_DEVICE_ERROR_CORRECTION_SUPPORT, u32},
    {CL_DEVICE_HOST_UNIFIED_MEMORY, u32},
    {CL_DEVICE_PROFILING_TIMER_RESOLUTION, size},
    {CL_DEVICE_ENDIAN_LITTLE, u32},
    {CL_DEVICE_AVAILABLE, u32},
    {CL_DEVICE_COMPILER_AVAILABLE, u32},
    {CL_DEVICE_LINKER_AVAILABLE, u32},
    {CL_DEVICE_EXECUTION_CAPABILITIES, u64},
    {CL_DEVICE_QUEUE_ON_HOST_PROPERTIES, u64},
    {CL_DEVICE_QUEUE_ON_DEVICE_PROPERTIES, u64},
    {CL_DEVICE_QUEUE_ON_DEVICE_PREFERRED_SIZE, u32},
    {CL_DEVICE_QUEUE_ON_DEVICE_MAX_SIZE, u32},
    {CL_DEVICE_MAX_ON_DEVICE_QUEUES, u32},
    {CL_DEVICE_MAX_ON_DEVICE_EVENTS, u32},
    {CL_DEVICE_BUILT_IN_KERNELS, text},
    {CL_DEVICE_BUILT_IN_KERNELS_WITH_VERSION, bytes},
    {CL_DEVICE_NAME, text},
    {CL_DEVICE_VENDOR, text},
    {CL_DRIVER_VERSION, text},
    {CL_DEVICE_PROFILE, text},
    {CL_DEVICE_VERSION, text},
    {CL_DEVICE_NUMERIC_VERSION, u32},
    {CL_DEVICE_OPENCL_C_VERSION, text},
    {CL_DEVICE_OPENCL_C_ALL_VERSIONS, bytes},
    {CL_DEVICE_OPENCL_C_FEATURES, bytes},
    {CL_DEVICE_EXTENSIONS, text},
    {CL_DEVICE_EXTENSIONS_WITH_VERSION, bytes},
    {CL_DEVICE_PRINTF_BUFFER_SIZE, size},
    {CL_DEVICE_PREFERRED_INTEROP_USER_SYNC, u32},
    {CL_DEVICE_PARTITION_MAX_SUB_DEVICES, u32},
    {CL_DEVICE_PARTITION_PROPERTIES, bytes},
    {CL_DEVICE_PARTITION_AFFINITY_DOMAIN, u64},
    {CL_DEVICE_PARTITION_TYPE, bytes},
    {CL_DEVICE_SVM_CAPABILITIES, u64},
    {CL_DEVICE_PREFERRED_PLATFORM_ATOMIC_ALIGNMENT, u32},
    {CL_DEVICE_PREFERRED_GLOBAL_ATOMIC_ALIGNMENT, u32},
    {CL_DEVICE_PREFERRED_LOCAL_ATOMIC_ALIGNMENT, u32},
    {CL_DEVICE_MAX_NUM_SUB_GROUPS, u32},
    {CL_DEVICE_SUB_GROUP_INDEPENDENT_FORWARD_PROGRESS, u32},
    {CL_DEVICE_ATOMIC_MEMORY_CAPABILITIES, u64},
    {CL_DEVICE_ATOMIC_FENCE_CAPABILITIES, u64},
    {CL_DEVICE_NON_UNIFORM_WORK_GROUP_SUPPORT, u32},
    {CL_DEVICE_WORK_GROUP_COLLECTIVE_FUNCTIONS_SUPPORT, u32},
    {CL_DEVICE_GENERIC_ADDRESS_SPACE_SUPPORT, u32},
    {CL_DEVICE_DEVICE_ENQUEUE_CAPABILITIES, u64},
    {CL_DEVICE_PIPE_SUPPORT, u32},
    {CL_DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE, size},
    {CL_DEVICE_LATEST_CONFORMANCE_VERSION_PASSED, text},
    // Of extensions that the guest's driver lets through, and what programs ask for anyway.
    {CL_DEVICE_OPENCL_C_NUMERIC_VERSION_KHR, u32, true},
    {CL_DEVICE_SPIR_VERSIONS, text, true},
    {CL_DEVICE_UUID_KHR, bytes, true},
    {CL_DRIVER_UUID_KHR, bytes, true},
    {CL_DEVICE_LUID_VALID_KHR, u32, true},
    {CL_DEVICE_LUID_KHR, bytes, true},
    {CL_DEVICE_NODE_MASK_KHR, u32, true},
    {CL_DEVICE_INTEGER_DOT_PRODUCT_CAPABILITIES_KHR, u64, true},
    {CL_DEVICE_INTEGER_DOT_PRODUCT_ACCELERATION_PROPERTIES_8BIT_KHR, bytes, true},
    {CL_DEVICE_INTEGER_DOT_PRODUCT_ACCELERATION_PROPERTIES_4x8BIT_PACKED_KHR, bytes, true},
    {single_fp_atomic_capabilities, u64, true},
    {double_fp_atomic_capabilities, u64, true},
    {half_fp_atomic_capabilities, u64, true},
    {CL_DEVICE_SUB_GROUP_SIZES_INTEL, sizes, true},
    {CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV, u32, true},
    {CL_DEVICE_COMPUTE_CAPABILITY_MINOR_NV, u32, true},
    {CL_DEVICE_REGISTERS_PER_BLOCK_NV, u32, true},
    {CL_DEVICE_WARP_SIZE_NV, u32, true},
    {CL_DEVICE_GPU_OVERLAP_NV, u32, true},
    {CL_DEVICE_KERNEL_EXEC_TIMEOUT_NV, u32, true},
    {CL_DEVICE_INTEGRATED_MEMORY_NV, u32, true},
    {async_engine_count_nv, u32, true},
    {CL_DEVICE_BOARD_NAME_AMD, text, true},
    {CL_DEVICE_SIMD_PER_COMPUTE_UNIT_AMD, u32, true},
    {CL_DEVICE_SIMD_WIDTH_AMD, u32, true},
    {CL_DEVICE_WAVEFRONT_WIDTH_AMD, u32, true},
    {CL_DEVICE_LOCAL_MEM_SIZE_PER_COMPUTE_UNIT_AMD, u32, true},
    {CL_DEVICE_LOCAL_MEM_BANKS_AMD, u32, true},
    {CL_DEVICE_GLOBAL_MEM_CHANNELS_AMD, u32, true},
    {VGPU_CUDA_DEVICE, bytes, true},
    {VGPU_CUDA_MEMORY, bytes, true},
    {VGPU_CUDA_LIMITS, bytes, true},
    {VGPU_CUDA_TENSOR_MAP, bytes, true},
    {VGPU_CUDA_UNSUPPORTED, bytes, true},
    {VGPU_CUDA_TABLES, bytes, true},
    {VGPU_CUDA_VALIDITY, bytes, true},
};

constexpr info_entry memory_names[] = {
    {CL_MEM_TYPE, u32},
    {CL_MEM_FLAGS, u64},
    {CL_MEM_SIZE, size},
    {CL_MEM_OFFSET, size},
};

constexpr info_entry image_names[] = {
    {CL_IMAGE_ELEMENT_SIZE, size},
    {CL_IMAGE_ROW_PITCH, size},
    {CL_IMAGE_SLICE_PITCH, size},
};

constexpr info_entry program_names[] = {
    {CL_PROGRAM_SOURCE, text},
    {CL_PROGRAM_IL, bytes},
    {CL_PROGRAM_BINARY_SIZES, sizes},
    {CL_PROGRAM_BINARIES, bytes}, // the bytes of our one device's binary instead of OpenCL's pointers
    {CL_PROGRAM_NUM_KERNELS, size},
    {CL_PROGRAM_KERNEL_NAMES, text},
    {CL_PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT, u32},
    {CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT, u32},
    {VGPU_CUDA_FUNCTIONS, bytes, true},
    {VGPU_CUDA_VARIABLE, bytes, true},
    {VGPU_CUDA_IMAGE, bytes, true},
};

constexpr info_entry program_build_names[] = {
    {CL_PROGRAM_BUILD_STATUS, u32},
    {CL_PROGRAM_BUILD_OPTIONS, text},
    {CL_PROGRAM_BUILD_LOG, text},
    {CL_PROGRAM_BINARY_TYPE, u32},
    {CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE, size},
};

constexpr info_entry kernel_names[] = {
    {CL_KERNEL_FUNCTION_NAME, text},
    {CL_KERNEL_NUM_ARGS, u32},
    {CL_KERNEL_ATTRIBUTES, text},
    {VGPU_CUDA_KERNEL, bytes, true},
};

constexpr info_entry kernel_arg_names[] = {
    {CL_KERNEL_ARG_ADDRESS_QUALIFIER, u32},
    {CL_KERNEL_ARG_ACCESS_QUALIFIER, u32},
    {CL_KERNEL_ARG_TYPE_NAME, text},
    {CL_KERNEL_ARG_TYPE_QUALIFIER, u64},
    {CL_KERNEL_ARG_NAME, text},
};

constexpr info_entry kernel_work_group_names[] = {
    {CL_KERNEL_GLOBAL_WORK_SIZE, sizes},
    {CL_KERNEL_WORK_GROUP_SIZE, size},
    {CL_KERNEL_COMPILE_WORK_GROUP_SIZE, sizes},
    {CL_KERNEL_LOCAL_MEM_SIZE, u64},
    {CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE, size},
    {CL_KERNEL_PRIVATE_MEM_SIZE, u64},
    {CL_KERNEL_SPILL_MEM_SIZE_INTEL, u64, true},
};

constexpr info_entry kernel_sub_group_names[] = {
    {CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE, size},
    {CL_KERNEL_SUB_GROUP_COUNT_FOR_NDRANGE, size},
    {CL_KERNEL_LOCAL_SIZE_FOR_SUB_GROUP_COUNT, sizes},
    {CL_KERNEL_MAX_NUM_SUB_GROUPS, size},
    {CL_KERNEL_COMPILE_NUM_SUB_GROUPS, size},
    {CL_KERNEL_COMPILE_SUB_GROUP_SIZE_INTEL, size, true},
    {VGPU_CUDA_CLUSTERS, bytes, true},
};

} // namespace

std::span<const info_entry> info_names(vgpu_info_subject subject) {
    switch (subject) {
    case VGPU_INFO_PLATFORM:
        return platform_names;
    case VGPU_INFO_DEVICE:
        return device_names;
    case VGPU_INFO_MEMORY:
        return memory_names;
    case VGPU_INFO_IMAGE:
        return image_names;
    case VGPU_INFO_PROGRAM:
        return program_names;
    case VGPU_INFO_PROGRAM_BUILD:
        return program_build_names;
    case VGPU_INFO_KERNEL:
        return kernel_names;
    case VGPU_INFO_KERNEL_ARG:
        return kernel_arg_names;
    case VGPU_INFO_KERNEL_WORK_GROUP:
        return kernel_work_group_names;
    case VGPU_INFO_KERNEL_SUB_GROUP:
        return kernel_sub_group_names;
    case VGPU_INFO_IMAGE_FORMATS:
    case VGPU_INFO_TIMERS:
        break;
    }
    return {};
}

const info_entry* find_info(vgpu_info_subject subject, std::uint32_t name) {
    for (const info_entry& entry : info_names(subject))
        if (entry.name == name)
            return &entry;
    return nullptr;
}

} // namespace kagemusha::gpu
