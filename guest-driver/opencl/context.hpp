// SPDX-License-Identifier: GPL-2.0-or-later
//
// Contexts. Everything that is made in a context goes through the connection that the context was made on.
#pragma once

#include "connection.hpp"
#include "device.hpp"
#include "early_writes.hpp"
#include "object.hpp"

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

    std::mutex flush_mutex_;
    unsigned queues_ = 0; // made so far
    bool has_window_ = false;
    std::uint64_t flush_queue_ = 0;
};

} // namespace kagemusha::opencl
