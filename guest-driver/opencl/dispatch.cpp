// SPDX-License-Identifier: GPL-2.0-or-later
//
// The dispatch table, the functions that are looked up by name, and the two symbols that the library exports.
//
// Every entry goes through a wrapper that keeps exceptions inside: the only one that our code lets happen is
// std::bad_alloc, and the standard's name for it is CL_OUT_OF_HOST_MEMORY.
#include "api.hpp"
#include "extension_functions.hpp"
#include "object.hpp"

#include <cstdio>
#include <cstring>
#include <tuple>
#include <type_traits>

namespace kagemusha::opencl {
namespace {

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

template <class Function>
void* untyped(Function* function) {
    return reinterpret_cast<void*>(function);
}

cl_icd_dispatch make_table() {
    cl_icd_dispatch table{};
    table.clGetPlatformIDs = entry<api::get_platform_ids>::call;
    table.clGetPlatformInfo = entry<api::get_platform_info>::call;
    table.clGetDeviceIDs = entry<api::get_device_ids>::call;
    table.clGetDeviceInfo = entry<api::get_device_info>::call;
    table.clCreateContext = entry<api::create_context>::call;
    table.clCreateContextFromType = entry<api::create_context_from_type>::call;
    table.clRetainContext = entry<api::retain_context>::call;
    table.clReleaseContext = entry<api::release_context>::call;
    table.clGetContextInfo = entry<api::get_context_info>::call;
    table.clCreateCommandQueue = entry<api::create_command_queue>::call;
    table.clRetainCommandQueue = entry<api::retain_command_queue>::call;
    table.clReleaseCommandQueue = entry<api::release_command_queue>::call;
    table.clGetCommandQueueInfo = entry<api::get_command_queue_info>::call;
    table.clSetCommandQueueProperty = entry<api::set_command_queue_property>::call;
    table.clCreateBuffer = entry<api::create_buffer>::call;
    table.clCreateImage2D = entry<api::create_image2d>::call;
    table.clCreateImage3D = entry<api::create_image3d>::call;
    table.clRetainMemObject = entry<api::retain_mem_object>::call;
    table.clReleaseMemObject = entry<api::release_mem_object>::call;
    table.clGetSupportedImageFormats = entry<api::get_supported_image_formats>::call;
    table.clGetMemObjectInfo = entry<api::get_mem_object_info>::call;
    table.clGetImageInfo = entry<api::get_image_info>::call;
    table.clCreateSampler = entry<api::create_sampler>::call;
    table.clRetainSampler = entry<api::retain_sampler>::call;
    table.clReleaseSampler = entry<api::release_sampler>::call;
    table.clGetSamplerInfo = entry<api::get_sampler_info>::call;
    table.clCreateProgramWithSource = entry<api::create_program_with_source>::call;
    table.clCreateProgramWithBinary = entry<api::create_program_with_binary>::call;
    table.clRetainProgram = entry<api::retain_program>::call;
    table.clReleaseProgram = entry<api::release_program>::call;
    table.clBuildProgram = entry<api::build_program>::call;
    table.clUnloadCompiler = entry<api::unload_compiler>::call;
    table.clGetProgramInfo = entry<api::get_program_info>::call;
    table.clGetProgramBuildInfo = entry<api::get_program_build_info>::call;
    table.clCreateKernel = entry<api::create_kernel>::call;
    table.clCreateKernelsInProgram = entry<api::create_kernels_in_program>::call;
    table.clRetainKernel = entry<api::retain_kernel>::call;
    table.clReleaseKernel = entry<api::release_kernel>::call;
    table.clSetKernelArg = entry<api::set_kernel_arg>::call;
    table.clGetKernelInfo = entry<api::get_kernel_info>::call;
    table.clGetKernelWorkGroupInfo = entry<api::get_kernel_work_group_info>::call;
    table.clWaitForEvents = entry<api::wait_for_events>::call;
    table.clGetEventInfo = entry<api::get_event_info>::call;
    table.clRetainEvent = entry<api::retain_event>::call;
    table.clReleaseEvent = entry<api::release_event>::call;
    table.clGetEventProfilingInfo = entry<api::get_event_profiling_info>::call;
    table.clFlush = entry<api::flush>::call;
    table.clFinish = entry<api::finish>::call;
    table.clEnqueueReadBuffer = entry<api::enqueue_read_buffer>::call;
    table.clEnqueueWriteBuffer = entry<api::enqueue_write_buffer>::call;
    table.clEnqueueCopyBuffer = entry<api::enqueue_copy_buffer>::call;
    table.clEnqueueReadImage = entry<api::enqueue_read_image>::call;
    table.clEnqueueWriteImage = entry<api::enqueue_write_image>::call;
    table.clEnqueueCopyImage = entry<api::enqueue_copy_image>::call;
    table.clEnqueueCopyImageToBuffer = entry<api::enqueue_copy_image_to_buffer>::call;
    table.clEnqueueCopyBufferToImage = entry<api::enqueue_copy_buffer_to_image>::call;
    table.clEnqueueMapBuffer = entry<api::enqueue_map_buffer>::call;
    table.clEnqueueMapImage = entry<api::enqueue_map_image>::call;
    table.clEnqueueUnmapMemObject = entry<api::enqueue_unmap_mem_object>::call;
    table.clEnqueueNDRangeKernel = entry<api::enqueue_ndrange_kernel>::call;
    table.clEnqueueTask = entry<api::enqueue_task>::call;
    table.clEnqueueNativeKernel = entry<api::enqueue_native_kernel>::call;
    table.clEnqueueMarker = entry<api::enqueue_marker>::call;
    table.clEnqueueWaitForEvents = entry<api::enqueue_wait_for_events>::call;
    table.clEnqueueBarrier = entry<api::enqueue_barrier>::call;
    table.clGetExtensionFunctionAddress = entry<api::get_extension_function_address>::call;
    table.clCreateFromGLBuffer = entry<api::create_from_gl_buffer>::call;
    table.clCreateFromGLTexture2D = entry<api::create_from_gl_texture2d>::call;
    table.clCreateFromGLTexture3D = entry<api::create_from_gl_texture3d>::call;
    table.clCreateFromGLRenderbuffer = entry<api::create_from_gl_renderbuffer>::call;
    table.clGetGLObjectInfo = entry<api::get_gl_object_info>::call;
    table.clGetGLTextureInfo = entry<api::get_gl_texture_info>::call;
    table.clEnqueueAcquireGLObjects = entry<api::enqueue_acquire_gl_objects>::call;
    table.clEnqueueReleaseGLObjects = entry<api::enqueue_release_gl_objects>::call;
    table.clGetGLContextInfoKHR = entry<api::get_gl_context_info_khr>::call;
    table.clSetEventCallback = entry<api::set_event_callback>::call;
    table.clCreateSubBuffer = entry<api::create_sub_buffer>::call;
    table.clSetMemObjectDestructorCallback = entry<api::set_mem_object_destructor_callback>::call;
    table.clCreateUserEvent = entry<api::create_user_event>::call;
    table.clSetUserEventStatus = entry<api::set_user_event_status>::call;
    table.clEnqueueReadBufferRect = entry<api::enqueue_read_buffer_rect>::call;
    table.clEnqueueWriteBufferRect = entry<api::enqueue_write_buffer_rect>::call;
    table.clEnqueueCopyBufferRect = entry<api::enqueue_copy_buffer_rect>::call;
    table.clCreateSubDevicesEXT = entry<api::create_sub_devices_ext>::call;
    table.clRetainDeviceEXT = entry<api::retain_device_ext>::call;
    table.clReleaseDeviceEXT = entry<api::release_device_ext>::call;
    table.clCreateEventFromGLsyncKHR = entry<api::create_event_from_gl_sync_khr>::call;
    table.clCreateSubDevices = entry<api::create_sub_devices>::call;
    table.clRetainDevice = entry<api::retain_device>::call;
    table.clReleaseDevice = entry<api::release_device>::call;
    table.clCreateImage = entry<api::create_image>::call;
    table.clCreateProgramWithBuiltInKernels = entry<api::create_program_with_built_in_kernels>::call;
    table.clCompileProgram = entry<api::compile_program>::call;
    table.clLinkProgram = entry<api::link_program>::call;
    table.clUnloadPlatformCompiler = entry<api::unload_platform_compiler>::call;
    table.clGetKernelArgInfo = entry<api::get_kernel_arg_info>::call;
    table.clEnqueueFillBuffer = entry<api::enqueue_fill_buffer>::call;
    table.clEnqueueFillImage = entry<api::enqueue_fill_image>::call;
    table.clEnqueueMigrateMemObjects = entry<api::enqueue_migrate_mem_objects>::call;
    table.clEnqueueMarkerWithWaitList = entry<api::enqueue_marker_with_wait_list>::call;
    table.clEnqueueBarrierWithWaitList = entry<api::enqueue_barrier_with_wait_list>::call;
    table.clGetExtensionFunctionAddressForPlatform =
        entry<api::get_extension_function_address_for_platform>::call;
    table.clCreateFromGLTexture = entry<api::create_from_gl_texture>::call;
    table.clCreateFromEGLImageKHR = entry<api::create_from_egl_image_khr>::call;
    table.clEnqueueAcquireEGLObjectsKHR = entry<api::enqueue_acquire_egl_objects_khr>::call;
    table.clEnqueueReleaseEGLObjectsKHR = entry<api::enqueue_release_egl_objects_khr>::call;
    table.clCreateEventFromEGLSyncKHR = entry<api::create_event_from_egl_sync_khr>::call;
    table.clCreateCommandQueueWithProperties = entry<api::create_command_queue_with_properties>::call;
    table.clCreatePipe = entry<api::create_pipe>::call;
    table.clGetPipeInfo = entry<api::get_pipe_info>::call;
    table.clSVMAlloc = entry<api::svm_alloc>::call;
    table.clSVMFree = entry<api::svm_free>::call;
    table.clEnqueueSVMFree = entry<api::enqueue_svm_free>::call;
    table.clEnqueueSVMMemcpy = entry<api::enqueue_svm_memcpy>::call;
    table.clEnqueueSVMMemFill = entry<api::enqueue_svm_mem_fill>::call;
    table.clEnqueueSVMMap = entry<api::enqueue_svm_map>::call;
    table.clEnqueueSVMUnmap = entry<api::enqueue_svm_unmap>::call;
    table.clCreateSamplerWithProperties = entry<api::create_sampler_with_properties>::call;
    table.clSetKernelArgSVMPointer = entry<api::set_kernel_arg_svm_pointer>::call;
    table.clSetKernelExecInfo = entry<api::set_kernel_exec_info>::call;
    table.clGetKernelSubGroupInfoKHR = entry<api::get_kernel_sub_group_info_khr>::call;
    table.clCloneKernel = entry<api::clone_kernel>::call;
    table.clCreateProgramWithIL = entry<api::create_program_with_il>::call;
    table.clEnqueueSVMMigrateMem = entry<api::enqueue_svm_migrate_mem>::call;
    table.clGetDeviceAndHostTimer = entry<api::get_device_and_host_timer>::call;
    table.clGetHostTimer = entry<api::get_host_timer>::call;
    table.clGetKernelSubGroupInfo = entry<api::get_kernel_sub_group_info>::call;
    table.clSetDefaultDeviceCommandQueue = entry<api::set_default_device_command_queue>::call;
    table.clSetProgramReleaseCallback = entry<api::set_program_release_callback>::call;
    table.clSetProgramSpecializationConstant = entry<api::set_program_specialization_constant>::call;
    table.clCreateBufferWithProperties = entry<api::create_buffer_with_properties>::call;
    table.clCreateImageWithProperties = entry<api::create_image_with_properties>::call;
    table.clSetContextDestructorCallback = entry<api::set_context_destructor_callback>::call;

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

/// Functions of extensions: the loader's own, and those that were in an extension before the core had them.
struct named_function {
    const char* name;
    void* address;
};

const named_function extension_functions[] = {
    {"clIcdGetPlatformIDsKHR", untyped(entry<api::get_platform_ids>::call)},
    {"clCreateCommandQueueWithPropertiesKHR",
     untyped(entry<api::create_command_queue_with_properties>::call)},
    {"clCreateProgramWithILKHR", untyped(entry<api::create_program_with_il>::call)},
    {"clGetKernelSubGroupInfoKHR", untyped(entry<api::get_kernel_sub_group_info_khr>::call)},
    // The loader asks for these three by name before it has a table.
    {"clGetPlatformInfo", untyped(entry<api::get_platform_info>::call)},
    {"clGetExtensionFunctionAddress", untyped(entry<api::get_extension_function_address>::call)},
    {"clGetExtensionFunctionAddressForPlatform",
     untyped(entry<api::get_extension_function_address_for_platform>::call)},
};

} // namespace

void* extension_function(const char* name) noexcept {
    for (const named_function& one : extension_functions)
        if (std::strcmp(one.name, name) == 0)
            return one.address;
    return nullptr;
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
