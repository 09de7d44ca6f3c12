// SPDX-License-Identifier: GPL-2.0-or-later
//
// The dispatch table, the functions that are looked up by name, and the two symbols that the library exports.
#include "api.hpp"
#include "extension_functions.hpp"
#include "object.hpp"

#include <cstdio>
#include <cstring>

namespace kagemusha::opencl {
namespace {

// Direct3D and Direct3D media surfaces do not exist here; the table has them as untyped pointers.
cl_int refuse() {
    return CL_INVALID_OPERATION;
}

cl_mem refuse_buffer(cl_context, cl_mem_flags, void*, cl_int* errcode) {
    return fail<cl_mem>(errcode, CL_INVALID_OPERATION);
}

cl_mem refuse_texture(cl_context, cl_mem_flags, void*, cl_uint, cl_int* errcode) {
    return fail<cl_mem>(errcode, CL_INVALID_OPERATION);
}

cl_mem refuse_media_surface(cl_context, cl_mem_flags, cl_uint, void*, cl_uint, cl_int* errcode) {
    return fail<cl_mem>(errcode, CL_INVALID_OPERATION);
}

cl_icd_dispatch make_table() {
    cl_icd_dispatch table{};
#define KAGEMUSHA_OPENCL_SLOT(slot, function) table.slot = entry<api::function>::call;
    KAGEMUSHA_OPENCL_ENTRIES(KAGEMUSHA_OPENCL_SLOT)
#undef KAGEMUSHA_OPENCL_SLOT

    table.clGetDeviceIDsFromD3D10KHR = untyped(refuse);
    table.clCreateFromD3D10BufferKHR = untyped(refuse_buffer);
    table.clCreateFromD3D10Texture2DKHR = untyped(refuse_texture);
    table.clCreateFromD3D10Texture3DKHR = untyped(refuse_texture);
    table.clEnqueueAcquireD3D10ObjectsKHR = untyped(refuse);
    table.clEnqueueReleaseD3D10ObjectsKHR = untyped(refuse);
    table.clGetDeviceIDsFromD3D11KHR = untyped(refuse);
    table.clCreateFromD3D11BufferKHR = untyped(refuse_buffer);
    table.clCreateFromD3D11Texture2DKHR = untyped(refuse_texture);
    table.clCreateFromD3D11Texture3DKHR = untyped(refuse_texture);
    table.clCreateFromDX9MediaSurfaceKHR = untyped(refuse_media_surface);
    table.clEnqueueAcquireD3D11ObjectsKHR = untyped(refuse);
    table.clEnqueueReleaseD3D11ObjectsKHR = untyped(refuse);
    table.clGetDeviceIDsFromDX9MediaAdapterKHR = untyped(refuse);
    table.clEnqueueAcquireDX9MediaSurfacesKHR = untyped(refuse);
    table.clEnqueueReleaseDX9MediaSurfacesKHR = untyped(refuse);
    return table;
}

} // namespace

const cl_icd_dispatch dispatch_table = make_table();

namespace {

// The loader's own, and those that were in an extension before the core had them.
const extension_function named_functions[] = {
    {nullptr, {}, "clIcdGetPlatformIDsKHR", untyped(entry<api::get_platform_ids>::call)},
    {nullptr,
     {},
     "clCreateCommandQueueWithPropertiesKHR",
     untyped(entry<api::create_command_queue_with_properties>::call)},
    {nullptr, {}, "clCreateProgramWithILKHR", untyped(entry<api::create_program_with_il>::call)},
    {nullptr, {}, "clGetKernelSubGroupInfoKHR", untyped(entry<api::get_kernel_sub_group_info_khr>::call)},
    // The loader asks for these three by name before it has a table.
    {nullptr, {}, "clGetPlatformInfo", untyped(entry<api::get_platform_info>::call)},
    {nullptr, {}, "clGetExtensionFunctionAddress", untyped(entry<api::get_extension_function_address>::call)},
    {nullptr,
     {},
     "clGetExtensionFunctionAddressForPlatform",
     untyped(entry<api::get_extension_function_address_for_platform>::call)},
};

} // namespace

void* find_extension_function(const char* name) noexcept {
    for (const extension_function* one = extension_function::first; one; one = one->next)
        if (std::strcmp(one->name, name) == 0)
            return one->address;
    return nullptr;
}

bool has_functions_of(std::string_view extension, std::uint64_t commands) noexcept {
    for (const extension_function* one = extension_function::first; one; one = one->next)
        if (one->extension && one->extension == extension && (commands >> one->command & 1) != 0)
            return true;
    return false;
}

} // namespace kagemusha::opencl

#define KAGEMUSHA_EXPORT __attribute__((visibility("default")))

extern "C" {

KAGEMUSHA_EXPORT CL_API_ENTRY void* CL_API_CALL clGetExtensionFunctionAddress(const char* name) {
    return kagemusha::opencl::dispatch_table.clGetExtensionFunctionAddress(name);
}

KAGEMUSHA_EXPORT CL_API_ENTRY cl_int CL_API_CALL clIcdGetPlatformIDsKHR(cl_uint num_entries,
                                                                        cl_platform_id* platforms,
                                                                        cl_uint* num_platforms) {
    return kagemusha::opencl::dispatch_table.clGetPlatformIDs(num_entries, platforms, num_platforms);
}

KAGEMUSHA_EXPORT CL_API_ENTRY cl_int CL_API_CALL clGetPlatformInfo(cl_platform_id platform,
                                                                   cl_platform_info name, size_t size,
                                                                   void* value, size_t* size_ret) {
    return kagemusha::opencl::dispatch_table.clGetPlatformInfo(platform, name, size, value, size_ret);
}
}
