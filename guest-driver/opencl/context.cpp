// SPDX-License-Identifier: GPL-2.0-or-later
//
// Contexts and the functions of the API about them.
#include "context.hpp"

#include "api.hpp"

#include <cstdio>

namespace kagemusha::opencl {

context::context(device& gpu, std::shared_ptr<connection> link, std::vector<cl_context_properties> properties)
    : object(kind_of_class)
    , gpu_(gpu)
    , link_(std::move(link))
    , id_(link_->new_id())
    , properties_(std::move(properties)) {}

context::~context() {
    for (auto one = destructor_callbacks_.rbegin(); one != destructor_callbacks_.rend(); ++one)
        one->first(to_handle<cl_context>(this), one->second);
    if (flush_queue_)
        link_->remove_flush_queue(id_);
    if (created_)
        link_->destroy(VGPU_OBJECT_CONTEXT, id_);
}

cl_int context::create() {
    auto command = make_command<commands::create_context>();
    command.id = id_;
    const cl_int error = link_->call(make_outgoing(command));
    created_ = error == CL_SUCCESS;
    return error;
}

void context::note_queue() {
    const std::lock_guard held(flush_mutex_);
    ++queues_;
    need_flush_queue_locked();
}

bool context::has_one_queue() {
    const std::lock_guard held(flush_mutex_);
    return queues_ == 1;
}

void context::note_window() {
    const std::lock_guard held(flush_mutex_);
    has_window_ = true;
    need_flush_queue_locked();
}

void context::need_flush_queue_locked() {
    if (flush_queue_ || !has_window_ || (queues_ < 2 && link_->flush_interval_ms() == 0))
        return;
    auto command = make_command<commands::create_queue>();
    command.id = link_->new_id();
    command.context = id_;
    if (const cl_int error = link_->call(make_outgoing(command)); error != CL_SUCCESS) {
        std::fprintf(stderr,
                     "kagemusha: no queue for stores into mapped memory (error %d); the queues of this "
                     "context are not in order with them\n",
                     error);
        return;
    }
    flush_queue_ = command.id;
    link_->add_flush_queue(id_, flush_queue_);
}

void context::add_destructor_callback(destructor_callback function, void* data) {
    const std::lock_guard held(mutex_);
    destructor_callbacks_.emplace_back(function, data);
}

namespace {

// Copies the list with its 0; false if it has a property that means nothing here, with the error in `error`.
bool read_properties(const cl_context_properties* list, std::vector<cl_context_properties>& copy,
                     cl_int& error) {
    if (!list)
        return true;
    bool platform_seen = false, sync_seen = false;
    for (; *list; list += 2) {
        switch (*list) {
        case CL_CONTEXT_PLATFORM:
            if (platform_seen || !from_handle<platform>(reinterpret_cast<cl_platform_id>(list[1]))) {
                error = platform_seen ? CL_INVALID_PROPERTY : CL_INVALID_PLATFORM;
                return false;
            }
            platform_seen = true;
            break;
        case CL_CONTEXT_INTEROP_USER_SYNC:
            if (sync_seen || (list[1] != CL_TRUE && list[1] != CL_FALSE)) {
                error = CL_INVALID_PROPERTY;
                return false;
            }
            sync_seen = true;
            break;
        default:
            error = CL_INVALID_PROPERTY;
            return false;
        }
        copy.push_back(list[0]);
        copy.push_back(list[1]);
    }
    copy.push_back(0);
    return true;
}

cl_context create(device& gpu, const cl_context_properties* list, cl_int* errcode) {
    std::vector<cl_context_properties> properties;
    cl_int error = CL_SUCCESS;
    if (!read_properties(list, properties, error))
        return fail<cl_context>(errcode, error);
    auto link = gpu.link();
    if (!link)
        return fail<cl_context>(errcode, CL_DEVICE_NOT_AVAILABLE);
    ref<context> made = make_object<context>(gpu, std::move(link), std::move(properties));
    if (!made)
        return fail<cl_context>(errcode, CL_OUT_OF_HOST_MEMORY);
    error = made->create();
    if (error != CL_SUCCESS)
        return fail<cl_context>(errcode, error);
    succeed(errcode);
    return hand_out<cl_context>(std::move(made));
}

} // namespace

namespace api {

cl_context create_context(const cl_context_properties* properties, cl_uint num_devices,
                          const cl_device_id* devices,
                          void(CL_CALLBACK* notify)(const char*, const void*, size_t, void*), void* user_data,
                          cl_int* errcode) {
    // Errors of this driver reach the program as return values and event states; there is nothing that only
    // `notify` could tell, so it is accepted and never called.
    if (!devices || num_devices == 0 || (!notify && user_data))
        return fail<cl_context>(errcode, CL_INVALID_VALUE);
    // Devices have no memory in common, not even the one process on the host that a context would be in: a
    // context is one device's (which may be named more than once).
    for (cl_uint i = 0; i < num_devices; ++i)
        if (!from_handle<device>(devices[i]) || devices[i] != devices[0])
            return fail<cl_context>(errcode, CL_INVALID_DEVICE);
    return create(*from_handle<device>(devices[0]), properties, errcode);
}

cl_context create_context_from_type(const cl_context_properties* properties, cl_device_type type,
                                    void(CL_CALLBACK* notify)(const char*, const void*, size_t, void*),
                                    void* user_data, cl_int* errcode) {
    if (!notify && user_data)
        return fail<cl_context>(errcode, CL_INVALID_VALUE);
    cl_device_id handle = nullptr;
    const cl_int error = get_device_ids(nullptr, type, 1, &handle, nullptr);
    if (error != CL_SUCCESS)
        return fail<cl_context>(errcode, error);
    return create(*from_handle<device>(handle), properties, errcode);
}

cl_int retain_context(cl_context handle) {
    context* const one = from_handle<context>(handle);
    if (!one)
        return CL_INVALID_CONTEXT;
    one->retain_for_user();
    return CL_SUCCESS;
}

cl_int release_context(cl_context handle) {
    context* const one = from_handle<context>(handle);
    return one && one->release_for_user() ? CL_SUCCESS : CL_INVALID_CONTEXT;
}

cl_int get_context_info(cl_context handle, cl_context_info name, size_t size, void* value, size_t* size_ret) {
    const info_answer to(size, value, size_ret);
    context* const one = from_handle<context>(handle);
    if (!one)
        return CL_INVALID_CONTEXT;
    switch (name) {
    case CL_CONTEXT_REFERENCE_COUNT:
        return to.value<cl_uint>(one->user_references.load());
    case CL_CONTEXT_NUM_DEVICES:
        return to.value<cl_uint>(1);
    case CL_CONTEXT_DEVICES:
        return to.value(to_handle<cl_device_id>(&one->gpu()));
    case CL_CONTEXT_PROPERTIES:
        return to.array(std::span<const cl_context_properties>(one->properties()));
    default:
        return CL_INVALID_VALUE;
    }
}

cl_int set_context_destructor_callback(cl_context handle, void(CL_CALLBACK* notify)(cl_context, void*),
                                       void* user_data) {
    context* const one = from_handle<context>(handle);
    if (!one)
        return CL_INVALID_CONTEXT;
    if (!notify)
        return CL_INVALID_VALUE;
    one->add_destructor_callback(notify, user_data);
    return CL_SUCCESS;
}

} // namespace api
} // namespace kagemusha::opencl
