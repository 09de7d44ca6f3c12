// SPDX-License-Identifier: GPL-2.0-or-later
// run_scatter: many short runs of bytes into a buffer with one transfer and one kernel. What a guest stores into a
// mapped buffer comes as thousands of runs of a few bytes, and as a native command each takes microseconds.
//
// A kernel can wait for the GPU where a copy engine need not: behind a kernel of another queue that waits for just
// these bytes. So it is for the guest's only queue in a context, and in order, where a copy would wait, too.
//
// The kernel is built on a thread of its own when it is first wanted (100 ms and more), and until then, or where it
// can't be built, there is none.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "codec/runs.hpp"
#include "gpu/opencl/staging.hpp"

namespace kagemusha::gpu {

// Of one context. Not thread-safe, but for what is given back at a completion.
class run_scatter : public std::enable_shared_from_this<run_scatter> {
public:
    // From here on it is less work than a command for each.
    static constexpr std::size_t fewest_runs = 32;

    // `context` lives as long as somebody may call enqueue(). `waits`: for the kernel, at the first one.
    run_scatter(const opencl_api& api, cl_context context, cl_device_id device,
                std::shared_ptr<pinned_pool> pinned, bool waits)
        : api_(api), context_(context), device_(device), pinned_(std::move(pinned)), waits_(waits) {}
    ~run_scatter();
    run_scatter(const run_scatter&) = delete;
    run_scatter& operator=(const run_scatter&) = delete;

    // The two native commands, in order. Nothing, and no error: it has to go another way.
    struct result {
        std::int32_t error = CL_SUCCESS;
        std::vector<event_handle> events;
        std::unique_ptr<staging> memory; // until they are over
    };
    // An in-order queue of the context. `data`: of the runs, whose offsets are in `memory`; its bytes are taken.
    result enqueue(cl_command_queue queue, cl_mem memory, const std::vector<codec::buffer_run>& runs,
                   const std::byte* data, cl_uint wait_count, const cl_event* waits);

private:
    class loan;
    bool is_built();
    void build();
    std::unique_ptr<loan> borrow(std::uint64_t bytes);

    const opencl_api& api_;
    const cl_context context_;
    const cl_device_id device_;
    const std::shared_ptr<pinned_pool> pinned_;
    const bool waits_;
    std::thread builder_;
    kernel_handle kernel_; // the builder's until built_
    std::atomic<bool> built_{false};
    std::size_t device_buffers_ = 0;

    std::mutex mutex_;
    std::vector<memory_handle> free_; // on the GPU
};

} // namespace kagemusha::gpu
