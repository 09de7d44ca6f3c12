// SPDX-License-Identifier: GPL-2.0-or-later
//
// What the program is told about the host's device. Most is the host's own answer. Three things differ:
// handles are ours, abilities that this driver does not forward are reported as missing, and the queries of
// OpenCL 3.0 are answered from the older ones where the host's driver is older.
#include "connection.hpp"
#include "device.hpp"
#include "extension_functions.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

namespace kagemusha::opencl {
namespace {

// Extensions that live in the kernel language, or whose host functions are all implemented here. Others with
// functions announce themselves (extension_functions.hpp). Everything else is left out: sharing with other
// APIs, shared virtual memory, external memory, command buffers, queue hints, …
constexpr std::array supported_extensions = {
    "cl_amd_fp64",
    "cl_amd_media_ops",
    "cl_amd_media_ops2",
    "cl_amd_popcnt",
    "cl_amd_vec3",
    "cl_ext_float_atomics",
    "cl_intel_required_subgroup_size",
    "cl_intel_subgroup_local_block_io",
    "cl_intel_subgroups",
    "cl_intel_subgroups_char",
    "cl_intel_subgroups_long",
    "cl_intel_subgroups_short",
    "cl_khr_3d_image_writes",
    "cl_khr_async_work_group_copy_fence",
    "cl_khr_byte_addressable_store",
    "cl_khr_depth_images",
    "cl_khr_device_uuid",
    "cl_khr_expect_assume",
    "cl_khr_extended_async_copies",
    "cl_khr_extended_bit_ops",
    "cl_khr_extended_versioning",
    "cl_khr_fp16",
    "cl_khr_fp64",
    "cl_khr_global_int32_base_atomics",
    "cl_khr_global_int32_extended_atomics",
    "cl_khr_il_program",
    "cl_khr_image2d_from_buffer",
    "cl_khr_int64_base_atomics",
    "cl_khr_int64_extended_atomics",
    "cl_khr_integer_dot_product",
    "cl_khr_local_int32_base_atomics",
    "cl_khr_local_int32_extended_atomics",
    "cl_khr_select_fprounding_mode",
    "cl_khr_spirv_extended_debug_info",
    "cl_khr_spirv_linkonce_odr",
    "cl_khr_spirv_no_integer_wrap_decoration",
    "cl_khr_srgb_image_writes",
    "cl_khr_subgroup_ballot",
    "cl_khr_subgroup_clustered_reduce",
    "cl_khr_subgroup_extended_types",
    "cl_khr_subgroup_non_uniform_arithmetic",
    "cl_khr_subgroup_non_uniform_vote",
    "cl_khr_subgroup_rotate",
    "cl_khr_subgroup_shuffle",
    "cl_khr_subgroup_shuffle_relative",
    "cl_khr_subgroups",
    "cl_khr_work_group_uniform_arithmetic",
    "cl_nv_compiler_options",
    "cl_nv_device_attribute_query",
    "cl_nv_pragma_unroll",
};

// Extensions of the host side that this driver gives by itself.
constexpr std::array own_extensions = {"cl_khr_icd", "cl_khr_create_command_queue"};

bool is_supported(std::string_view name) {
    return std::find(supported_extensions.begin(), supported_extensions.end(), name) !=
           supported_extensions.end();
}

template <class Function>
void for_each_word(const std::string& text, Function&& function) {
    std::size_t start = 0;
    while (start < text.size()) {
        const std::size_t end = std::min(text.find(' ', start), text.size());
        if (end > start)
            function(std::string_view(text).substr(start, end - start));
        start = end + 1;
    }
}

cl_name_version named(std::string_view name, cl_version version) {
    cl_name_version entry{};
    entry.version = version;
    const std::size_t length = std::min(name.size(), sizeof entry.name - 1);
    std::copy_n(name.begin(), length, entry.name);
    return entry;
}

std::string_view name_of(const cl_name_version& entry) {
    return {entry.name, strnlen(entry.name, sizeof entry.name)};
}

// "OpenCL 1.2 rest" or "OpenCL C 1.2 rest".
cl_version parse_version(const std::string& text, const char* format) {
    unsigned major = 0, minor = 0;
    if (std::sscanf(text.c_str(), format, &major, &minor) != 2)
        return CL_MAKE_VERSION(1, 0, 0);
    return CL_MAKE_VERSION(major, minor, 0);
}

std::vector<cl_name_version> name_versions(const answer& known) {
    std::vector<cl_name_version> list;
    if (known.error == CL_SUCCESS && known.bytes.size() % sizeof(cl_name_version) == 0) {
        list.resize(known.bytes.size() / sizeof(cl_name_version));
        if (!list.empty())
            std::memcpy(list.data(), known.bytes.data(), known.bytes.size());
    }
    return list;
}

} // namespace

std::shared_ptr<connection> device::link(std::string* error) const {
    return connection::current(name_, error);
}

std::shared_ptr<const answer> device::host_info(cl_device_info name) {
    {
        const std::lock_guard held(mutex_);
        const auto found = known_.find(name);
        if (found != known_.end())
            return found->second;
    }
    const auto own_link = link();
    if (!own_link)
        return std::make_shared<answer>(answer{CL_OUT_OF_RESOURCES, {}});
    auto fresh = std::make_shared<const answer>(ask(*own_link, {VGPU_INFO_DEVICE, name}));
    // Only a definite answer is kept: a lost connection says nothing about the device.
    if (fresh->error == CL_SUCCESS || fresh->error == CL_INVALID_VALUE) {
        const std::lock_guard held(mutex_);
        known_.emplace(name, fresh);
    }
    return fresh;
}

const std::string& device::extensions() {
    std::call_once(extensions_once_, [this] {
        for (const char* own : own_extensions)
            extensions_ += std::string(extensions_.empty() ? "" : " ") + own;
        const auto own_link = link();
        const std::uint64_t commands = own_link ? known_commands(*own_link) : 0;
        for_each_word(host_info(CL_DEVICE_EXTENSIONS)->text(), [&](std::string_view name) {
            if (is_supported(name) || has_functions_of(name, commands))
                extensions_ += " " + std::string(name);
        });
    });
    return extensions_;
}

bool device::has_extension(std::string_view name) {
    bool found = false;
    for_each_word(extensions(), [&](std::string_view word) { found = found || word == name; });
    return found;
}

bool device::has_images() {
    return number<cl_bool>(CL_DEVICE_IMAGE_SUPPORT, CL_FALSE) != CL_FALSE;
}

cl_version device::version() {
    const cl_version host = parse_version(host_info(CL_DEVICE_VERSION)->text(), "OpenCL %u.%u");
    // 2.x makes shared virtual memory and device-side queues mandatory, which this driver does not have;
    // in 3.0 they are optional, and everything that 3.0 itself requires is answered here.
    return CL_VERSION_MAJOR(host) == 2 ? CL_MAKE_VERSION(3, 0, 0) : host;
}

cl_int device::extensions_with_version(const info_answer& to) {
    const auto host = name_versions(*host_info(CL_DEVICE_EXTENSIONS_WITH_VERSION));
    std::vector<cl_name_version> list;
    for_each_word(extensions(), [&](std::string_view name) {
        const auto known =
            std::find_if(host.begin(), host.end(), [&](const auto& one) { return name_of(one) == name; });
        list.push_back(named(name, known != host.end() ? known->version : CL_MAKE_VERSION(1, 0, 0)));
    });
    return to.array(std::span<const cl_name_version>(list));
}

cl_int device::c_versions(const info_answer& to) {
    auto list = name_versions(*host_info(CL_DEVICE_OPENCL_C_ALL_VERSIONS));
    if (list.empty()) {
        const cl_version newest =
            parse_version(host_info(CL_DEVICE_OPENCL_C_VERSION)->text(), "OpenCL C %u.%u");
        for (const cl_version known :
             {CL_MAKE_VERSION(1, 0, 0), CL_MAKE_VERSION(1, 1, 0), CL_MAKE_VERSION(1, 2, 0),
              CL_MAKE_VERSION(2, 0, 0), CL_MAKE_VERSION(3, 0, 0)})
            if (known <= newest)
                list.push_back(named("OpenCL C", known));
    }
    return to.array(std::span<const cl_name_version>(list));
}

cl_int device::info(cl_device_info name, const info_answer& to) {
    switch (name) {
    // Ours.
    case CL_DEVICE_PLATFORM:
        return to.value(to_handle<cl_platform_id>(&the_platform()));
    case CL_DEVICE_PARENT_DEVICE:
        return to.value<cl_device_id>(nullptr);
    case CL_DEVICE_REFERENCE_COUNT:
        return to.value<cl_uint>(1);
    case CL_DEVICE_EXTENSIONS:
        return to.text(extensions());
    case CL_DEVICE_EXTENSIONS_WITH_VERSION:
        return extensions_with_version(to);
    case CL_DEVICE_VERSION: {
        std::string text = host_info(CL_DEVICE_VERSION)->text();
        if (text.starts_with("OpenCL 2."))
            text.replace(0, text.find(' ', 7), "OpenCL 3.0");
        return to.text(text);
    }
    case CL_DEVICE_NUMERIC_VERSION:
        return to.value(version());

    // Not forwarded: partitions, shared virtual memory, pipes, device-side queues, native kernels. Host
    // pointers are never the GPU's memory across a virtual machine's border.
    case CL_DEVICE_PARTITION_MAX_SUB_DEVICES:
        return to.value<cl_uint>(0);
    case CL_DEVICE_PARTITION_PROPERTIES:
    case CL_DEVICE_PARTITION_TYPE:
        return to.value<cl_device_partition_property>(0);
    case CL_DEVICE_PARTITION_AFFINITY_DOMAIN:
        return to.value<cl_device_affinity_domain>(0);
    case CL_DEVICE_SVM_CAPABILITIES:
        return to.value<cl_device_svm_capabilities>(0);
    case CL_DEVICE_MAX_PIPE_ARGS:
    case CL_DEVICE_PIPE_MAX_ACTIVE_RESERVATIONS:
    case CL_DEVICE_PIPE_MAX_PACKET_SIZE:
    case CL_DEVICE_QUEUE_ON_DEVICE_PREFERRED_SIZE:
    case CL_DEVICE_QUEUE_ON_DEVICE_MAX_SIZE:
    case CL_DEVICE_MAX_ON_DEVICE_QUEUES:
    case CL_DEVICE_MAX_ON_DEVICE_EVENTS:
        return to.value<cl_uint>(0);
    case CL_DEVICE_PIPE_SUPPORT:
    case CL_DEVICE_HOST_UNIFIED_MEMORY:
        return to.value<cl_bool>(CL_FALSE);
    case CL_DEVICE_QUEUE_ON_DEVICE_PROPERTIES:
        return to.value<cl_command_queue_properties>(0);
    case CL_DEVICE_DEVICE_ENQUEUE_CAPABILITIES:
        return to.value<cl_device_device_enqueue_capabilities>(0);
    case CL_DEVICE_EXECUTION_CAPABILITIES:
        return to.value<cl_device_exec_capabilities>(CL_EXEC_KERNEL);
    case CL_DEVICE_QUEUE_ON_HOST_PROPERTIES:
        return to.value<cl_command_queue_properties>(
            number<cl_command_queue_properties>(name, 0) &
            (CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_PROFILING_ENABLE));

    // Synthesised for older hosts.
    case CL_DEVICE_OPENCL_C_ALL_VERSIONS:
        return c_versions(to);
    case CL_DEVICE_OPENCL_C_NUMERIC_VERSION_KHR: // cl_khr_extended_versioning
        return to.value(number<cl_version>(
            name, parse_version(host_info(CL_DEVICE_OPENCL_C_VERSION)->text(), "OpenCL C %u.%u")));
    case CL_DEVICE_OPENCL_C_FEATURES: {
        auto list = name_versions(*host_info(name));
        std::erase_if(list, [](const cl_name_version& one) {
            return name_of(one) == "__opencl_c_device_enqueue" || name_of(one) == "__opencl_c_pipes";
        });
        return to.array(std::span<const cl_name_version>(list));
    }
    case CL_DEVICE_ILS_WITH_VERSION:
    case CL_DEVICE_BUILT_IN_KERNELS_WITH_VERSION:
        return to.array(std::span<const cl_name_version>(name_versions(*host_info(name))));
    case CL_DEVICE_ATOMIC_MEMORY_CAPABILITIES:
        return to.value(number<cl_device_atomic_capabilities>(name, CL_DEVICE_ATOMIC_ORDER_RELAXED |
                                                                        CL_DEVICE_ATOMIC_SCOPE_WORK_GROUP));
    case CL_DEVICE_ATOMIC_FENCE_CAPABILITIES:
        return to.value(number<cl_device_atomic_capabilities>(name, CL_DEVICE_ATOMIC_ORDER_RELAXED |
                                                                        CL_DEVICE_ATOMIC_ORDER_ACQ_REL |
                                                                        CL_DEVICE_ATOMIC_SCOPE_WORK_GROUP));
    case CL_DEVICE_NON_UNIFORM_WORK_GROUP_SUPPORT:
    case CL_DEVICE_GENERIC_ADDRESS_SPACE_SUPPORT:
    case CL_DEVICE_WORK_GROUP_COLLECTIVE_FUNCTIONS_SUPPORT:
        return to.value(number<cl_bool>(name, CL_FALSE));
    case CL_DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE:
        return to.value(number<std::size_t>(name, 1));
    case CL_DEVICE_LATEST_CONFORMANCE_VERSION_PASSED:
        return to.text(host_info(name)->text());
    default:
        break;
    }
    const auto known = host_info(name);
    return known->error != CL_SUCCESS ? known->error : to.bytes(known->bytes.data(), known->bytes.size());
}

} // namespace kagemusha::opencl
