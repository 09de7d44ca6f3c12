// SPDX-License-Identifier: GPL-2.0-or-later
//
// Events: the state of an enqueued command as the program sees it, and user events. State only moves forward:
// queued, submitted, (running and) complete or failed. The last step is taken once, by whoever comes first:
// the device's record, a failed submit or the loss of the connection.
#pragma once

#include "object.hpp"
#include "reading_turn.hpp"

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace kagemusha::opencl {

class connection;
class context;
class queue;

// The GPU's clock, nanoseconds.
struct profiling_times {
    cl_ulong queued = 0, submit = 0, start = 0, end = 0;
};

class event : public object {
public:
    static constexpr object_kind kind_of_class = object_kind::event;
    using callback = void(CL_CALLBACK*)(cl_event, cl_int, void*);

    // `where` is null for a user event.
    event(ref<context> owner, ref<queue> where, cl_command_type command);
    ~event();

    std::uint64_t id() const noexcept { return id_; }
    cl_command_type command() const noexcept { return command_; }
    context& owner() const noexcept { return *owner_; }
    queue* where() const noexcept { return where_.get(); }
    bool is_user_event() const noexcept { return command_ == CL_COMMAND_USER; }

    cl_int status() const noexcept { return status_.load(std::memory_order_acquire); }
    bool is_over() const noexcept { return status() <= CL_COMPLETE; }

    // CL_SUBMITTED, unless it is further already.
    void mark_submitted();

    // The last step; false if it was over before. Runs callbacks in their own thread.
    bool complete(cl_int status, const profiling_times& times = {});

    // Returns the final status: CL_COMPLETE or an error. Does not flush.
    cl_int wait() const noexcept;

    void add_callback(cl_int type, callback function, void* data);

    // Valid when it is over.
    const profiling_times& times() const noexcept { return times_; }

    // Keeps something alive until the command is over (memory that the device reads or writes).
    void keep(ref<object> needed) { kept_ = std::move(needed); }

    // The program's memory that its command reads into; before it is appended, once.
    void set_reads_into(std::span<const std::byte> memory) noexcept { read_into_ = memory; }
    std::span<const std::byte> reads_into() const noexcept { return read_into_; }

    // Whether the device has an event of this id: it may be named in wait lists there and is destroyed there
    // at the end.
    void set_known_to_device(bool known) noexcept {
        known_to_device_.store(known, std::memory_order_relaxed);
    }
    bool known_to_device() const noexcept { return known_to_device_.load(std::memory_order_relaxed); }

    // Before it is appended, once.
    awaited_by awaited = awaited_by::program;

    // Which of its connection's commands it is, counted from 1; the connection's.
    std::uint64_t command_number = 0;

    // What the device said of the command, before it is this event's turn to be complete; the connection's.
    struct arrival {
        bool here = false;
        cl_int status = CL_COMPLETE;
        profiling_times times;
    };
    arrival arrived;

    // User events: true for the first call only.
    bool claim_user_status() noexcept { return !user_status_set_.exchange(true); }

private:
    struct waiting_callback {
        cl_int type;
        callback function;
        void* data;
    };

    void run_callbacks(std::vector<waiting_callback> ready, cl_int status);

    const ref<context> owner_;
    const ref<queue> where_;
    const cl_command_type command_;
    const std::uint64_t id_;
    std::atomic<bool> known_to_device_{false};
    std::atomic<bool> user_status_set_{false};
    std::atomic<cl_int> status_;
    profiling_times times_;
    std::span<const std::byte> read_into_;
    ref<object> kept_;
    std::mutex callbacks_mutex_;
    std::vector<waiting_callback> callbacks_;
};

} // namespace kagemusha::opencl
