// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_staging: memory through which bytes go between guest and GPU. It is pinned: a copy from or to other
// memory makes the driver wait inside the call, and the executor's thread, which serves all streams of a
// session, waits with it.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/cuda/cuda_api.hpp"

namespace kagemusha::gpu {

class cuda_staging {
public:
    // Of one session. Pinned memory is the host's, and none of it is given back before the session ends:
    // freeing it waits for the GPU. A session that has more in flight copies the rest through ordinary memory,
    // so its calls wait for its own copies.
    static constexpr std::size_t most_pinned_bytes = std::size_t{256} << 20;
    static constexpr std::size_t smallest_block_bytes = std::size_t{64} << 10;

    // The context is current wherever this is called. All of the pinned memory's addresses are taken here, at
    // once: how much of it is used when differs between two hosts of a pair, and where a driver puts variables
    // of modules must not follow from that.
    explicit cuda_staging(const cuda_api& api);
    ~cuda_staging();
    cuda_staging(const cuda_staging&) = delete;
    cuda_staging& operator=(const cuda_staging&) = delete;

    // A piece of memory, given back when it is destroyed. The pool outlives it.
    class block {
    public:
        block() = default;
        block(block&& other) noexcept { *this = std::move(other); }
        block& operator=(block&& other) noexcept;
        ~block() { release(); }

        std::byte* data() const { return data_; }
        std::size_t size() const { return bytes_; }
        bool pinned() const { return pool_ != nullptr; }

    private:
        friend cuda_staging;
        void release();

        cuda_staging* pool_ = nullptr;
        std::byte* data_ = nullptr;
        std::size_t bytes_ = 0, room_ = 0;
        std::unique_ptr<std::byte[]> own_; // what is not the pool's
    };

    // Any thread. Throws std::bad_alloc.
    block take(std::size_t bytes);

    // When no block is in use any more.
    void free_all();

private:
    void give_back(std::byte* data, std::size_t room);
    std::byte* pin(std::size_t room); // with the mutex

    const cuda_api& api_;
    std::mutex mutex_;
    std::multimap<std::size_t, std::byte*> free_; // by size
    std::byte* pinned_at_ = nullptr;              // most_pinned_bytes of addresses
    std::vector<std::byte*> all_;
    std::size_t pinned_ = 0;
};

} // namespace kagemusha::gpu
