// SPDX-License-Identifier: GPL-2.0-or-later
// null_info: what the null backend's fixed device answers.
#include <CL/cl.h>
#include <CL/cl_ext.h>

#include <array>
#include <cstring>

#include "gpu/info_table.hpp"
#include "gpu/null/null_device.hpp"
#include "proto/abi/vgpu_cuda.h"
#include "proto/cuda/attributes.h"

namespace kagemusha::gpu {

namespace {

using bytes = std::vector<std::byte>;

template <class T>
std::int32_t put(bytes& result, const T& value) {
    result.resize(sizeof(value));
    std::memcpy(result.data(), &value, sizeof(value));
    return CL_SUCCESS;
}

std::int32_t put_text(bytes& result, std::string_view text) {
    result.resize(text.size() + 1);
    std::memcpy(result.data(), text.data(), text.size());
    result.back() = std::byte{0};
    return CL_SUCCESS;
}

std::int32_t put_number(bytes& result, info_type type, std::uint64_t value) {
    return type == info_type::u32 ? put(result, static_cast<std::uint32_t>(value)) : put(result, value);
}

cl_name_version named(const char* name, cl_version version) {
    cl_name_version out{};
    out.version = version;
    std::strncpy(out.name, name, sizeof(out.name) - 1);
    return out;
}

struct number {
    std::uint32_t name;
    std::uint64_t value;
};

// A plausible mid-range GPU. What is not here and is a number is 0: not supported, or none.
constexpr number device_numbers[] = {
    {CL_DEVICE_TYPE, CL_DEVICE_TYPE_GPU},
    {CL_DEVICE_VENDOR_ID, 0x1af4},
    {CL_DEVICE_MAX_COMPUTE_UNITS, 16},
    {CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS, 3},
    {CL_DEVICE_MAX_WORK_GROUP_SIZE, 1024},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_CHAR, 1},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_SHORT, 1},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_INT, 1},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_LONG, 1},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT, 1},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_DOUBLE, 1},
    {CL_DEVICE_NATIVE_VECTOR_WIDTH_CHAR, 1},
    {CL_DEVICE_NATIVE_VECTOR_WIDTH_SHORT, 1},
    {CL_DEVICE_NATIVE_VECTOR_WIDTH_INT, 1},
    {CL_DEVICE_NATIVE_VECTOR_WIDTH_LONG, 1},
    {CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, 1},
    {CL_DEVICE_NATIVE_VECTOR_WIDTH_DOUBLE, 1},
    {CL_DEVICE_MAX_CLOCK_FREQUENCY, 1000},
    {CL_DEVICE_ADDRESS_BITS, 64},
    {CL_DEVICE_MAX_MEM_ALLOC_SIZE, null_max_allocation_bytes},
    {CL_DEVICE_MAX_PARAMETER_SIZE, 4096},
    {CL_DEVICE_MEM_BASE_ADDR_ALIGN, 1024},
    {CL_DEVICE_MIN_DATA_TYPE_ALIGN_SIZE, 128},
    {CL_DEVICE_SINGLE_FP_CONFIG, CL_FP_INF_NAN | CL_FP_ROUND_TO_NEAREST | CL_FP_FMA},
    {CL_DEVICE_DOUBLE_FP_CONFIG, CL_FP_DENORM | CL_FP_INF_NAN | CL_FP_ROUND_TO_NEAREST | CL_FP_ROUND_TO_ZERO |
                                     CL_FP_ROUND_TO_INF | CL_FP_FMA},
    {CL_DEVICE_GLOBAL_MEM_CACHE_TYPE, CL_READ_WRITE_CACHE},
    {CL_DEVICE_GLOBAL_MEM_CACHELINE_SIZE, 64},
    {CL_DEVICE_GLOBAL_MEM_CACHE_SIZE, 1 << 20},
    {CL_DEVICE_GLOBAL_MEM_SIZE, null_memory_bytes},
    {CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE, 64 << 10},
    {CL_DEVICE_MAX_CONSTANT_ARGS, 8},
    {CL_DEVICE_LOCAL_MEM_TYPE, CL_LOCAL},
    {CL_DEVICE_LOCAL_MEM_SIZE, 64 << 10},
    {CL_DEVICE_PROFILING_TIMER_RESOLUTION, 1},
    {CL_DEVICE_ENDIAN_LITTLE, CL_TRUE},
    {CL_DEVICE_AVAILABLE, CL_TRUE},
    {CL_DEVICE_COMPILER_AVAILABLE, CL_TRUE},
    {CL_DEVICE_LINKER_AVAILABLE, CL_TRUE},
    {CL_DEVICE_EXECUTION_CAPABILITIES, CL_EXEC_KERNEL},
    {CL_DEVICE_QUEUE_ON_HOST_PROPERTIES, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_PROFILING_ENABLE},
    {CL_DEVICE_NUMERIC_VERSION, CL_MAKE_VERSION(3, 0, 0)},
    {CL_DEVICE_PRINTF_BUFFER_SIZE, 1 << 20},
    {CL_DEVICE_PREFERRED_INTEROP_USER_SYNC, CL_TRUE},
    {CL_DEVICE_ATOMIC_MEMORY_CAPABILITIES,
     CL_DEVICE_ATOMIC_ORDER_RELAXED | CL_DEVICE_ATOMIC_SCOPE_WORK_GROUP},
    {CL_DEVICE_ATOMIC_FENCE_CAPABILITIES,
     CL_DEVICE_ATOMIC_ORDER_RELAXED | CL_DEVICE_ATOMIC_ORDER_ACQ_REL | CL_DEVICE_ATOMIC_SCOPE_WORK_GROUP},
    {CL_DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE, 32},
};

std::int32_t device_info(const gpu_description& d, const info_entry& entry, bytes& result) {
    switch (entry.name) {
    case CL_DEVICE_NAME:
        return put_text(result, d.name);
    case CL_DEVICE_VENDOR:
        return put_text(result, d.vendor);
    case CL_DEVICE_VERSION:
        return put_text(result, d.version);
    case CL_DRIVER_VERSION:
        return put_text(result, d.driver_version);
    case CL_DEVICE_PROFILE:
        return put_text(result, "FULL_PROFILE");
    case CL_DEVICE_OPENCL_C_VERSION:
        return put_text(result, "OpenCL C 1.2 ");
    case CL_DEVICE_EXTENSIONS:
        return put_text(result, "cl_khr_byte_addressable_store cl_khr_fp64 cl_khr_global_int32_base_atomics "
                                "cl_khr_global_int32_extended_atomics cl_khr_local_int32_base_atomics "
                                "cl_khr_local_int32_extended_atomics cl_khr_suggested_local_work_size");
    case CL_DEVICE_EXTENSIONS_WITH_VERSION: {
        const cl_version v = CL_MAKE_VERSION(1, 0, 0);
        const cl_name_version list[] = {
            named("cl_khr_byte_addressable_store", v),    named("cl_khr_fp64", v),
            named("cl_khr_global_int32_base_atomics", v), named("cl_khr_global_int32_extended_atomics", v),
            named("cl_khr_local_int32_base_atomics", v),  named("cl_khr_local_int32_extended_atomics", v),
            named("cl_khr_suggested_local_work_size", v)};
        return put(result, list);
    }
    case CL_DEVICE_OPENCL_C_ALL_VERSIONS: {
        const cl_name_version list[] = {
            named("OpenCL C", CL_MAKE_VERSION(1, 0, 0)), named("OpenCL C", CL_MAKE_VERSION(1, 1, 0)),
            named("OpenCL C", CL_MAKE_VERSION(1, 2, 0)), named("OpenCL C", CL_MAKE_VERSION(3, 0, 0))};
        return put(result, list);
    }
    case CL_DEVICE_MAX_WORK_ITEM_SIZES: {
        const std::size_t sizes[3] = {1024, 1024, 64};
        return put(result, sizes);
    }
    default:
        if (entry.optional)
            return CL_INVALID_VALUE; // of an extension that it does not have
        break;
    }
    for (const number& n : device_numbers)
        if (n.name == entry.name)
            return put_number(result, entry.type, n.value);
    switch (entry.type) {
    case info_type::u32:
    case info_type::u64:
    case info_type::size:
        return put_number(result, entry.type, 0);
    case info_type::text:
        return put_text(result, "");
    case info_type::sizes:
    case info_type::bytes:
        result.clear();
        return CL_SUCCESS;
    }
    return CL_INVALID_VALUE;
}

std::int32_t platform_info(const gpu_description& d, std::uint32_t name, bytes& result) {
    switch (name) {
    case CL_PLATFORM_PROFILE:
        return put_text(result, "FULL_PROFILE");
    case CL_PLATFORM_VERSION:
        return put_text(result, d.version);
    case CL_PLATFORM_NUMERIC_VERSION:
        return put(result, cl_version{CL_MAKE_VERSION(3, 0, 0)});
    case CL_PLATFORM_NAME:
        return put_text(result, d.platform);
    case CL_PLATFORM_VENDOR:
        return put_text(result, d.vendor);
    case CL_PLATFORM_EXTENSIONS:
        return put_text(result, "");
    case CL_PLATFORM_EXTENSIONS_WITH_VERSION:
        result.clear();
        return CL_SUCCESS;
    default:
        return put(result, cl_ulong{1}); // CL_PLATFORM_HOST_TIMER_RESOLUTION
    }
}

std::int32_t memory_info(const null_memory& m, std::uint32_t name, bytes& result) {
    switch (name) {
    case CL_MEM_TYPE:
        return put(result, cl_uint{CL_MEM_OBJECT_BUFFER});
    case CL_MEM_FLAGS:
        return put(result, m.flags);
    case CL_MEM_SIZE:
        return put(result, m.bytes);
    default:
        return put(result, m.parent_origin); // CL_MEM_OFFSET
    }
}

std::int32_t program_info(const null_program& p, std::uint32_t name, bytes& result) {
    const std::string binary = "kagemusha-null-binary\n" + p.content;
    const bool executable = p.built && p.binary_type == CL_PROGRAM_BINARY_TYPE_EXECUTABLE;
    switch (name) {
    case CL_PROGRAM_SOURCE:
        return put_text(result, p.kind == VGPU_PROGRAM_SOURCE ? p.content : "");
    case CL_PROGRAM_IL:
        result.clear();
        return CL_SUCCESS;
    case CL_PROGRAM_BINARY_SIZES:
        return put(result, p.built ? binary.size() : std::size_t{0});
    case CL_PROGRAM_BINARIES:
        if (p.built) {
            result.resize(binary.size());
            std::memcpy(result.data(), binary.data(), binary.size());
        }
        return CL_SUCCESS;
    case CL_PROGRAM_NUM_KERNELS:
        return executable ? put(result, p.kernels.size()) : CL_INVALID_PROGRAM_EXECUTABLE;
    case CL_PROGRAM_KERNEL_NAMES: {
        if (!executable)
            return CL_INVALID_PROGRAM_EXECUTABLE;
        std::string names;
        for (const kernel_signature& k : p.kernels)
            names += (names.empty() ? "" : ";") + k.name;
        return put_text(result, names);
    }
    default:
        return put(result, cl_bool{CL_FALSE}); // constructors and destructors
    }
}

// Four bytes for each line that begins like a variable at program scope.
std::size_t variable_bytes(const std::string& source) {
    std::size_t found = source.starts_with("global int ");
    for (std::size_t at = 0; (at = source.find("\nglobal int ", at)) != source.npos; ++at)
        ++found;
    return 4 * found;
}

std::int32_t build_info(const null_program& p, bool has_variables, std::uint32_t name, bytes& result) {
    switch (name) {
    case CL_PROGRAM_BUILD_STATUS:
        return put(result, p.built ? CL_BUILD_SUCCESS : CL_BUILD_NONE);
    case CL_PROGRAM_BUILD_OPTIONS:
        return put_text(result, p.options);
    case CL_PROGRAM_BUILD_LOG:
        return put_text(result, "");
    case CL_PROGRAM_BINARY_TYPE:
        return put(result, p.binary_type);
    default:
        // CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE
        return put(result, has_variables ? variable_bytes(p.content) : std::size_t{0});
    }
}

std::int32_t argument_info(const kernel_signature& k, std::uint64_t index, std::uint32_t name,
                           bytes& result) {
    if (index >= k.arguments.size())
        return CL_INVALID_ARG_INDEX;
    const kernel_argument& a = k.arguments[index];
    switch (name) {
    case CL_KERNEL_ARG_ADDRESS_QUALIFIER:
        return put(result, a.address_qualifier);
    case CL_KERNEL_ARG_ACCESS_QUALIFIER:
        return put(result, a.access_qualifier);
    case CL_KERNEL_ARG_TYPE_NAME:
        return put_text(result, a.type_name);
    case CL_KERNEL_ARG_TYPE_QUALIFIER:
        return put(result, a.type_qualifier);
    default:
        return put_text(result, a.name);
    }
}

std::int32_t work_group_info(std::uint32_t name, bytes& result) {
    switch (name) {
    case CL_KERNEL_WORK_GROUP_SIZE:
        return put(result, std::size_t{1024});
    case CL_KERNEL_COMPILE_WORK_GROUP_SIZE:
        return put(result, std::array<std::size_t, 3>{});
    case CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE:
        return put(result, std::size_t{32});
    case CL_KERNEL_LOCAL_MEM_SIZE:
    case CL_KERNEL_PRIVATE_MEM_SIZE:
        return put(result, cl_ulong{0});
    default:
        return CL_INVALID_VALUE; // the global size of built-in kernels
    }
}

// Memory and streams of CUDA work here as OpenCL's do. Its modules have no kernels that this device could
// list.
vgpu_cuda_device cuda_answer(const gpu_description& description) {
    vgpu_cuda_device answer{};
    answer.driver_version = 12000;
    answer.memory_bytes = null_memory_bytes;
    std::strncpy(answer.name, description.name.c_str(), sizeof(answer.name) - 1);
    const auto is = [&](CUdevice_attribute attribute, std::int32_t value) {
        answer.attributes[attribute] = value;
        answer.known[attribute / 8] |= static_cast<__u8>(1 << attribute % 8);
    };
    is(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024);
    for (const auto dimension : {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
                                 CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z})
        is(dimension, 65535);
    is(CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32);
    is(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16);
    is(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1);
    is(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 7);
    is(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0);
    return answer;
}

} // namespace

std::int32_t null_device::info(const info_query& query, std::vector<std::byte>& result) {
    switch (query.subject) {
    case VGPU_INFO_PLATFORM:
        return platform_info(description_, query.name, result);
    case VGPU_INFO_DEVICE:
        if (options_.has_variables && query.name == CL_DEVICE_MAX_GLOBAL_VARIABLE_SIZE)
            return put(result, std::size_t{65536});
        if (options_.has_variables && query.name == CL_DEVICE_OPENCL_C_FEATURES) {
            const cl_name_version list[] = {
                named("__opencl_c_program_scope_global_variables", CL_MAKE_VERSION(3, 0, 0)),
                named("__opencl_c_int64", CL_MAKE_VERSION(3, 0, 0))};
            return put(result, list);
        }
        if (query.name == VGPU_CUDA_DEVICE)
            return put(result, cuda_answer(description_));
        return device_info(description_, *find_info(query.subject, query.name), result);
    case VGPU_INFO_IMAGE_FORMATS:
        result.clear();
        return CL_SUCCESS;
    case VGPU_INFO_MEMORY:
        return memory_info(static_cast<null_memory&>(*query.memory), query.name, result);
    case VGPU_INFO_IMAGE:
        return CL_INVALID_MEM_OBJECT;
    case VGPU_INFO_PROGRAM:
        return program_info(static_cast<null_program&>(*query.program), query.name, result);
    case VGPU_INFO_PROGRAM_BUILD:
        return build_info(static_cast<null_program&>(*query.program), options_.has_variables, query.name,
                          result);
    case VGPU_INFO_KERNEL: {
        const kernel_signature& k = static_cast<null_kernel&>(*query.kernel).signature;
        if (query.name == CL_KERNEL_NUM_ARGS)
            return put(result, static_cast<cl_uint>(k.arguments.size()));
        return put_text(result, query.name == CL_KERNEL_FUNCTION_NAME ? k.name : "");
    }
    case VGPU_INFO_KERNEL_ARG:
        return argument_info(static_cast<null_kernel&>(*query.kernel).signature, query.index, query.name,
                             result);
    case VGPU_INFO_KERNEL_WORK_GROUP:
        return work_group_info(query.name, result);
    case VGPU_INFO_KERNEL_SUB_GROUP:
    case VGPU_INFO_TIMERS:
        break;
    }
    return CL_INVALID_OPERATION;
}

namespace {

struct null_query {
    bytes& result;

    // Powers of two, at most 64 together.
    std::int32_t operator()(const resolved<codec::op_suggested_group_size>& r) const {
        std::uint64_t local[3] = {1, 1, 1}, left = 64;
        for (std::uint32_t d = 0; d < r.op.c->work_dim; ++d)
            for (; left > 1 && r.op.c->global[d] % (local[d] * 2) == 0; left /= 2)
                local[d] *= 2;
        return put(result, local);
    }
    // It has no textures.
    std::int32_t operator()(const resolved<codec::op_find_texture>&) const { return CL_INVALID_OPERATION; }
};

} // namespace

std::int32_t null_device::answer(const query& what, std::vector<std::byte>& result) {
    return std::visit(null_query{result}, what);
}

} // namespace kagemusha::gpu
