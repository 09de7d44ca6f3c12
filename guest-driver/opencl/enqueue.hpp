// SPDX-License-Identifier: GPL-2.0-or-later
//
// What every clEnqueue… function has in common: queue and wait list are checked, the command gets its event
// if one is needed, goes into the batch, and a blocking call waits for it.
#pragma once

#include "batch.hpp"
#include "event.hpp"
#include "queue.hpp"

#include <vector>

namespace kagemusha::opencl {

class enqueueing {
public:
    enqueueing(cl_command_queue where, cl_command_type command, cl_uint wait_count, const cl_event* wait_list,
               cl_event* event_out, bool blocking = false);

    /// CL_SUCCESS, or what was wrong with queue or wait list. Nothing else may be called after an error.
    cl_int error() const noexcept { return error_; }

    queue& where() const noexcept { return *where_; }
    context& owner() const noexcept { return where_->owner(); }

    /// Something that has to live until the command is over.
    void keep(ref<object> needed) { kept_ = std::move(needed); }

    /// Sends the command. `more`: what follows the wait list; `reference` with `data`: its payload.
    template <class Command>
    cl_int send(Command& command, std::initializer_list<part> more = {},
                vgpu_payload_ref* reference = nullptr, const payload& data = {}) {
        return send(command.cmd, sizeof command, command.enqueue, more, reference, data, false);
    }

    /// One of several commands that together are what the program asked for; the last is send() or join().
    template <class Command>
    cl_int send_step(Command& command, std::initializer_list<part> more = {},
                     vgpu_payload_ref* reference = nullptr, const payload& data = {}) {
        return send(command.cmd, sizeof command, command.enqueue, more, reference, data, true);
    }

    /// The end of several steps: complete when all of them are. Also the command for "nothing to do but
    /// wait".
    cl_int join();

private:
    void read_wait_list(cl_uint count, const cl_event* list);
    cl_int send(vgpu_cmd& command, std::size_t bytes, vgpu_enqueue& enqueue, std::initializer_list<part> more,
                vgpu_payload_ref* reference, const payload& data, bool step);
    cl_int shorten_wait_list();

    queue* where_ = nullptr;
    const cl_command_type command_;
    cl_event* const event_out_;
    const bool blocking_;
    cl_int error_ = CL_SUCCESS;
    std::vector<std::uint64_t> wait_ids_; // stays without memory for the usual empty list
    std::uint64_t complete_id_ = 0;       // one of the wait list that need not be waited for
    std::vector<ref<event>> steps_;
    ref<object> kept_;
};

/// clFinish.
cl_int finish_queue(queue& where);

/// Waits for an event as a blocking call does: flushes first, then gives the command's error or an earlier
/// one of its queue.
cl_int wait_blocking(event& awaited, queue& where);

} // namespace kagemusha::opencl
