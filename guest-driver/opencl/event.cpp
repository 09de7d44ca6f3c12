// SPDX-License-Identifier: GPL-2.0-or-later
//
// The state machine of events; event.hpp has the idea, event_api.cpp the functions of the API.
#include "event.hpp"

#include "callback_thread.hpp"
#include "connection.hpp"
#include "context.hpp"
#include "queue.hpp"

#include <algorithm>

namespace kagemusha::opencl {

event::event(ref<context> owner, ref<queue> where, cl_command_type command)
    : object(kind_of_class)
    , owner_(std::move(owner))
    , where_(std::move(where))
    , command_(command)
    , id_(owner_->link().new_id())
    , status_(command == CL_COMMAND_USER ? CL_SUBMITTED : CL_QUEUED) {}

event::~event() {
    if (known_to_device())
        owner_->link().destroy(VGPU_OBJECT_EVENT, id_);
}

void event::mark_submitted() {
    cl_int queued = CL_QUEUED;
    if (!status_.compare_exchange_strong(queued, CL_SUBMITTED, std::memory_order_acq_rel))
        return;
    std::vector<waiting_callback> ready;
    {
        const std::lock_guard held(callbacks_mutex_);
        const auto later =
            std::stable_partition(callbacks_.begin(), callbacks_.end(),
                                  [](const waiting_callback& one) { return one.type == CL_SUBMITTED; });
        ready.assign(callbacks_.begin(), later);
        callbacks_.erase(callbacks_.begin(), later);
    }
    run_callbacks(std::move(ready), CL_SUBMITTED);
}

bool event::complete(cl_int status, const profiling_times& times) {
    std::vector<waiting_callback> ready;
    ref<object> kept;
    {
        // The lock orders this with add_callback(): each callback is run by exactly one of the two.
        const std::lock_guard held(callbacks_mutex_);
        if (is_over())
            return false;
        times_ = times;
        status_.store(status, std::memory_order_release);
        ready.swap(callbacks_);
        kept = std::move(kept_);
    }
    status_.notify_all();
    if (!read_into_.empty())
        owner_->link().end_read();
    // In the order of the states: a failed command runs all of them with its error.
    std::stable_sort(ready.begin(), ready.end(),
                     [](const waiting_callback& a, const waiting_callback& b) { return a.type > b.type; });
    run_callbacks(std::move(ready), status);
    return true;
}

cl_int event::wait() const noexcept {
    if (!is_over() && where_)
        owner_->link().read_until_over(*this);
    cl_int now = status();
    while (now > CL_COMPLETE) {
        status_.wait(now, std::memory_order_acquire);
        now = status();
    }
    return now;
}

void event::add_callback(cl_int type, callback function, void* data) {
    cl_int now;
    {
        const std::lock_guard held(callbacks_mutex_);
        now = status();
        if (now > type) {
            callbacks_.push_back({type, function, data});
            return;
        }
    }
    run_callbacks({{type, function, data}}, now);
}

void event::run_callbacks(std::vector<waiting_callback> ready, cl_int status) {
    if (ready.empty())
        return;
    run_in_callback_thread([self = ref<event>(this), ready = std::move(ready), status] {
        for (const waiting_callback& one : ready)
            one.function(to_handle<cl_event>(self.get()), status < 0 ? status : one.type, one.data);
    });
}

} // namespace kagemusha::opencl
