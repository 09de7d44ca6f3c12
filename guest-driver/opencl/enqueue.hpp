// SPDX-License-Identifier: GPL-2.0-or-later
//
// What every clEnqueue… function has in common: queue and wait list are checked, the command gets its event
// if one is needed, goes into the batch, and a blocking call waits for it.
#pragma once

#include "batch.hpp"
#include "event.hpp"
#include "queue.hpp"

#include <span>
#include <vector>

namespace kagemusha::opencl {

class enqueueing {
public:
    enqueueing(cl_command_queue where, cl_command_type command, cl_uint wait_count, const cl_event* wait_list,
               cl_event* event_out, bool blocking = false);

    // CL_SUCCESS, or what was wrong with queue or wait list. Nothing else may be called after an error.
    cl_int error() const noexcept { return error_; }

    queue& where() const noexcept { return *where_; }
    context& owner() const noexcept { return where_->owner(); }

    // Something that has to live until the command is over.
    void keep(ref<object> needed) { kept_ = std::move(needed); }

    // Where in the program's memory the command's bytes come from (`writes`) or go to. Before a write this
    // waits for earlier commands that still read into this memory: a program may put both into a queue
    // without waiting, but the bytes of a write are taken when it is sent. False: it did not wait, because
    // the program may have to set a user event first; then the bytes must at least not go inline.
    bool order_with_reads(bool writes, const void* first, std::size_t bytes);

    // A blocking write, whose bytes may be all that the program waits for (early_writes.hpp).
    void wait_for_bytes_only() noexcept { bytes_suffice_ = blocking_ && !event_out_ && where_->in_order(); }
    // They are in the command that is sent next. What the program's list has may fail, which is the call's
    // error.
    void take_bytes() noexcept { returns_early_ = bytes_suffice_ && wait_ids_.size() == written_.size(); }

    // Sends the command. The views are those of the row's parts behind the wait list.
    template <class Row, class... View>
    cl_int send(command_of<Row>& command, const View&... view) {
        return send(false, command, view...);
    }

    // One of several commands that together are what the program asked for; the last is send() or join().
    template <class Row, class... View>
    cl_int send_step(command_of<Row>& command, const View&... view) {
        return send(true, command, view...);
    }

    // As make_outgoing() without a row. `more`: what follows the wait list.
    template <class Command>
        requires(!requires { typename Command::row; })
    cl_int send(Command& command, std::initializer_list<part> more = {}) {
        ref<event> made;
        const cl_int error = begin(false, command.cmd.opcode, command.enqueue, made);
        if (error != CL_SUCCESS)
            return error;
        command.enqueue.wait_count = static_cast<__u32>(wait_ids_.size());
        std::array<part, 3> parts{{{wait_ids_.data(), wait_ids_.size() * sizeof wait_ids_[0]}}};
        std::copy(more.begin(), more.end(), parts.begin() + 1);
        return end(false, make_outgoing(command, std::span<const part>(parts).first(1 + more.size())),
                   std::move(made));
    }

    // The end of several steps: complete when all of them are. Also the command for "nothing to do but
    // wait".
    cl_int join();

private:
    void read_wait_list(cl_uint count, const cl_event* list);
    void wait_for_early_writes();
    void note_change();
    template <class Row, class... View>
    cl_int send(bool step, command_of<Row>& command, const View&... view) {
        ref<event> made;
        if (const cl_int error = begin(step, Row::opcode, command.enqueue, made); error != CL_SUCCESS)
            return error;
        return end(step, make_outgoing(command, codec::id_list(wait_ids_), view...), std::move(made));
    }
    cl_int begin(bool step, std::uint16_t opcode, vgpu_enqueue& enqueue, ref<event>& made);
    cl_int end(bool step, const outgoing& out, ref<event> made);
    cl_int shorten_wait_list();

    queue* where_ = nullptr;
    const cl_command_type command_;
    cl_event* const event_out_;
    const bool blocking_;
    bool bytes_suffice_ = false, returns_early_ = false;
    cl_int error_ = CL_SUCCESS;
    std::vector<std::uint64_t> wait_ids_; // stays without memory for the usual empty list
    std::uint64_t complete_id_ = 0;       // one of the wait list that need not be waited for
    std::vector<ref<event>> steps_;
    std::vector<ref<event>> written_; // named in the wait list: their ids must stay valid
    std::span<const std::byte> read_into_;
    ref<object> kept_;
};

// clFinish.
cl_int finish_queue(queue& where);

// An event behind the early writes of a queue, for who has to wait for them.
cl_int mark_early_write(queue& where, ref<event>& marker);

// Waits for an event as a blocking call does: flushes first, then gives the command's error or an earlier
// one of its queue.
cl_int wait_blocking(event& awaited, queue& where);

} // namespace kagemusha::opencl
