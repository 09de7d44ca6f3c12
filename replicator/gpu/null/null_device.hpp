// SPDX-License-Identifier: GPL-2.0-or-later
// null_device: a GPU that accepts everything and executes no kernel. It measures what everything around a GPU
// costs, and tests use it where a real runtime would be slow or nondeterministic.
//
// It keeps the order of OpenCL honestly: in-order and out-of-order queues, wait lists, user events, barriers,
// failing dependents. A command whose dependencies are met is complete when enqueue() returns. With the
// option memory=1 buffers are real memory, and transfers, copies and fills move bytes; without it buffers
// have no memory and reads give zeros. Kernels have the names and argument lists that their source declares;
// launching one does nothing. No images.
//
// Threads: what a user event or a delayed command sets off may run on any thread, so null_signal is
// thread-safe; queues belong to the executor's thread like everything else.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gpu/backend_module.hpp"
#include "gpu/null/kernel_signature.hpp"

namespace kagemusha::gpu {

// Something that completes once: a command that had to wait, or a user event.
class null_signal {
public:
    using waiter = std::function<void(std::int32_t)>;

    std::int32_t status() const { return status_.load(std::memory_order_acquire); } // > 0: not yet
    // False when it is complete already; then `f` was not taken.
    bool subscribe(waiter& f);
    // Calls every waiter. A chain of a million commands is no recursion: what becomes ready while waiters run
    // is queued and run by the outermost complete() of this thread.
    void complete(std::int32_t status);

    event_timing timing;

private:
    std::mutex mutex_;
    std::atomic<std::int32_t> status_ = 1;
    std::vector<waiter> waiters_;
};

using signal_ptr = std::shared_ptr<null_signal>;

class null_event final : public host_event {
public:
    null_event() = default; // complete
    explicit null_event(signal_ptr signal) : signal_(std::move(signal)) {}
    std::int32_t notify(callback fn, void* data) override;
    std::int32_t poll() const override { return signal_ ? signal_->status() : 0; }
    bool timing(event_timing& out) const override;
    std::int32_t set_status(std::int32_t status) override;
    const signal_ptr& signal() const { return signal_; }

    event_timing times; // of a command that was complete at once

private:
    signal_ptr signal_; // nullptr: complete
};

struct null_context final : host_context {};

struct null_queue final : host_queue {
    bool in_order = true;
    bool profiles = false;
    signal_ptr last; // in order: what the next command waits for; out of order: the last barrier
    std::vector<signal_ptr> pending; // out of order: what a barrier or marker waits for
};

struct null_memory final : host_memory {
    std::shared_ptr<std::byte> storage; // nullptr: none
    std::uint64_t origin = 0;           // in the storage
    std::uint64_t bytes = 0;
    std::uint64_t parent_origin = 0; // sub-buffers: in their buffer
    std::uint64_t flags = 0;
    std::byte* begin() const { return storage ? storage.get() + origin : nullptr; }
};

struct null_sampler final : host_sampler {};

struct null_program final : host_program {
    vgpu_program_kind kind{};
    std::string content;
    bool built = false;
    std::uint32_t binary_type = 0;
    std::string options;
    std::vector<kernel_signature> kernels;
};

struct null_kernel final : host_kernel {
    kernel_signature signature;
};

struct null_device_options {
    bool has_memory = false;    // reads give what was written
    bool has_variables = false; // programs may have variables in global memory
};

class null_device final : public backend_device {
public:
    null_device(gpu_description description, const null_device_options& options);

    const gpu_description& description() const override { return description_; }
    std::int32_t info(const info_query& query, std::vector<std::byte>& result) override;
    std::int32_t answer(const query& what, std::vector<std::byte>& result) override;
    std::int32_t create(const creation& what) override;
    std::int32_t create_user_event(host_context& context, std::unique_ptr<host_event>& out) override;
    std::int32_t create_program(host_context& context, vgpu_program_kind kind,
                                std::span<const std::byte> content,
                                std::unique_ptr<host_program>& out) override;
    std::int32_t set_spec_constant(host_program& program, std::uint32_t constant,
                                   std::span<const std::byte> value) override;
    std::int32_t build_program(host_program& program, const std::string& options) override;
    std::int32_t compile_program(host_program& program, const std::string& options,
                                 std::span<host_program* const> headers,
                                 std::span<const char* const> names) override;
    std::int32_t link_program(host_context& context, const std::string& options,
                              std::span<host_program* const> inputs,
                              std::unique_ptr<host_program>& out) override;
    std::int32_t enqueue(host_queue& queue, const command& what, std::span<host_event* const> waits,
                         bool wants_event, enqueued& out) override;
    std::int32_t mark(host_queue& queue, std::unique_ptr<host_event>& out) override;
    std::int32_t flush(host_queue&) override { return 0; }
    bool means_lost(std::int32_t status) const override;

private:
    struct work; // null_commands.cpp

    // Runs `job` now, or keeps it until what it waits for is complete.
    template <class Job>
    std::int32_t submit(null_queue& queue, std::span<host_event* const> waits, bool waits_for_all,
                        bool is_barrier, bool uses_payload, bool wants_event, enqueued& out, Job&& job);

    gpu_description description_;
    const null_device_options options_;
};

// Of the fixed device; shared by its description and its answers.
constexpr std::uint64_t null_memory_bytes = 16ull << 30;
constexpr std::uint64_t null_max_allocation_bytes = 4ull << 30;

} // namespace kagemusha::gpu
