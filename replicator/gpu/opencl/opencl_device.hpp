// SPDX-License-Identifier: GPL-2.0-or-later
// opencl_device: one device of the host's OpenCL. Files:
//   opencl_api        the loader
//   opencl_module     lists and opens devices
//   opencl_device     the device; contexts, queues, memory, samplers, kernels, user events
//   opencl_programs   programs
//   opencl_info       queries
//   opencl_commands   enqueue: copies, fills, launches, markers
//   opencl_transfer   enqueue: reads and writes between guest memory and GPU
//   opencl_pinned     large ones of these, through pinned memory
//   opencl_event      completions
//   pending_events, event_poller  the two ways of learning of them
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gpu/backend_module.hpp"
#include "gpu/opencl/opencl_api.hpp"
#include "gpu/opencl/pending_events.hpp"
#include "gpu/opencl/staging.hpp"

namespace kagemusha::gpu {

class run_scatter;

struct opencl_context final : host_context {
    context_handle native;
    std::shared_ptr<pinned_pool> pinned;  // nullptr: transfers don't use it
    std::shared_ptr<run_scatter> scatter; // as `pinned`
    // The guest's queues, ended ones too; what belongs to the host is not counted.
    std::shared_ptr<std::size_t> queues = std::make_shared<std::size_t>(0);
};

struct opencl_queue final : host_queue {
    queue_handle native;
    // Its context's.
    std::shared_ptr<pinned_pool> pinned;
    std::shared_ptr<run_scatter> scatter;
    std::shared_ptr<const std::size_t> queues;
    bool in_order = true;
    std::uint64_t lane = 0; // never the same for two queues
};

struct opencl_memory final : host_memory {
    memory_handle native;
    // Buffers: where it lies in the buffer that it is a part of (itself, or the parent of a sub-buffer). The
    // handle is a reference of its own, so that a transfer can name the parent after the guest has destroyed
    // it.
    memory_handle root;
    std::uint64_t root_offset = 0, bytes = 0;
    // Images.
    cl_mem_object_type type = CL_MEM_OBJECT_BUFFER;
    std::uint64_t element_bytes = 0;
};

struct opencl_sampler final : host_sampler {
    sampler_handle native;
};

struct opencl_program final : host_program {
    program_handle native; // empty after a link that failed without giving a program
};

struct opencl_kernel final : host_kernel {
    kernel_handle native;
};

// Counts what has one of these.
class counted {
public:
    using counter = std::shared_ptr<std::atomic<std::int64_t>>;

    counted() = default;
    explicit counted(counter of) : of_(std::move(of)) {
        if (of_)
            of_->fetch_add(1);
    }
    counted(counted&& other) noexcept : of_(std::move(other.of_)) {}
    counted& operator=(counted&& other) noexcept {
        std::swap(of_, other.of_);
        return *this;
    }
    ~counted() {
        if (of_)
            of_->fetch_sub(1);
    }

private:
    counter of_;
};

// Of a device: completions on other threads count down.
struct transfer_counts {
    counted::counter reads = std::make_shared<std::atomic<std::int64_t>>(0); // under way
    counted::counter unset_user_events = std::make_shared<std::atomic<std::int64_t>>(0);
};

// What a transfer needs until its native commands are done, and what is left to do then.
class transfer_rest {
public:
    virtual ~transfer_rest() = default;
    // On the thread that tells of the completion, before anybody else is told. Gives the status to tell.
    virtual std::int32_t finish(std::int32_t status) = 0;
    // finish() has bytes to put into guest memory: pending_events keeps the order that the program sees.
    virtual bool scatters() const { return false; }
    // Does what can be done before that, on the same thread. Whether there was something.
    virtual bool advance() { return false; }
};

class opencl_event final : public host_event {
public:
    // `first`: where the command is more than one native command, else empty. `error`: what to report instead
    // of success.
    opencl_event(const opencl_api& api, event_handle first, event_handle last,
                 std::unique_ptr<transfer_rest> rest, std::int32_t error = CL_SUCCESS)
        : api_(api)
        , first_(std::move(first))
        , last_(std::move(last))
        , rest_(std::move(rest))
        , error_(error) {}
    ~opencl_event() override;
    std::int32_t notify(callback fn, void* data) override;
    bool timing(event_timing& out) const override;
    std::int32_t set_status(std::int32_t status) override;
    std::int32_t poll() const override;
    cl_event native() const { return last_.get(); }
    void finish(std::int32_t status); // by pending_events or event_poller; once
    // The transfer's rest alone: by finish(), or by pending_events before it.
    void settle(std::int32_t status);
    bool scatters() const { return rest_ && rest_->scatters(); }
    bool advance() { return rest_ && rest_->advance(); } // by event_poller
    // pending_events is to keep the native event of a failed command.
    void keep_failed() { keep_failed_ = true; }
    // A user event: until it is set, or nobody has it any more.
    void count_unset(counted unset) { unset_ = std::move(unset); }
    // Before notify(): its place in the queue, and whether event_poller is to look for the completion instead
    // of a native callback.
    void stand_at(const pending_events::place& place, bool polled, std::vector<std::uint64_t> waits) {
        place_ = place;
        polled_ = polled;
        waits_ = std::move(waits);
    }
    // In pending_events; 0 before notify(), and where event_poller looks.
    std::uint64_t number() const { return number_; }
    void set_number(std::uint64_t number) { number_ = number; } // by pending_events

private:
    static void CL_CALLBACK completed(cl_event, cl_int status, void* number);

    const opencl_api& api_;
    event_handle first_;
    event_handle last_;
    std::unique_ptr<transfer_rest> rest_;
    std::int32_t error_;
    pending_events::place place_;
    std::vector<std::uint64_t> waits_; // numbers
    std::uint64_t number_ = 0;
    bool polled_ = false;
    bool keep_failed_ = false;
    counted unset_;
    callback callback_ = nullptr;
    void* callback_data_ = nullptr;
};

// The states of events that were enqueued in this order; that of `told` is known. The last is asked first: when
// one is over, those that it came after are over too by the time that they are asked. Asked forwards, an earlier
// one may end in between and look as if it ended later.
void ask_backwards(std::span<opencl_event* const> events, const opencl_event* told, std::int32_t status,
                   std::vector<std::int32_t>& states);

enum class transfer_mode {
    automatic, // native kernels where the device has them (one copy, also of scattered memory), else pinned
               // memory for what is large, and staging
    pinned,    // never native kernels; pinned memory from 64 KiB on, on any device
    staging,   // never native kernels
    direct,    // never native kernels nor staging: one native command for each run of guest memory
};

enum class completion_mode {
    automatic, // callbacks where the device is the host's processor, else polling
    callback,  // native event callbacks
    poll,      // a thread asks: see event_poller
};

struct opencl_options {
    transfer_mode transfer = transfer_mode::automatic;
    completion_mode completion = completion_mode::automatic;
};

class opencl_device final : public backend_device {
public:
    opencl_device(const opencl_api& api, cl_platform_id platform, cl_device_id device,
                  gpu_description description, const opencl_options& options);

    const gpu_description& description() const override { return description_; }
    std::int32_t info(const info_query& query, std::vector<std::byte>& result) override;
    std::int32_t answer(const query& what, std::vector<std::byte>& result) override;
    std::string built_files_directory() const override;
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
    std::int32_t flush(host_queue& queue) override;
    bool means_lost(std::int32_t status) const override;

private:
    struct wait_list {
        cl_uint count;
        const cl_event* events;
    };
    struct native_call;     // any other command: opencl_commands.cpp
    struct native_query;    // opencl_info.cpp
    struct native_creation; // opencl_device.cpp
    // A read or write of any shape, and what is left to do after it: see opencl_transfer.cpp.
    struct box_transfer;
    class staged_rest;

    std::int32_t enqueue_transfer(opencl_queue& queue, const resolved<codec::op_transfer_buffer>& r,
                                  wait_list waits, enqueued& out);
    std::int32_t enqueue_transfer(opencl_queue& queue, const resolved<codec::op_transfer_rect>& r,
                                  wait_list waits, enqueued& out);
    std::int32_t enqueue_transfer(opencl_queue& queue, const resolved<codec::op_transfer_image>& r,
                                  wait_list waits, enqueued& out);
    std::int32_t enqueue_transfer(opencl_queue& queue, const resolved<codec::op_write_runs>& r,
                                  wait_list waits, enqueued& out);
    // Nothing in `out`, and no error: it goes another way.
    std::int32_t scatter_runs(opencl_queue& queue, const resolved<codec::op_write_runs>& r, wait_list waits,
                              enqueued& out);
    std::int32_t transfer(opencl_queue& queue, const box_transfer& t, wait_list waits, enqueued& out);
    bool goes_pinned(const box_transfer& t) const;
    // For a small read; nullptr: it goes another way.
    std::unique_ptr<staging> small_pinned(opencl_queue& queue, const box_transfer& t) const;
    std::int32_t transfer_pinned(opencl_queue& queue, const box_transfer& t, wait_list waits, enqueued& out);
    std::int32_t transfer_direct(opencl_queue& queue, const box_transfer& t, wait_list waits, enqueued& out);
    std::int32_t transfer_native_kernel(opencl_queue& queue, const box_transfer& t, wait_list waits,
                                        enqueued& out);
    std::int32_t transfer_staged(opencl_queue& queue, const box_transfer& t, wait_list waits, enqueued& out);
    std::int32_t transfer_through(std::unique_ptr<staging> memory, opencl_queue& queue, const box_transfer& t,
                                  wait_list waits, enqueued& out);
    std::int32_t transfer_runs(opencl_queue& queue, const box_transfer& t, wait_list waits, enqueued& out);
    std::int32_t transfer_image_runs(opencl_queue& queue, const box_transfer& t, wait_list waits,
                                     enqueued& out);
    std::int32_t join_parts(opencl_queue& queue, std::vector<event_handle> events,
                            std::unique_ptr<staged_rest> rest, std::int32_t error, bool busy, enqueued& out);
    std::int32_t enqueue_box(cl_command_queue queue, const box_transfer& t, std::byte* host,
                             const box_pitch& pitch, wait_list waits, cl_event* event);
    // `for_all`: it names no events and waits for everything before it in the queue.
    void place_in(opencl_queue& queue, host_event& event, bool for_all, bool barrier,
                  std::span<host_event* const> waits) const;
    std::uint64_t flags_of_buffer(std::uint64_t flags) const;
    std::int32_t fill_from_content(cl_context context, cl_mem memory, const guest_payload& content);

    // A function of the platform that OpenCL 1.2 does not have; nullptr: it has none.
    template <class Function>
    Function extension(const char* name) const {
        return reinterpret_cast<Function>(api_.clGetExtensionFunctionAddressForPlatform(platform_, name));
    }

    const opencl_api& api_;
    cl_platform_id platform_;
    cl_device_id device_;
    gpu_description description_;
    transfer_mode mode_;
    std::uint32_t version_ = 0; // 120, 200, 300 …
    bool native_kernels_ = false;
    bool polls_ = false;
    // Every command has an event, which is held as long as PoCL 3.1 may use it without holding it:
    // pending_events. (Of CPU devices, which is what PoCL's are.)
    bool holds_events_ = false;
    // Not on PoCL's "basic" device: to set an event that a command waits for hangs there (PoCL's issue 1177).
    bool user_events_ = true;
    bool unified_memory_ = false;             // with the host
    bool pins_ = false;                       // transfers may go through pinned memory
    std::uint64_t smallest_pinned_bytes_ = 0; // of large ones that do; 0: none does
    transfer_counts counts_;
    std::shared_ptr<staging_pool> staging_ = std::make_shared<staging_pool>();
    std::vector<cl_event> wait_scratch_;
};

cl_int set_arguments(const opencl_api& api, cl_kernel kernel, std::span<const host_argument> arguments);

// The answer of one of OpenCL's clGet…Info functions, called twice: for the size, then for the bytes.
template <class Ask>
std::int32_t opencl_ask(Ask&& ask, std::vector<std::byte>& result) {
    std::size_t bytes = 0;
    if (const cl_int error = ask(0, nullptr, &bytes))
        return error;
    result.resize(bytes);
    return bytes == 0 ? CL_SUCCESS : ask(bytes, result.data(), nullptr);
}

} // namespace kagemusha::gpu
