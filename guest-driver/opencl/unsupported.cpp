// SPDX-License-Identifier: GPL-2.0-or-later
//
// Entries of the dispatch table that this driver does not have, each with the answer that the standard gives
// then: shared virtual memory, pipes, device fission, and sharing with OpenGL and EGL.
#include "api.hpp"
#include "context.hpp"
#include "kernel.hpp"
#include "memory.hpp"
#include "queue.hpp"

namespace kagemusha::opencl {
namespace {

cl_int refuse_on(cl_command_queue where) {
    return from_handle<queue>(where) ? CL_INVALID_OPERATION : CL_INVALID_COMMAND_QUEUE;
}

cl_mem refuse_in(cl_context where, cl_int* errcode) {
    return fail<cl_mem>(errcode, from_handle<context>(where) ? CL_INVALID_OPERATION : CL_INVALID_CONTEXT);
}

} // namespace

namespace api {

// Shared virtual memory: CL_DEVICE_SVM_CAPABILITIES is 0.
void* svm_alloc(cl_context, cl_svm_mem_flags, size_t, cl_uint) {
    return nullptr;
}

void svm_free(cl_context, void*) {}

cl_int enqueue_svm_free(cl_command_queue where, cl_uint, void*[],
                        void(CL_CALLBACK*)(cl_command_queue, cl_uint, void*[], void*), void*, cl_uint,
                        const cl_event*, cl_event*) {
    return refuse_on(where);
}

cl_int enqueue_svm_memcpy(cl_command_queue where, cl_bool, void*, const void*, size_t, cl_uint,
                          const cl_event*, cl_event*) {
    return refuse_on(where);
}

cl_int enqueue_svm_mem_fill(cl_command_queue where, void*, const void*, size_t, size_t, cl_uint,
                            const cl_event*, cl_event*) {
    return refuse_on(where);
}

cl_int enqueue_svm_map(cl_command_queue where, cl_bool, cl_map_flags, void*, size_t, cl_uint, const cl_event*,
                       cl_event*) {
    return refuse_on(where);
}

cl_int enqueue_svm_unmap(cl_command_queue where, void*, cl_uint, const cl_event*, cl_event*) {
    return refuse_on(where);
}

cl_int enqueue_svm_migrate_mem(cl_command_queue where, cl_uint, const void**, const size_t*,
                               cl_mem_migration_flags, cl_uint, const cl_event*, cl_event*) {
    return refuse_on(where);
}

cl_int set_kernel_arg_svm_pointer(cl_kernel handle, cl_uint, const void*) {
    return from_handle<kernel>(handle) ? CL_INVALID_OPERATION : CL_INVALID_KERNEL;
}

// Pipes: CL_DEVICE_PIPE_SUPPORT is false.
cl_mem create_pipe(cl_context where, cl_mem_flags, cl_uint, cl_uint, const cl_pipe_properties*,
                   cl_int* errcode) {
    return refuse_in(where, errcode);
}

cl_int get_pipe_info(cl_mem, cl_pipe_info, size_t, void*, size_t*) {
    return CL_INVALID_MEM_OBJECT; // no memory object is a pipe
}

// cl_ext_device_fission
cl_int create_sub_devices_ext(cl_device_id handle, const cl_device_partition_property_ext*, cl_uint,
                              cl_device_id*, cl_uint*) {
    return from_handle<device>(handle) ? CL_INVALID_VALUE : CL_INVALID_DEVICE;
}

cl_int retain_device_ext(cl_device_id handle) {
    return retain_device(handle);
}

cl_int release_device_ext(cl_device_id handle) {
    return release_device(handle);
}

// cl_khr_gl_sharing, cl_khr_gl_event
cl_mem create_from_gl_buffer(cl_context where, cl_mem_flags, cl_GLuint, cl_int* errcode) {
    return refuse_in(where, errcode);
}

cl_mem create_from_gl_texture(cl_context where, cl_mem_flags, cl_GLenum, cl_GLint, cl_GLuint,
                              cl_int* errcode) {
    return refuse_in(where, errcode);
}

cl_mem create_from_gl_texture2d(cl_context where, cl_mem_flags, cl_GLenum, cl_GLint, cl_GLuint,
                                cl_int* errcode) {
    return refuse_in(where, errcode);
}

cl_mem create_from_gl_texture3d(cl_context where, cl_mem_flags, cl_GLenum, cl_GLint, cl_GLuint,
                                cl_int* errcode) {
    return refuse_in(where, errcode);
}

cl_mem create_from_gl_renderbuffer(cl_context where, cl_mem_flags, cl_GLuint, cl_int* errcode) {
    return refuse_in(where, errcode);
}

cl_int get_gl_object_info(cl_mem handle, cl_gl_object_type*, cl_GLuint*) {
    return from_handle<memory>(handle) ? CL_INVALID_GL_OBJECT : CL_INVALID_MEM_OBJECT;
}

cl_int get_gl_texture_info(cl_mem handle, cl_gl_texture_info, size_t, void*, size_t*) {
    return from_handle<memory>(handle) ? CL_INVALID_GL_OBJECT : CL_INVALID_MEM_OBJECT;
}

cl_int enqueue_acquire_gl_objects(cl_command_queue where, cl_uint, const cl_mem*, cl_uint, const cl_event*,
                                  cl_event*) {
    return refuse_on(where);
}

cl_int enqueue_release_gl_objects(cl_command_queue where, cl_uint, const cl_mem*, cl_uint, const cl_event*,
                                  cl_event*) {
    return refuse_on(where);
}

cl_int get_gl_context_info_khr(const cl_context_properties*, cl_gl_context_info, size_t, void*, size_t*) {
    return CL_INVALID_OPERATION;
}

cl_event create_event_from_gl_sync_khr(cl_context where, cl_GLsync, cl_int* errcode) {
    return fail<cl_event>(errcode, from_handle<context>(where) ? CL_INVALID_OPERATION : CL_INVALID_CONTEXT);
}

// cl_khr_egl_image, cl_khr_egl_event
cl_mem create_from_egl_image_khr(cl_context where, CLeglDisplayKHR, CLeglImageKHR, cl_mem_flags,
                                 const cl_egl_image_properties_khr*, cl_int* errcode) {
    return refuse_in(where, errcode);
}

cl_int enqueue_acquire_egl_objects_khr(cl_command_queue where, cl_uint, const cl_mem*, cl_uint,
                                       const cl_event*, cl_event*) {
    return refuse_on(where);
}

cl_int enqueue_release_egl_objects_khr(cl_command_queue where, cl_uint, const cl_mem*, cl_uint,
                                       const cl_event*, cl_event*) {
    return refuse_on(where);
}

cl_event create_event_from_egl_sync_khr(cl_context where, CLeglSyncKHR, CLeglDisplayKHR, cl_int* errcode) {
    return fail<cl_event>(errcode, from_handle<context>(where) ? CL_INVALID_OPERATION : CL_INVALID_CONTEXT);
}

} // namespace api
} // namespace kagemusha::opencl
