// SPDX-License-Identifier: GPL-2.0-or-later
// backend_module: what a GPU backend implements. Users of a backend (the worker, the control tool) see
// gpu/backend.hpp only; the executor is the one caller of what is declared here.
//
// Host handles. Each kind of object is a C++ type of its own, owned by exactly one unique_ptr, and never
// leaves its host: the guest knows ids, gpu/handle_map.hpp is the only place where both meet. A backend gets
// back only objects that it made itself, so it may static_cast them to its own types.
//
// Lifetimes. Destroying an object is always allowed and returns at once, also while commands in flight use
// it: a backend defers what its native API cannot release yet. Destruction happens on the executor's thread
// or, for events, inside the callback of notify().
//
// Threads. Every function is called by the executor's one thread, except host_event::timing() and the
// destructor of an event, which may also run inside notify()'s callback. Nothing waits for the GPU except
// where noted.
//
// Errors are OpenCL's numbers, as on the wire. What a backend does not have is an error of the standard,
// never a crash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codec/cl_numbers.hpp"
#include "gpu/backend.hpp"
#include "gpu/guest_memory.hpp"
#include "gpu/resolved.hpp"
#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::gpu {

class host_context {
public:
    virtual ~host_context() = default;
};

class host_queue {
public:
    virtual ~host_queue() = default;
};

class host_memory { // buffer, sub-buffer or image
public:
    virtual ~host_memory() = default;
};

class host_sampler {
public:
    virtual ~host_sampler() = default;
};

class host_program {
public:
    virtual ~host_program() = default;
};

class host_kernel {
public:
    virtual ~host_kernel() = default;
};

struct event_timing {
    std::uint64_t queued_ns = 0, submit_ns = 0, start_ns = 0, end_ns = 0; // the GPU's clock
};

class host_event {
public:
    using callback = void (*)(void* data, std::int32_t status);

    virtual ~host_event() = default;

    // Calls fn(data, status) exactly once when the command has finished (0) or failed (< 0) and nothing of it
    // touches guest memory any more: on any thread, perhaps before notify() returns, and then as the last
    // thing notify() does. The caller keeps the event alive until fn was called; fn may destroy it. Called at
    // most once per event. An error means that fn is not called.
    // Order: in an in-order queue the callbacks come one after the other, in the order of its commands; in
    // another one, that of a marker or barrier without waits comes after those of everything before it, and
    // what is behind a barrier comes after the barrier. In any queue it comes after those of what the command
    // waited for.
    virtual std::int32_t notify(callback fn, void* data) = 0;

    // Where the command is now: > 0 not finished, 0 complete, < 0 failed. Any time before fn was called.
    virtual std::int32_t poll() const = 0;

    // Only after it finished, and only if the queue profiles.
    virtual bool timing(event_timing& out) const = 0;

    // User events only; at most once. `status` is 0 or negative.
    virtual std::int32_t set_status(std::int32_t status) = 0;
};

struct enqueued {
    std::unique_ptr<host_event> event; // there when enqueue() succeeds, unless it was not wanted
    // Guest memory of the command's payload is in use until the event finishes. False: its bytes were already
    // taken.
    bool payload_busy = false;
};

struct info_query {
    vgpu_info_subject subject;
    std::uint32_t name;
    std::uint64_t index;
    std::span<const std::byte> input;
    host_context* context = nullptr; // IMAGE_FORMATS
    host_memory* memory = nullptr;   // MEMORY, IMAGE
    host_program* program = nullptr; // PROGRAM, PROGRAM_BUILD
    host_kernel* kernel = nullptr;   // KERNEL…
};

// What the host may not do with memory is a promise of the guest's program, and its driver keeps it. On this
// side all memory can be read and written: replication does, with memory of every kind.
constexpr std::uint64_t flags_on_host(std::uint64_t flags) {
    return flags & ~codec::cl_mem_host_access_flags;
}

// One GPU.
class backend_device {
public:
    virtual ~backend_device() = default;

    virtual const gpu_description& description() const = 0;

    // Names were checked against gpu/info_table.hpp. `result` becomes the bytes that OpenCL's query gives.
    virtual std::int32_t info(const info_query& query, std::vector<std::byte>& result) = 0;

    // The other queries, each with objects of its own.
    virtual std::int32_t answer(const query& what, std::vector<std::byte>& result) = 0;

    // Of an executable, the bytes of its variables at program scope in global memory; 0: none, or this device
    // has none (gpu/program_variables.hpp). Not asked for by the guest.
    virtual std::uint64_t program_variable_bytes(host_program& program);

    // Where this runtime's compiler keeps what it has made, in the worker's private directory; empty: nowhere
    // (gpu/built_files.hpp).
    virtual std::string built_files_directory() const { return {}; }

    // A new object into the place that `what` has for it, or an error. Content may be nullptr; it is read
    // before the function returns. Flags of memory: see flags_on_host().
    virtual std::int32_t create(const creation& what) = 0;
    virtual std::int32_t create_user_event(host_context& context, std::unique_ptr<host_event>& out) = 0;

    virtual std::int32_t create_program(host_context& context, vgpu_program_kind kind,
                                        std::span<const std::byte> content,
                                        std::unique_ptr<host_program>& out) = 0;
    virtual std::int32_t set_spec_constant(host_program& program, std::uint32_t constant,
                                           std::span<const std::byte> value) = 0;
    // These three wait for the compiler.
    virtual std::int32_t build_program(host_program& program, const std::string& options) = 0;
    virtual std::int32_t compile_program(host_program& program, const std::string& options,
                                         std::span<host_program* const> headers,
                                         std::span<const char* const> names) = 0;
    // CL_LINK_PROGRAM_FAILURE also gives a program, which has the log.
    virtual std::int32_t link_program(host_context& context, const std::string& options,
                                      std::span<host_program* const> inputs,
                                      std::unique_ptr<host_program>& out) = 0;

    // Does not wait. Waits are events of this device that were not seen to fail. An event per command is what
    // costs most on some runtimes, so without `wants_event` a command need not get one (it may): that is
    // asked only in an in-order queue, of a command without payload and waits, and some later event of that
    // queue tells when it has finished and whether it failed.
    virtual std::int32_t enqueue(host_queue& queue, const command& what, std::span<host_event* const> waits,
                                 bool wants_event, enqueued& out) = 0;
    // An event of an in-order queue that finishes when everything enqueued so far has finished.
    virtual std::int32_t mark(host_queue& queue, std::unique_ptr<host_event>& out) = 0;
    // Starts what was enqueued.
    virtual std::int32_t flush(host_queue& queue) = 0;

    // An error code that means that this GPU is gone, not only the command.
    virtual bool means_lost(std::int32_t status) const = 0;
};

// A backend is a name, a list of GPUs and a way to open one. Registered in backend.cpp.
class backend_module {
public:
    virtual ~backend_module() = default;

    virtual std::string_view name() const = 0;
    // GPUs in the order of their index. Empty with a sentence in `error` when there is nothing to list.
    virtual std::vector<gpu_description> list(const backend_options& options, std::string& error) const = 0;
    // One that list() gave. nullptr with a sentence in `error`.
    virtual std::shared_ptr<backend_device> open(const gpu_description& gpu, const backend_options& options,
                                                 std::string& error) const = 0;
};

const backend_module& opencl_module();
const backend_module& cuda_module();
const backend_module& null_module();
const backend_module& faulty_module();

} // namespace kagemusha::gpu
