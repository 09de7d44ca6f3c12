// SPDX-License-Identifier: GPL-2.0-or-later
// agent_region: memory that an agent gets its blocks from, and the mapping below it.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

#include "gpu/executor.hpp"
#include "mirror/sync/sync_agent.hpp"

namespace kagemusha::mirror::testing {

class mapping {
public:
    explicit mapping(std::uint64_t bytes)
        : bytes_(bytes)
        , base_(static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
        if (base_ == MAP_FAILED)
            std::abort();
    }
    ~mapping() { munmap(base_, bytes_); }
    mapping(const mapping&) = delete;
    mapping& operator=(const mapping&) = delete;
    std::byte* base() const { return base_; }
    std::uint64_t bytes() const { return bytes_; }

private:
    std::uint64_t bytes_;
    std::byte* base_;
};

// First fit over a mapping, which is all that a test needs.
class agent_region final : public agent_memory {
public:
    agent_region(std::uint32_t region, std::uint64_t bytes) : region_(region), memory_(bytes) {}

    bool allocate(std::uint64_t bytes, block& out) override {
        bytes = std::max<std::uint64_t>(rounded_up(bytes), 8);
        const std::lock_guard lock(state_->mutex);
        std::uint64_t at = 0;
        for (const auto& [offset, length] : state_->used) {
            if (offset - at >= bytes)
                break;
            at = offset + length;
        }
        if (at + bytes > memory_.bytes())
            return false;
        state_->used.emplace(at, bytes);
        out.segment = {at, bytes, region_, 0};
        out.bytes = {memory_.base() + at, bytes};
        out.keep = std::shared_ptr<const void>(memory_.base() + at, [state = state_, at](const void*) {
            const std::lock_guard guard(state->mutex);
            state->used.erase(at);
        });
        return true;
    }
    std::uint64_t capacity() const override { return memory_.bytes(); }
    std::size_t blocks() const {
        const std::lock_guard lock(state_->mutex);
        return state_->used.size();
    }
    gpu::region_view view() const { return {memory_.base(), memory_.bytes()}; }

private:
    struct state {
        std::mutex mutex;
        std::map<std::uint64_t, std::uint64_t> used;
    };
    std::uint32_t region_;
    mapping memory_;
    std::shared_ptr<state> state_ = std::make_shared<state>();
};

} // namespace kagemusha::mirror::testing
