// SPDX-License-Identifier: GPL-2.0-or-later
// staging: host memory of transfers that can't go to or from guest memory directly, or not as fast: a pool of any
// memory, and one of pinned memory. To and from that a GPU moves bytes at the speed of its bus; other memory the
// runtime copies through such memory of its own, with one thread (docs/results/price-h200.md).
//
// OpenCL has no call for pinned memory. Vendors document that the mapping of a buffer with CL_MEM_ALLOC_HOST_PTR is
// pinned; where it isn't, transfers are right and no faster.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/opencl/opencl_api.hpp"

namespace kagemusha::gpu {

// A piece of staging memory, not initialised: what transfers use that can't go to or from guest memory
// directly, or not as fast.
class staging {
public:
    virtual ~staging() = default;
    staging(const staging&) = delete;
    staging& operator=(const staging&) = delete;
    std::byte* data() const { return data_; }

protected:
    explicit staging(std::byte* data) : data_(data) {}

private:
    std::byte* const data_;
};

// Staging is taken in pieces of at most this size, so that the GPU works on one while the next is gathered.
// Pieces of this size are kept for the next transfer: memory that is new to the process costs more in page
// faults than it takes to copy it.
constexpr std::uint64_t staging_piece_bytes = 4 << 20;

// Bounded for the whole device. Thread-safe: staging goes back on threads of the runtime.
class staging_pool : public std::enable_shared_from_this<staging_pool> {
public:
    // nullptr when the bound or the host's memory is reached.
    std::unique_ptr<staging> take(std::uint64_t bytes);

private:
    class piece;
    void give(std::unique_ptr<std::byte[]> memory, std::uint64_t bytes);

    std::mutex mutex_;
    std::uint64_t taken_bytes_ = 0;
    std::vector<std::unique_ptr<std::byte[]>> kept_; // each of staging_piece_bytes
};

// Pinned host memory of one context, in pieces of staging_piece_bytes.
//
// take() is the executor's thread's; pieces go back on any, also on one of the runtime's that tells of a completion. So
// the mutex is never held while the runtime is called. To pin a piece takes milliseconds, so none is given back to the
// system before the context and all that is under way in it have ended.
class pinned_pool : public std::enable_shared_from_this<pinned_pool> {
public:
    // Of one context: several large transfers under way.
    static constexpr std::size_t most_pieces = 32;
    // One piece is cut into so large ones, for transfers that are small.
    static constexpr std::uint64_t small_piece_bytes = std::uint64_t{64} << 10;

    // `context` lives at least until the first take().
    pinned_pool(const opencl_api& api, cl_context context, cl_device_id device)
        : api_(api), context_(context), device_(device) {}
    ~pinned_pool();
    pinned_pool(const pinned_pool&) = delete;
    pinned_pool& operator=(const pinned_pool&) = delete;

    // Pieces for so many bytes; none when the pool or the host has not so many.
    std::vector<std::unique_ptr<staging>> take(std::uint64_t bytes);
    // One of small_piece_bytes; nullptr when all of them are under way.
    std::unique_ptr<staging> take_small();

private:
    class piece;
    struct mapping {
        memory_handle buffer;
        std::byte* memory;
    };
    bool pin_one();
    std::size_t free_count();
    void cut_one();
    void give(std::byte* memory, std::vector<std::byte*>& to);

    const opencl_api& api_;
    const cl_context context_;
    const cl_device_id device_;
    queue_handle queue_; // for mapping alone; keeps the native context
    std::vector<mapping> all_;
    bool is_cut_ = false; // a piece, or there was none

    std::mutex mutex_;
    std::vector<std::byte*> free_, small_;
};

} // namespace kagemusha::gpu
