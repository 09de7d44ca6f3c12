// SPDX-License-Identifier: GPL-2.0-or-later
//
// Command queues.
#pragma once

#include "context.hpp"

#include <atomic>
#include <deque>
#include <vector>

namespace kagemusha::opencl {

class event;

class queue : public object {
public:
    static constexpr object_kind kind_of_class = object_kind::queue;

    queue(ref<context> owner, cl_command_queue_properties properties,
          std::vector<cl_queue_properties> property_list);
    ~queue();

    cl_int create();

    context& owner() const noexcept { return *owner_; }
    const ref<context>& owner_ref() const noexcept { return owner_; }
    std::uint64_t id() const noexcept { return id_; }
    cl_command_queue_properties properties() const noexcept { return properties_; }
    const std::vector<cl_queue_properties>& property_list() const noexcept { return property_list_; }
    bool in_order() const noexcept { return !(properties_ & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE); }
    bool profiles() const noexcept { return properties_ & CL_QUEUE_PROFILING_ENABLE; }

    // A command without an event failed; the first error stays until it is taken.
    void set_error(cl_int error) noexcept {
        cl_int none = CL_SUCCESS;
        error_.compare_exchange_strong(none, error < 0 ? error : CL_OUT_OF_RESOURCES);
    }
    cl_int take_error() noexcept {
        return error_.load() == CL_SUCCESS ? CL_SUCCESS : error_.exchange(CL_SUCCESS);
    }

    // Events that are not complete, in the order of an in-order queue; the connection's.
    std::deque<event*> in_flight;

    // Of an in-order queue: the last of its commands that was waited for and ended well (event::command_number).
    std::atomic<std::uint64_t> over_until{0};

    // Something was enqueued and the host was not told to flush since.
    std::atomic<bool> needs_flush{false};

private:
    const ref<context> owner_;
    const std::uint64_t id_;
    const cl_command_queue_properties properties_;
    const std::vector<cl_queue_properties> property_list_;
    bool created_ = false;
    std::atomic<cl_int> error_{CL_SUCCESS};
};

} // namespace kagemusha::opencl
