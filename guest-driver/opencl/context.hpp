// SPDX-License-Identifier: GPL-2.0-or-later
//
// Contexts. Everything that is made in a context goes through the connection that the context was made on.
#pragma once

#include "connection.hpp"
#include "device.hpp"
#include "early_writes.hpp"
#include "object.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace kagemusha::opencl {

class context : public object {
public:
    static constexpr object_kind kind_of_class = object_kind::context;
    using destructor_callback = void(CL_CALLBACK*)(cl_context, void*);

    context(device& gpu, std::shared_ptr<connection> link, std::vector<cl_context_properties> properties);
    ~context();

    // Makes it on the host; only then it is to be destroyed there.
    cl_int create();

    device& gpu() const noexcept { return gpu_; }
    connection& link() const noexcept { return *link_; }
    std::uint64_t id() const noexcept { return id_; }
    const std::vector<cl_context_properties>& properties() const noexcept { return properties_; }
    early_writes& writes() noexcept { return early_writes_; }

    void add_destructor_callback(destructor_callback function, void* data);

    // A queue was made, or memory was mapped in the window. With several queues and such memory the context
    // gets a queue for what is stored there (flush_order.hpp).
    void note_queue();
    void note_window();
    // No other queue was ever made in it.
    bool has_one_queue();

    // How often something was enqueued that may change a buffer which a host view shows (memory::keep_view()).
    // Counted before it is.
    std::uint64_t changes() const noexcept { return changes_.load(std::memory_order_acquire); }
    void note_change() noexcept { changes_.fetch_add(1, std::memory_order_acq_rel); }

private:
    void need_flush_queue_locked();

    device& gpu_;
    const std::shared_ptr<connection> link_;
    const std::uint64_t id_;
    const std::vector<cl_context_properties> properties_;
    bool created_ = false;
    early_writes early_writes_;
    std::mutex mutex_;
    std::vector<std::pair<destructor_callback, void*>> destructor_callbacks_;

    std::atomic<std::uint64_t> changes_{0};

    std::mutex flush_mutex_;
    unsigned queues_ = 0; // made so far
    bool has_window_ = false;
    std::uint64_t flush_queue_ = 0;
};

} // namespace kagemusha::opencl
