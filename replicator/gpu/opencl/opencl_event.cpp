// SPDX-License-Identifier: GPL-2.0-or-later
// opencl_event: completions, on threads of the OpenCL runtime. Nothing here calls a function that the standard forbids in
// an event callback (those that wait).
#include "gpu/opencl/opencl_device.hpp"

namespace kagemusha::gpu {

std::int32_t opencl_event::notify(callback fn, void* data) {
    callback_ = fn;
    callback_data_ = data;
    return api_.clSetEventCallback(last_.get(), CL_COMPLETE, &opencl_event::completed, this);
}

void CL_CALLBACK opencl_event::completed(cl_event, cl_int status, void* self) {
    auto& event = *static_cast<opencl_event*>(self);
    if (event.rest_)
        event.rest_->finish(status >= 0);
    if (status >= 0 && event.error_ != CL_SUCCESS)
        status = event.error_;
    event.callback_(event.callback_data_, status); // may destroy the event
}

bool opencl_event::timing(event_timing& out) const {
    const cl_event first = first_ ? first_.get() : last_.get();
    const auto ask = [&](cl_event event, cl_profiling_info name, std::uint64_t& value) {
        cl_ulong ns = 0;
        const bool known =
            api_.clGetEventProfilingInfo(event, name, sizeof(ns), &ns, nullptr) == CL_SUCCESS;
        value = ns;
        return known;
    };
    return ask(first, CL_PROFILING_COMMAND_QUEUED, out.queued_ns) &&
           ask(first, CL_PROFILING_COMMAND_SUBMIT, out.submit_ns) &&
           ask(first, CL_PROFILING_COMMAND_START, out.start_ns) &&
           ask(last_.get(), CL_PROFILING_COMMAND_END, out.end_ns);
}

std::int32_t opencl_event::set_status(std::int32_t status) {
    return api_.clSetUserEventStatus(last_.get(), status);
}

} // namespace kagemusha::gpu
