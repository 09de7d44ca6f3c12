// SPDX-License-Identifier: GPL-2.0-or-later
//
// The entry points: every typed slot of the ICD loader's table with the function of ours that is in it. They
// have the types that the OpenCL headers give them, are defined in the file of their noun and reached through
// the dispatch table only (dispatch.cpp), which also keeps exceptions inside. What this driver does not have
// is in unsupported.cpp, so the list does not grow with what it has.
#pragma once

#include "opencl_headers.hpp"

#define KAGEMUSHA_OPENCL_ENTRIES(X)                                                                          \
    X(clGetPlatformIDs, get_platform_ids)                                                                    \
    X(clGetPlatformInfo, get_platform_info)                                                                  \
    X(clGetDeviceIDs, get_device_ids)                                                                        \
    X(clGetDeviceInfo, get_device_info)                                                                      \
    X(clCreateContext, create_context)                                                                       \
    X(clCreateContextFromType, create_context_from_type)                                                     \
    X(clRetainContext, retain_context)                                                                       \
    X(clReleaseContext, release_context)                                                                     \
    X(clGetContextInfo, get_context_info)                                                                    \
    X(clCreateCommandQueue, create_command_queue)                                                            \
    X(clRetainCommandQueue, retain_command_queue)                                                            \
    X(clReleaseCommandQueue, release_command_queue)                                                          \
    X(clGetCommandQueueInfo, get_command_queue_info)                                                         \
    X(clSetCommandQueueProperty, set_command_queue_property)                                                 \
    X(clCreateBuffer, create_buffer)                                                                         \
    X(clCreateImage2D, create_image2d)                                                                       \
    X(clCreateImage3D, create_image3d)                                                                       \
    X(clRetainMemObject, retain_mem_object)                                                                  \
    X(clReleaseMemObject, release_mem_object)                                                                \
    X(clGetSupportedImageFormats, get_supported_image_formats)                                               \
    X(clGetMemObjectInfo, get_mem_object_info)                                                               \
    X(clGetImageInfo, get_image_info)                                                                        \
    X(clCreateSampler, create_sampler)                                                                       \
    X(clRetainSampler, retain_sampler)                                                                       \
    X(clReleaseSampler, release_sampler)                                                                     \
    X(clGetSamplerInfo, get_sampler_info)                                                                    \
    X(clCreateProgramWithSource, create_program_with_source)                                                 \
    X(clCreateProgramWithBinary, create_program_with_binary)                                                 \
    X(clRetainProgram, retain_program)                                                                       \
    X(clReleaseProgram, release_program)                                                                     \
    X(clBuildProgram, build_program)                                                                         \
    X(clUnloadCompiler, unload_compiler)                                                                     \
    X(clGetProgramInfo, get_program_info)                                                                    \
    X(clGetProgramBuildInfo, get_program_build_info)                                                         \
    X(clCreateKernel, create_kernel)                                                                         \
    X(clCreateKernelsInProgram, create_kernels_in_program)                                                   \
    X(clRetainKernel, retain_kernel)                                                                         \
    X(clReleaseKernel, release_kernel)                                                                       \
    X(clSetKernelArg, set_kernel_arg)                                                                        \
    X(clGetKernelInfo, get_kernel_info)                                                                      \
    X(clGetKernelWorkGroupInfo, get_kernel_work_group_info)                                                  \
    X(clWaitForEvents, wait_for_events)                                                                      \
    X(clGetEventInfo, get_event_info)                                                                        \
    X(clRetainEvent, retain_event)                                                                           \
    X(clReleaseEvent, release_event)                                                                         \
    X(clGetEventProfilingInfo, get_event_profiling_info)                                                     \
    X(clFlush, flush)                                                                                        \
    X(clFinish, finish)                                                                                      \
    X(clEnqueueReadBuffer, enqueue_read_buffer)                                                              \
    X(clEnqueueWriteBuffer, enqueue_write_buffer)                                                            \
    X(clEnqueueCopyBuffer, enqueue_copy_buffer)                                                              \
    X(clEnqueueReadImage, enqueue_read_image)                                                                \
    X(clEnqueueWriteImage, enqueue_write_image)                                                              \
    X(clEnqueueCopyImage, enqueue_copy_image)                                                                \
    X(clEnqueueCopyImageToBuffer, enqueue_copy_image_to_buffer)                                              \
    X(clEnqueueCopyBufferToImage, enqueue_copy_buffer_to_image)                                              \
    X(clEnqueueMapBuffer, enqueue_map_buffer)                                                                \
    X(clEnqueueMapImage, enqueue_map_image)                                                                  \
    X(clEnqueueUnmapMemObject, enqueue_unmap_mem_object)                                                     \
    X(clEnqueueNDRangeKernel, enqueue_ndrange_kernel)                                                        \
    X(clEnqueueTask, enqueue_task)                                                                           \
    X(clEnqueueNativeKernel, enqueue_native_kernel)                                                          \
    X(clEnqueueMarker, enqueue_marker)                                                                       \
    X(clEnqueueWaitForEvents, enqueue_wait_for_events)                                                       \
    X(clEnqueueBarrier, enqueue_barrier)                                                                     \
    X(clGetExtensionFunctionAddress, get_extension_function_address)                                         \
    X(clCreateFromGLBuffer, create_from_gl_buffer)                                                           \
    X(clCreateFromGLTexture2D, create_from_gl_texture2d)                                                     \
    X(clCreateFromGLTexture3D, create_from_gl_texture3d)                                                     \
    X(clCreateFromGLRenderbuffer, create_from_gl_renderbuffer)                                               \
    X(clGetGLObjectInfo, get_gl_object_info)                                                                 \
    X(clGetGLTextureInfo, get_gl_texture_info)                                                               \
    X(clEnqueueAcquireGLObjects, enqueue_acquire_gl_objects)                                                 \
    X(clEnqueueReleaseGLObjects, enqueue_release_gl_objects)                                                 \
    X(clGetGLContextInfoKHR, get_gl_context_info_khr)                                                        \
    X(clSetEventCallback, set_event_callback)                                                                \
    X(clCreateSubBuffer, create_sub_buffer)                                                                  \
    X(clSetMemObjectDestructorCallback, set_mem_object_destructor_callback)                                  \
    X(clCreateUserEvent, create_user_event)                                                                  \
    X(clSetUserEventStatus, set_user_event_status)                                                           \
    X(clEnqueueReadBufferRect, enqueue_read_buffer_rect)                                                     \
    X(clEnqueueWriteBufferRect, enqueue_write_buffer_rect)                                                   \
    X(clEnqueueCopyBufferRect, enqueue_copy_buffer_rect)                                                     \
    X(clCreateSubDevicesEXT, create_sub_devices_ext)                                                         \
    X(clRetainDeviceEXT, retain_device_ext)                                                                  \
    X(clReleaseDeviceEXT, release_device_ext)                                                                \
    X(clCreateEventFromGLsyncKHR, create_event_from_gl_sync_khr)                                             \
    X(clCreateSubDevices, create_sub_devices)                                                                \
    X(clRetainDevice, retain_device)                                                                         \
    X(clReleaseDevice, release_device)                                                                       \
    X(clCreateImage, create_image)                                                                           \
    X(clCreateProgramWithBuiltInKernels, create_program_with_built_in_kernels)                               \
    X(clCompileProgram, compile_program)                                                                     \
    X(clLinkProgram, link_program)                                                                           \
    X(clUnloadPlatformCompiler, unload_platform_compiler)                                                    \
    X(clGetKernelArgInfo, get_kernel_arg_info)                                                               \
    X(clEnqueueFillBuffer, enqueue_fill_buffer)                                                              \
    X(clEnqueueFillImage, enqueue_fill_image)                                                                \
    X(clEnqueueMigrateMemObjects, enqueue_migrate_mem_objects)                                               \
    X(clEnqueueMarkerWithWaitList, enqueue_marker_with_wait_list)                                            \
    X(clEnqueueBarrierWithWaitList, enqueue_barrier_with_wait_list)                                          \
    X(clGetExtensionFunctionAddressForPlatform, get_extension_function_address_for_platform)                 \
    X(clCreateFromGLTexture, create_from_gl_texture)                                                         \
    X(clCreateFromEGLImageKHR, create_from_egl_image_khr)                                                    \
    X(clEnqueueAcquireEGLObjectsKHR, enqueue_acquire_egl_objects_khr)                                        \
    X(clEnqueueReleaseEGLObjectsKHR, enqueue_release_egl_objects_khr)                                        \
    X(clCreateEventFromEGLSyncKHR, create_event_from_egl_sync_khr)                                           \
    X(clCreateCommandQueueWithProperties, create_command_queue_with_properties)                              \
    X(clCreatePipe, create_pipe)                                                                             \
    X(clGetPipeInfo, get_pipe_info)                                                                          \
    X(clSVMAlloc, svm_alloc)                                                                                 \
    X(clSVMFree, svm_free)                                                                                   \
    X(clEnqueueSVMFree, enqueue_svm_free)                                                                    \
    X(clEnqueueSVMMemcpy, enqueue_svm_memcpy)                                                                \
    X(clEnqueueSVMMemFill, enqueue_svm_mem_fill)                                                             \
    X(clEnqueueSVMMap, enqueue_svm_map)                                                                      \
    X(clEnqueueSVMUnmap, enqueue_svm_unmap)                                                                  \
    X(clCreateSamplerWithProperties, create_sampler_with_properties)                                         \
    X(clSetKernelArgSVMPointer, set_kernel_arg_svm_pointer)                                                  \
    X(clSetKernelExecInfo, set_kernel_exec_info)                                                             \
    X(clGetKernelSubGroupInfoKHR, get_kernel_sub_group_info_khr)                                             \
    X(clCloneKernel, clone_kernel)                                                                           \
    X(clCreateProgramWithIL, create_program_with_il)                                                         \
    X(clEnqueueSVMMigrateMem, enqueue_svm_migrate_mem)                                                       \
    X(clGetDeviceAndHostTimer, get_device_and_host_timer)                                                    \
    X(clGetHostTimer, get_host_timer)                                                                        \
    X(clGetKernelSubGroupInfo, get_kernel_sub_group_info)                                                    \
    X(clSetDefaultDeviceCommandQueue, set_default_device_command_queue)                                      \
    X(clSetProgramReleaseCallback, set_program_release_callback)                                             \
    X(clSetProgramSpecializationConstant, set_program_specialization_constant)                               \
    X(clCreateBufferWithProperties, create_buffer_with_properties)                                           \
    X(clCreateImageWithProperties, create_image_with_properties)                                             \
    X(clSetContextDestructorCallback, set_context_destructor_callback)

namespace kagemusha::opencl::api {

#define KAGEMUSHA_OPENCL_DECLARATION(slot, function) decltype(::slot) function;
KAGEMUSHA_OPENCL_ENTRIES(KAGEMUSHA_OPENCL_DECLARATION)
#undef KAGEMUSHA_OPENCL_DECLARATION

} // namespace kagemusha::opencl::api
