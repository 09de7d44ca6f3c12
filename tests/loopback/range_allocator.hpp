// SPDX-License-Identifier: GPL-2.0-or-later
// range_allocator: which bytes of the loopback's arena are free. Pure.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace kagemusha::opencl {

// First fit over page-aligned ranges of the arena.
class range_allocator {
public:
    explicit range_allocator(std::uint64_t bytes) { free_[0] = bytes; }

    bool allocate(std::uint64_t bytes, std::uint64_t& offset) {
        for (auto it = free_.begin(); it != free_.end(); ++it) {
            if (it->second < bytes)
                continue;
            offset = it->first;
            const std::uint64_t rest = it->second - bytes;
            free_.erase(it);
            if (rest)
                free_[offset + bytes] = rest;
            return true;
        }
        return false;
    }

    void release(std::uint64_t offset, std::uint64_t bytes) {
        auto next = free_.lower_bound(offset);
        if (next != free_.end() && offset + bytes == next->first) {
            bytes += next->second;
            next = free_.erase(next);
        }
        if (next != free_.begin()) {
            auto previous = std::prev(next);
            if (previous->first + previous->second == offset) {
                previous->second += bytes;
                return;
            }
        }
        free_[offset] = bytes;
    }

private:
    std::map<std::uint64_t, std::uint64_t> free_;
};

} // namespace kagemusha::opencl
