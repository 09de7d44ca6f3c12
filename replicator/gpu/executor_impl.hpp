// SPDX-License-Identifier: GPL-2.0-or-later
// executor_impl: what the files of the executor share. One file per noun:
//   executor.cpp            requests, the loop over ops, the destructor
//   executor_completion.cpp what happens when a command finishes, on whatever thread
//   executor_objects.cpp    user events, destroy, flush
//   executor_programs.cpp   programs
//   executor_resolve.hpp    new objects, enqueued commands and queries: ids and payloads, as the command
//   table
//                           names them
//   executor_commands.cpp   what they share: wait lists, completions; arguments
//   executor_info.cpp       queries
//
// Locking: there is none of its own. `impl` belongs to the thread that calls execute(). What callbacks of the
// GPU's runtime use is in `completion_state`, `event_state` and `request_state`, which they share by
// shared_ptr: immutable after construction, or atomic.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codec/decode.hpp"
#include "codec/op.hpp"
#include "gpu/backend_module.hpp"
#include "gpu/built_files.hpp"
#include "gpu/executor.hpp"
#include "gpu/guest_memory.hpp"
#include "gpu/handle_map.hpp"
#include "gpu/task_gate.hpp"

namespace kagemusha::gpu {

// An id that is taken is refused by the device (core) before it comes here; the maps refuse it again.
constexpr std::int32_t id_taken = codec::cl_invalid_value;
constexpr std::int32_t status_pending = 1; // of an event: neither complete (0) nor failed (< 0)

struct completion_state {
    completion_state(std::shared_ptr<backend_device> d, executor_sink& s) : device(std::move(d)), sink(s) {}

    const std::shared_ptr<backend_device> device; // first: outlives every native object of this executor
    executor_sink& sink;                          // used inside the gate only
    rundown_gate gate;
    std::shared_ptr<rundown_gate> memory_gate = std::make_shared<rundown_gate>();
    std::atomic<std::uint64_t> progress = 0;
    std::atomic<bool> may_print = false;
    std::atomic<bool> lost = false;

    void report_lost(std::int32_t status); // inside the gate
    void report_record(const void* record, std::size_t bytes);
};

// Answers a request when the last of its payloads is not in use any more. Starts with one use: the
// executor's.
class request_state {
public:
    request_state(std::shared_ptr<completion_state> shared, std::uint64_t token)
        : shared_(std::move(shared)), token_(token) {}
    void add_use() { uses_.fetch_add(1, std::memory_order_relaxed); }
    // `written`: the payload that is written by now, if that is what it was used for; inside the gate then.
    void end_use(std::optional<std::uint32_t> written = {});
    vgpu_response response{}; // written before the executor ends its use

private:
    std::shared_ptr<completion_state> shared_;
    std::uint64_t token_;
    std::atomic<std::uint32_t> uses_ = 1;
};

struct event_state {
    std::unique_ptr<host_event> native; // nullptr: the command was refused
    std::atomic<std::int32_t> status = status_pending;
};

struct pending_command {
    std::shared_ptr<completion_state> shared;
    std::shared_ptr<event_state> event;
    std::shared_ptr<request_state> request; // when it uses the request's payload
    std::shared_ptr<gated_task> task;       // where the GPU is shared
    payload_ptr payload;                    // kept until the GPU is done with it
    codec::guest_id event_id = 0;
    codec::guest_id queue_id = 0;
    std::uint32_t opcode = 0;
    bool profiles = false;

    static void finished(void* pending, std::int32_t status);           // host_event::callback
    void report(std::int32_t status, const event_timing& timing) const; // inside the gate
};

// ---- objects, as the handle map holds them
// --------------------------------------------------------------------

struct context_object {
    std::unique_ptr<host_context> native;
};
struct queue_object {
    std::unique_ptr<host_queue> native;
    bool profiles;
    bool in_order;
    std::uint32_t unmarked_opcode = 0; // of the last command that no event stands for yet; 0: none
};
struct memory_object {
    std::unique_ptr<host_memory> native;
    std::uint64_t serial; // never used twice: tells an object from a later one with the same id
    std::uint64_t bytes;  // 0: an image
    bool is_image;
};
struct sampler_object {
    std::unique_ptr<host_sampler> native;
    std::uint64_t serial;
};
struct program_object {
    std::unique_ptr<host_program> native;
    bool is_source;
    bool refused = false; // built, and not for guests: gpu/program_variables.hpp
};

// What was set last on a kernel object, so that a launch sets only what changed.
struct argument_cache {
    bool valid = false;
    vgpu_argument_kind kind{};
    std::uint64_t bytes = 0;
    std::uint64_t serial = 0; // of the memory object or sampler; 0: null pointer
    std::vector<std::byte> value;
};
struct kernel_object {
    std::unique_ptr<host_kernel> native;
    std::vector<argument_cache> arguments;
};
struct event_object {
    std::shared_ptr<event_state> state;
    bool user;
};

// Counts up while a compiler works, so that the watchdog does not take a long build for a hang; a build that
// takes longer than the limit is one.
constexpr std::uint64_t max_build_seconds = 600;

struct executor::impl {
    impl(std::shared_ptr<backend_device> device, std::span<const region_view> regions_, executor_sink& sink)
        : shared(std::make_shared<completion_state>(std::move(device), sink)), regions(regions_) {}

    std::shared_ptr<completion_state> shared;
    std::span<const region_view> regions;
    handle_map<context_object, queue_object, memory_object, sampler_object, program_object, kernel_object,
               event_object>
        objects;
    std::uint64_t next_serial = 1;
    task_gate* gate = nullptr; // nullptr: nobody is asked
    std::uint64_t unset_user_events = 0;
    std::optional<built_files> built;            // once it was asked for
    std::atomic<std::int64_t> build_began_s{-1}; // seconds of the steady clock; -1: no build

    // Of the request being executed.
    const worker::request_view* request = nullptr;
    std::shared_ptr<request_state> pending_request; // made when the first payload stays in use
    std::shared_ptr<gated_task> task;               // with a gate: since the first command
    std::uint64_t result_bytes = 0;
    bool malformed = false;               // a payload that the device should never have let through
    std::vector<codec::guest_id> touched; // queues

    // Scratch, kept to save allocations.
    std::vector<host_event*> waits;
    host_event* complete_wait = nullptr; // one of the wait list that need not be waited for
    std::vector<host_argument> changed;
    std::vector<std::byte> result;

    backend_device& device() { return *shared->device; }

    void run_stream(vgpu_response& response);
    // The payload of a command; nullptr with `malformed` set when it does not fit the request, nullptr alone
    // for NONE.
    payload_ptr payload(const codec::payload_source& source, bool gpu_writes);

    // executor_objects.cpp. All give an OpenCL error code.
    std::int32_t run(const codec::op_create_user_event& op);
    std::int32_t run(const codec::op_set_user_event& op);
    std::int32_t run(const codec::op_destroy& op);
    std::int32_t run(const codec::op_flush& op);
    std::int32_t run(const codec::op_await& op);

    // executor_programs.cpp
    std::int32_t run(const codec::op_create_program& op);
    std::int32_t run(const codec::op_build_program& op);
    std::int32_t run(const codec::op_compile_program& op);
    std::int32_t run(const codec::op_link_program& op);
    std::int32_t run(const codec::op_set_spec_constant& op);
    std::int32_t run(const codec::op_built& op);

    // executor_info.cpp
    std::int32_t run(const codec::op_info& op);

    // Everything that is enqueued: executor_resolve.hpp, and by hand in executor_commands.cpp. Errors of
    // these are told by records, so they give nothing.
    template <enqueued_op Op>
    void run(const Op& op);
    void run(const codec::op_write_runs& op);
    // Queries but INFO, and what creates an object. They give an OpenCL error code.
    template <query_op Op>
    std::int32_t run(const Op& op);
    template <creating_op Op>
    std::int32_t run(const Op& op);
    // A new object without its native one.
    template <creating_op Op>
    auto blank(const Op& op);
    // Copies `result` to where the guest wants it.
    std::int32_t give_result(const codec::payload_source& to);

    memory_object* find_buffer(codec::guest_id id);
    memory_object* find_image(codec::guest_id id);
    // Fills `changed` with the arguments whose bytes or objects differ from what the kernel object has.
    std::int32_t changed_arguments(const codec::argument_list& arguments, kernel_object& kernel);
    // What became of the launch or query that set them.
    void arguments_set(kernel_object& kernel, std::int32_t error);
    std::int32_t collect_waits(codec::id_list ids);
    // Resolves queue and wait list, enqueues, and arranges for the completion. Gives the error that was
    // reported.
    std::int32_t enqueue(const vgpu_cmd& cmd, const vgpu_enqueue& e, codec::id_list wait_ids,
                         const command& what, payload_ptr data = {});
    // Owns `pending` until its native event has finished.
    std::int32_t watch(std::unique_ptr<pending_command> pending);
    // Nothing writes into this payload any more, if anything would have.
    void report_written(const payload_ptr& data);
    std::int32_t refuse_program_variables(program_object& program, std::int32_t built, std::int32_t failure);
    // One event for the commands of a queue that have none: it tells of errors and of progress.
    void mark(codec::guest_id id, queue_object& queue);
    void refuse(const vgpu_cmd& cmd, const vgpu_enqueue& e, std::int32_t error);
    void check_lost(std::int32_t status);
};

} // namespace kagemusha::gpu
