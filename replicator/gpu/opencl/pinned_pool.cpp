// SPDX-License-Identifier: GPL-2.0-or-later
// pinned_pool: see pinned_pool.hpp.
#include "gpu/opencl/pinned_pool.hpp"

#include <utility>

namespace kagemusha::gpu {

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
