// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_staging: see cuda_staging.hpp.
#include "gpu/cuda/cuda_staging.hpp"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

namespace kagemusha::gpu {

cuda_staging::block& cuda_staging::block::operator=(block&& other) noexcept {
    if (this != &other) {
        release();
        pool_ = std::exchange(other.pool_, nullptr);
        data_ = std::exchange(other.data_, nullptr);
        bytes_ = std::exchange(other.bytes_, 0);
        room_ = other.room_;
        own_ = std::move(other.own_);
    }
    return *this;
}

void cuda_staging::block::release() {
    if (pool_)
        pool_->give_back(data_, room_);
    pool_ = nullptr;
}

void cuda_staging::free_all() {
    for (std::byte* one : all_)
        api_.cuMemFreeHost(one);
    all_.clear();
    free_.clear();
}

cuda_staging::block cuda_staging::take(std::size_t bytes) {
    block made;
    made.bytes_ = bytes;
    if (bytes <= most_pinned_bytes) {
        // Powers of two, so that a block serves again; one that is larger serves too.
        const std::size_t room = std::bit_ceil(std::max(bytes, smallest_block_bytes));
        const std::lock_guard held(mutex_);
        void* fresh = nullptr;
        const auto found = free_.lower_bound(room);
        if (found != free_.end() && (found->first == room || room > most_pinned_bytes - pinned_)) {
            std::tie(made.room_, made.data_) = *found;
            free_.erase(found);
        } else if (room <= most_pinned_bytes - pinned_ &&
                   api_.cuMemHostAlloc(&fresh, room, 0) == CUDA_SUCCESS) {
            made.data_ = static_cast<std::byte*>(fresh);
            made.room_ = room;
            pinned_ += room;
            all_.push_back(made.data_);
        }
        made.pool_ = made.data_ ? this : nullptr;
    }
    if (!made.data_) {
        made.own_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
        made.data_ = made.own_.get();
    }
    return made;
}

void cuda_staging::give_back(std::byte* data, std::size_t room) {
    const std::lock_guard held(mutex_);
    free_.emplace(room, data);
}

} // namespace kagemusha::gpu
