// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_staging: see cuda_staging.hpp.
#include "gpu/cuda/cuda_staging.hpp"

#include <sys/mman.h>

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

cuda_staging::cuda_staging(const cuda_api& api) : api_(api) {
    void* const range =
        mmap(nullptr, most_pinned_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pinned_at_ = range == MAP_FAILED ? nullptr : static_cast<std::byte*>(range);
}

cuda_staging::~cuda_staging() {
    free_all();
    if (pinned_at_)
        munmap(pinned_at_, most_pinned_bytes);
}

// The next of the range; null: the host gives no memory, or does not pin it.
std::byte* cuda_staging::pin(std::size_t room) {
    std::byte* const place = pinned_at_ + pinned_;
    if (!pinned_at_ || mprotect(place, room, PROT_READ | PROT_WRITE) != 0 ||
        api_.cuMemHostRegister_v2(place, room, 0) != CUDA_SUCCESS)
        return nullptr;
    pinned_ += room;
    all_.push_back(place);
    return place;
}

void cuda_staging::free_all() {
    for (std::byte* one : all_)
        api_.cuMemHostUnregister(one);
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
        std::byte* fresh = nullptr;
        const auto found = free_.lower_bound(room);
        if (found != free_.end() && (found->first == room || room > most_pinned_bytes - pinned_)) {
            std::tie(made.room_, made.data_) = *found;
            free_.erase(found);
        } else if (room <= most_pinned_bytes - pinned_ && (fresh = pin(room))) {
            made.data_ = fresh;
            made.room_ = room;
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
