// SPDX-License-Identifier: GPL-2.0-or-later
// staging: host memory of transfers that can't go to or from guest memory directly.
#include <new>

#include "gpu/opencl/opencl_device.hpp"

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

} // namespace kagemusha::gpu
