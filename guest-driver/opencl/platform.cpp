// SPDX-License-Identifier: GPL-2.0-or-later
//
// The platform, the list of devices, and looking up functions by name.
#include "api.hpp"
#include "connection.hpp"
#include "device.hpp"
#include "extension_functions.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace kagemusha::opencl {

platform& the_platform() {
    static platform* const only = make_object<platform>().detach();
    if (!only) {
        std::fputs("kagemusha: out of memory for the first object of the OpenCL driver\n", stderr);
        std::abort();
    }
    return *only;
}

std::vector<device*> the_devices(std::string* error) {
    static auto* const mutex = new std::mutex;
    static auto* const found = new std::vector<device*>;
    const std::lock_guard held(*mutex);
    if (!found->empty())
        return *found;
    std::string reasons;
    for (const std::string& name : device_names()) {
        std::string reason;
        ref<device> one = make_object<device>(name);
        if (!one || !one->link(&reason))
            one = {};
        else if (one->host_info(CL_DEVICE_TYPE)->error != CL_SUCCESS) {
            reason = name + ": the host has no OpenCL device for it";
            one = {};
        }
        if (one)
            found->push_back(one.detach());
        else if (!reason.empty())
            reasons += (reasons.empty() ? "" : "; ") + reason;
    }
    // Left out in silence where there are others, unless somebody wants to know.
    if (!found->empty() && !reasons.empty() && std::getenv("KAGEMUSHA_VERBOSE"))
        std::fprintf(stderr, "kagemusha: not all devices can be used: %s\n", reasons.c_str());
    if (error)
        *error = reasons;
    return *found;
}

namespace {

bool is_platform(cl_platform_id handle) {
    // The standard lets a query name no platform; with one platform it can only mean this one.
    return handle == nullptr || from_handle<platform>(handle);
}

std::string profile_of_host() {
    const auto devices = the_devices();
    const auto link = devices.empty() ? nullptr : devices[0]->link();
    const answer known =
        link ? ask(*link, {VGPU_INFO_PLATFORM, CL_PLATFORM_PROFILE}) : answer{CL_OUT_OF_RESOURCES, {}};
    const std::string text = known.error == CL_SUCCESS ? known.text() : std::string();
    return text.empty() ? "FULL_PROFILE" : text;
}

cl_name_version named(const char* name, cl_version version) {
    cl_name_version entry{};
    entry.version = version;
    std::snprintf(entry.name, sizeof entry.name, "%s", name);
    return entry;
}

} // namespace

namespace api {

cl_int get_platform_ids(cl_uint num_entries, cl_platform_id* platforms, cl_uint* num_platforms) {
    if ((platforms && num_entries == 0) || (!platforms && !num_platforms))
        return CL_INVALID_VALUE;
    std::string error;
    if (the_devices(&error).empty()) {
        if (num_platforms)
            *num_platforms = 0;
        if (std::getenv("KAGEMUSHA_VERBOSE"))
            std::fprintf(stderr, "kagemusha: no OpenCL platform: %s\n", error.c_str());
        return CL_PLATFORM_NOT_FOUND_KHR;
    }
    if (platforms)
        platforms[0] = to_handle<cl_platform_id>(&the_platform());
    if (num_platforms)
        *num_platforms = 1;
    return CL_SUCCESS;
}

cl_int get_platform_info(cl_platform_id handle, cl_platform_info name, size_t size, void* value,
                         size_t* size_ret) {
    const info_answer to(size, value, size_ret);
    if (!is_platform(handle))
        return CL_INVALID_PLATFORM;
    switch (name) {
    case CL_PLATFORM_PROFILE:
        return to.text(profile_of_host());
    case CL_PLATFORM_VERSION:
        return to.text("OpenCL 3.0 kagemusha");
    case CL_PLATFORM_NUMERIC_VERSION:
        return to.value<cl_version>(CL_MAKE_VERSION(3, 0, 0));
    case CL_PLATFORM_NAME:
        return to.text(platform_name);
    case CL_PLATFORM_VENDOR:
        return to.text("Kagemusha project");
    case CL_PLATFORM_EXTENSIONS:
        return to.text(platform_extensions);
    case CL_PLATFORM_EXTENSIONS_WITH_VERSION: {
        const cl_name_version list[] = {named("cl_khr_icd", CL_MAKE_VERSION(1, 0, 0)),
                                        named("cl_khr_extended_versioning", CL_MAKE_VERSION(1, 0, 0)),
                                        named("cl_khr_create_command_queue", CL_MAKE_VERSION(1, 0, 0))};
        return to.bytes(list, sizeof list);
    }
    case CL_PLATFORM_HOST_TIMER_RESOLUTION: {
        const auto devices = the_devices();
        const auto link = !devices.empty() && devices[0]->version() >= CL_MAKE_VERSION(2, 1, 0)
                              ? devices[0]->link()
                              : nullptr;
        const answer known = link ? ask(*link, {VGPU_INFO_PLATFORM, CL_PLATFORM_HOST_TIMER_RESOLUTION})
                                  : answer{CL_INVALID_VALUE, {}};
        return to.value(known.as<cl_ulong>().value_or(0)); // 0: clGetDeviceAndHostTimer does not work
    }
    case CL_PLATFORM_ICD_SUFFIX_KHR:
        return to.text("KGMS");
    default:
        return CL_INVALID_VALUE;
    }
}

cl_int get_device_ids(cl_platform_id handle, cl_device_type type, cl_uint num_entries, cl_device_id* devices,
                      cl_uint* num_devices) {
    if (!is_platform(handle))
        return CL_INVALID_PLATFORM;
    constexpr cl_device_type known_types = CL_DEVICE_TYPE_DEFAULT | CL_DEVICE_TYPE_CPU | CL_DEVICE_TYPE_GPU |
                                           CL_DEVICE_TYPE_ACCELERATOR | CL_DEVICE_TYPE_CUSTOM;
    if (type == 0 || (type != CL_DEVICE_TYPE_ALL && (type & ~known_types)))
        return CL_INVALID_DEVICE_TYPE;
    if ((devices && num_entries == 0) || (!devices && !num_devices))
        return CL_INVALID_VALUE;
    std::vector<device*> fitting = the_devices();
    const device* const first = fitting.empty() ? nullptr : fitting[0];
    std::erase_if(fitting, [&](device* one) {
        const cl_device_type has =
            one->number<cl_device_type>(CL_DEVICE_TYPE, 0) | (one == first ? CL_DEVICE_TYPE_DEFAULT : 0);
        return !(has & type);
    });
    for (std::size_t i = 0; devices && i < fitting.size() && i < num_entries; ++i)
        devices[i] = to_handle<cl_device_id>(fitting[i]);
    if (num_devices)
        *num_devices = static_cast<cl_uint>(fitting.size());
    return fitting.empty() ? CL_DEVICE_NOT_FOUND : CL_SUCCESS;
}

cl_int get_device_info(cl_device_id handle, cl_device_info name, size_t size, void* value, size_t* size_ret) {
    device* const gpu = from_handle<device>(handle);
    return gpu ? gpu->info(name, {size, value, size_ret}) : CL_INVALID_DEVICE;
}

cl_int create_sub_devices(cl_device_id handle, const cl_device_partition_property* properties, cl_uint,
                          cl_device_id*, cl_uint* num_devices) {
    if (!from_handle<device>(handle))
        return CL_INVALID_DEVICE;
    if (num_devices)
        *num_devices = 0;
    // No partition type is supported (CL_DEVICE_PARTITION_PROPERTIES says so), which makes every request an
    // invalid one.
    (void)properties;
    return CL_INVALID_VALUE;
}

// The count of a root device is always 1.
cl_int retain_device(cl_device_id handle) {
    return from_handle<device>(handle) ? CL_SUCCESS : CL_INVALID_DEVICE;
}

cl_int release_device(cl_device_id handle) {
    return from_handle<device>(handle) ? CL_SUCCESS : CL_INVALID_DEVICE;
}

cl_int get_device_and_host_timer(cl_device_id handle, cl_ulong* device_timestamp, cl_ulong* host_timestamp) {
    device* const gpu = from_handle<device>(handle);
    if (!gpu)
        return CL_INVALID_DEVICE;
    if (!device_timestamp || !host_timestamp)
        return CL_INVALID_VALUE;
    const auto link = gpu->link();
    if (!link)
        return CL_OUT_OF_RESOURCES;
    const answer known = ask(*link, {VGPU_INFO_TIMERS});
    if (known.error != CL_SUCCESS)
        return known.error;
    struct timers {
        cl_ulong device, host;
    };
    const auto both = known.as<timers>();
    if (!both)
        return CL_INVALID_OPERATION;
    *device_timestamp = both->device;
    *host_timestamp = both->host;
    return CL_SUCCESS;
}

cl_int get_host_timer(cl_device_id handle, cl_ulong* host_timestamp) {
    cl_ulong ignored = 0;
    return get_device_and_host_timer(handle, &ignored, host_timestamp);
}

void* get_extension_function_address(const char* name) {
    return name ? find_extension_function(name) : nullptr;
}

void* get_extension_function_address_for_platform(cl_platform_id handle, const char* name) {
    return from_handle<platform>(handle) && name ? find_extension_function(name) : nullptr;
}

cl_int unload_compiler() {
    return CL_SUCCESS; // a hint, and the compiler is the host's
}

cl_int unload_platform_compiler(cl_platform_id handle) {
    return from_handle<platform>(handle) ? CL_SUCCESS : CL_INVALID_PLATFORM;
}

} // namespace api
} // namespace kagemusha::opencl
