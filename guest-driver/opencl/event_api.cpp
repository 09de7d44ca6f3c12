// SPDX-License-Identifier: GPL-2.0-or-later
//
// The functions of the API about events.
#include "api.hpp"
#include "connection.hpp"
#include "context.hpp"
#include "event.hpp"
#include "info.hpp"
#include "queue.hpp"

namespace kagemusha::opencl::api {

cl_event create_user_event(cl_context handle, cl_int* errcode) {
    context* const owner = from_handle<context>(handle);
    if (!owner)
        return fail<cl_event>(errcode, CL_INVALID_CONTEXT);
    ref<event> made = make_object<event>(ref<context>(owner), ref<queue>(), CL_COMMAND_USER);
    if (!made)
        return fail<cl_event>(errcode, CL_OUT_OF_HOST_MEMORY);
    auto command = make_command<commands::create_user_event>();
    command.id = made->id();
    command.context = owner->id();
    const cl_int error = owner->link().call(make_outgoing(command));
    if (error != CL_SUCCESS)
        return fail<cl_event>(errcode, error);
    made->set_known_to_device(true);
    owner->link().add_user_event();
    succeed(errcode);
    return hand_out<cl_event>(std::move(made));
}

cl_int set_user_event_status(cl_event handle, cl_int status) {
    event* const one = from_handle<event>(handle);
    if (!one || !one->is_user_event())
        return CL_INVALID_EVENT;
    if (status > CL_COMPLETE)
        return CL_INVALID_VALUE;
    if (!one->claim_user_status())
        return CL_INVALID_OPERATION;
    const ref<event> alive(one);
    const cl_int error = one->owner().link().set_user_event(one->id(), status);
    one->owner().link().remove_user_event();
    one->complete(status);
    return error;
}

cl_int wait_for_events(cl_uint count, const cl_event* list) {
    if (count == 0 || !list)
        return CL_INVALID_VALUE;
    event* const first = from_handle<event>(list[0]);
    for (cl_uint i = 0; i < count; ++i) {
        event* const one = from_handle<event>(list[i]);
        if (!one)
            return CL_INVALID_EVENT;
        if (&one->owner() != &first->owner())
            return CL_INVALID_CONTEXT;
    }
    connection& link = first->owner().link();
    for (cl_uint i = 0; i < count; ++i) {
        event* const one = from_handle<event>(list[i]);
        if (one && !one->is_over())
            link.flush(one->where());
    }
    cl_int result = CL_SUCCESS;
    for (cl_uint i = 0; i < count; ++i) {
        event* const one = from_handle<event>(list[i]);
        if (!one)
            return CL_INVALID_EVENT;
        const ref<event> alive(one);
        if (one->wait() < 0)
            result = CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
    }
    return result;
}

cl_int get_event_info(cl_event handle, cl_event_info name, size_t size, void* value, size_t* size_ret) {
    const info_answer to(size, value, size_ret);
    event* const one = from_handle<event>(handle);
    if (!one)
        return CL_INVALID_EVENT;
    switch (name) {
    case CL_EVENT_COMMAND_QUEUE:
        return to.value(to_handle<cl_command_queue>(one->where()));
    case CL_EVENT_CONTEXT:
        return to.value(to_handle<cl_context>(&one->owner()));
    case CL_EVENT_COMMAND_TYPE:
        return to.value(one->command());
    case CL_EVENT_COMMAND_EXECUTION_STATUS: {
        const cl_int status = one->status();
        // A program that polls without a flush must get on too.
        if (status == CL_QUEUED ||
            (status == CL_SUBMITTED && one->where() && one->where()->needs_flush.load()))
            one->owner().link().flush(one->where());
        return to.value(status);
    }
    case CL_EVENT_REFERENCE_COUNT:
        return to.value<cl_uint>(one->user_references.load());
    default:
        return CL_INVALID_VALUE;
    }
}

cl_int retain_event(cl_event handle) {
    event* const one = from_handle<event>(handle);
    if (!one)
        return CL_INVALID_EVENT;
    one->retain_for_user();
    return CL_SUCCESS;
}

cl_int release_event(cl_event handle) {
    event* const one = from_handle<event>(handle);
    return one && one->release_for_user() ? CL_SUCCESS : CL_INVALID_EVENT;
}

cl_int get_event_profiling_info(cl_event handle, cl_profiling_info name, size_t size, void* value,
                                size_t* size_ret) {
    const info_answer to(size, value, size_ret);
    event* const one = from_handle<event>(handle);
    if (!one)
        return CL_INVALID_EVENT;
    if (one->is_user_event() || !one->where()->profiles() || one->status() != CL_COMPLETE)
        return CL_PROFILING_INFO_NOT_AVAILABLE;
    const profiling_times& times = one->times();
    switch (name) {
    case CL_PROFILING_COMMAND_QUEUED:
        return to.value(times.queued);
    case CL_PROFILING_COMMAND_SUBMIT:
        return to.value(times.submit);
    case CL_PROFILING_COMMAND_START:
        return to.value(times.start);
    case CL_PROFILING_COMMAND_END:
    case CL_PROFILING_COMMAND_COMPLETE: // no kernel starts others, so that is the same instant
        return to.value(times.end);
    default:
        return CL_INVALID_VALUE;
    }
}

cl_int set_event_callback(cl_event handle, cl_int type, void(CL_CALLBACK* notify)(cl_event, cl_int, void*),
                          void* user_data) {
    event* const one = from_handle<event>(handle);
    if (!one)
        return CL_INVALID_EVENT;
    if (!notify || (type != CL_SUBMITTED && type != CL_RUNNING && type != CL_COMPLETE))
        return CL_INVALID_VALUE;
    one->add_callback(type, notify, user_data);
    if (!one->is_over() && one->where())
        one->owner().link().flush(one->where());
    return CL_SUCCESS;
}

} // namespace kagemusha::opencl::api
