// SPDX-License-Identifier: GPL-2.0-or-later
// staging: host memory of transfers that can't go to or from guest memory directly: the pool of any memory, and that
// of pinned memory.
#include "gpu/opencl/staging.hpp"

#include <new>
#include <utility>

namespace kagemusha::gpu {

namespace {

// Large enough for several transfers in flight to overlap, small against what a worker may have.
constexpr std::uint64_t limit_bytes = 256ull << 20;

// What stays allocated between transfers: 64 MiB.
constexpr std::size_t keep_pieces = 16;

// Single pixels that lie in two pages are staged also when there is nothing left for anything else: without
// staging they can't be transferred at all.
constexpr std::uint64_t pixel_bytes = 16;
constexpr std::uint64_t pixels_reserve_bytes = 1 << 20;

// Below this a piece is allocated as it is; above, a whole one that can be kept.
constexpr std::uint64_t small_bytes = 128 << 10;

} // namespace

class staging_pool::piece final : public staging {
public:
    piece(std::shared_ptr<staging_pool> pool, std::unique_ptr<std::byte[]> memory, std::uint64_t bytes)
        : staging(memory.get()), pool_(std::move(pool)), memory_(std::move(memory)), bytes_(bytes) {}
    ~piece() override { pool_->give(std::move(memory_), bytes_); }

private:
    std::shared_ptr<staging_pool> pool_;
    std::unique_ptr<std::byte[]> memory_;
    std::uint64_t bytes_;
};

std::unique_ptr<staging> staging_pool::take(std::uint64_t bytes) {
    if (bytes > small_bytes && bytes < staging_piece_bytes)
        bytes = staging_piece_bytes;
    std::unique_ptr<std::byte[]> memory;
    {
        const std::lock_guard lock(mutex_);
        const std::uint64_t limit = bytes <= pixel_bytes ? limit_bytes + pixels_reserve_bytes : limit_bytes;
        if (taken_bytes_ > limit || bytes > limit - taken_bytes_)
            return nullptr;
        taken_bytes_ += bytes;
        if (bytes == staging_piece_bytes && !kept_.empty()) {
            memory = std::move(kept_.back());
            kept_.pop_back();
        }
    }
    if (!memory)
        memory.reset(new (std::nothrow) std::byte[bytes]);
    if (memory)
        return std::make_unique<piece>(shared_from_this(), std::move(memory), bytes);
    give(nullptr, bytes);
    return nullptr;
}

void staging_pool::give(std::unique_ptr<std::byte[]> memory, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    taken_bytes_ -= bytes;
    if (memory && bytes == staging_piece_bytes && kept_.size() < keep_pieces)
        kept_.push_back(std::move(memory));
}

// ---- pinned

class pinned_pool::piece final : public staging {
public:
    piece(std::shared_ptr<pinned_pool> pool, std::byte* memory, std::vector<std::byte*>& home)
        : staging(memory), pool_(std::move(pool)), home_(home) {}
    ~piece() override { pool_->give(data(), home_); }

private:
    std::shared_ptr<pinned_pool> pool_;
    std::vector<std::byte*>& home_; // of the pool
};

pinned_pool::~pinned_pool() {
    for (const mapping& one : all_)
        api_.clEnqueueUnmapMemObject(queue_.get(), one.buffer.get(), one.memory, 0, nullptr, nullptr);
    if (queue_)
        api_.clFlush(queue_.get());
}

bool pinned_pool::pin_one() {
    if (all_.size() == most_pieces)
        return false;
    cl_int error = CL_SUCCESS;
    if (!queue_)
        queue_ = {api_, api_.clCreateCommandQueue(context_, device_, 0, &error)};
    if (error != CL_SUCCESS)
        return false;
    memory_handle buffer(api_, api_.clCreateBuffer(context_, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR,
                                                   staging_piece_bytes, nullptr, &error));
    if (error != CL_SUCCESS)
        return false;
    void* const memory =
        api_.clEnqueueMapBuffer(queue_.get(), buffer.get(), CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0,
                                staging_piece_bytes, 0, nullptr, nullptr, &error);
    if (error != CL_SUCCESS)
        return false;
    all_.push_back({std::move(buffer), static_cast<std::byte*>(memory)});
    give(all_.back().memory, free_);
    return true;
}

std::vector<std::unique_ptr<staging>> pinned_pool::take(std::uint64_t bytes) {
    std::vector<std::unique_ptr<staging>> taken;
    const std::uint64_t count = (bytes + staging_piece_bytes - 1) / staging_piece_bytes;
    if (count > most_pieces)
        return taken;
    while (free_count() < count)
        if (!pin_one())
            return taken;
    const std::lock_guard held(mutex_);
    for (std::uint64_t i = 0; i < count; ++i) {
        taken.push_back(std::make_unique<piece>(shared_from_this(), free_.back(), free_));
        free_.pop_back();
    }
    return taken;
}

std::unique_ptr<staging> pinned_pool::take_small() {
    if (!std::exchange(is_cut_, true))
        cut_one();
    const std::lock_guard held(mutex_);
    if (small_.empty())
        return nullptr;
    auto taken = std::make_unique<piece>(shared_from_this(), small_.back(), small_);
    small_.pop_back();
    return taken;
}

void pinned_pool::cut_one() {
    if (free_count() == 0 && !pin_one())
        return;
    const std::lock_guard held(mutex_);
    std::byte* const whole = free_.back();
    free_.pop_back();
    for (std::uint64_t at = 0; at < staging_piece_bytes; at += small_piece_bytes)
        small_.push_back(whole + at);
}

std::size_t pinned_pool::free_count() {
    const std::lock_guard held(mutex_);
    return free_.size();
}

void pinned_pool::give(std::byte* memory, std::vector<std::byte*>& to) {
    const std::lock_guard held(mutex_);
    to.push_back(memory);
}

} // namespace kagemusha::gpu
