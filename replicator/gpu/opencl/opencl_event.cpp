// SPDX-License-Identifier: GPL-2.0-or-later
// opencl_event: completions, on threads of the OpenCL runtime or of event_poller. Nothing here calls a
// function that the standard forbids in an event callback (those that wait).
#include "gpu/opencl/event_poller.hpp"
#include "gpu/opencl/opencl_device.hpp"
#include "gpu/opencl/pending_events.hpp"

namespace kagemusha::gpu {

namespace {

// What PoCL gives a command that it did not run because one in its wait list failed. As an execution status
// the number has no meaning in the standard, which has another one for this.
constexpr cl_int pocl_failed = -1;

} // namespace

opencl_event::~opencl_event() {
    if (keep_failed_ && poll() < 0)
        pending_events::instance().keep(std::move(last_));
}

std::int32_t opencl_event::notify(callback fn, void* data) {
    callback_ = fn;
    callback_data_ = data;
    if (polled_) {
        event_poller::instance().add(*this, place_.lane, place_.in_order);
        return CL_SUCCESS;
    }
    const cl_event native = last_.get();
    const opencl_api& api = api_;
    // From add() on the event may finish and be destroyed at any time.
    const std::uint64_t number = pending_events::instance().add(*this, place_, waits_);
    const cl_int error = api.clSetEventCallback(native, CL_COMPLETE, &opencl_event::completed,
                                                reinterpret_cast<void*>(number));
    if (error != CL_SUCCESS)
        pending_events::instance().remove(number);
    return error;
}

void CL_CALLBACK opencl_event::completed(cl_event, cl_int status, void* number) {
    pending_events::instance().called_back(reinterpret_cast<std::uint64_t>(number), status);
}

void opencl_event::finish(std::int32_t status) {
    if (status == pocl_failed)
        status = CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
    settle(status);
    if (status >= 0 && error_ != CL_SUCCESS)
        status = error_;
    callback_(callback_data_, status); // may destroy this event
}

void opencl_event::settle(std::int32_t status) {
    if (!rest_)
        return;
    const std::int32_t told = rest_->finish(status);
    if (status >= 0 && told < 0)
        error_ = told;
    rest_.reset(); // staging and payload must not wait for the guest to let go of the event
}

std::int32_t opencl_event::poll() const {
    // NVIDIA's runtime answers the question itself with an error once a kernel has broken the context.
    cl_int status = CL_QUEUED;
    const cl_int error =
        api_.clGetEventInfo(last_.get(), CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, nullptr);
    return error < 0 ? error : status;
}

void ask_backwards(std::span<opencl_event* const> events, const opencl_event* told, std::int32_t status,
                   std::vector<std::int32_t>& states) {
    states.resize(events.size());
    for (std::size_t i = events.size(); i-- > 0;)
        states[i] = events[i] == told ? status : events[i]->poll();
}

bool opencl_event::timing(event_timing& out) const {
    const cl_event first = first_ ? first_.get() : last_.get();
    const auto ask = [&](cl_event event, cl_profiling_info name, std::uint64_t& value) {
        cl_ulong ns = 0;
        const bool known = api_.clGetEventProfilingInfo(event, name, sizeof(ns), &ns, nullptr) == CL_SUCCESS;
        value = ns;
        return known;
    };
    return ask(first, CL_PROFILING_COMMAND_QUEUED, out.queued_ns) &&
           ask(first, CL_PROFILING_COMMAND_SUBMIT, out.submit_ns) &&
           ask(first, CL_PROFILING_COMMAND_START, out.start_ns) &&
           ask(last_.get(), CL_PROFILING_COMMAND_END, out.end_ns);
}

std::int32_t opencl_event::set_status(std::int32_t status) {
    unset_ = {};
    return status < 0 ? pending_events::instance().fail(api_, last_.get(), status)
                      : api_.clSetUserEventStatus(last_.get(), status);
}

} // namespace kagemusha::gpu
