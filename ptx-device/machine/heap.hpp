// SPDX-License-Identifier: GPL-2.0-or-later
// heap: the memory that kernels get with malloc. Which pieces are used is known outside of it, so that no store
// of a kernel can damage it; the first that fits is taken, so that each run gets the same.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace kagemusha::machine {

class device_heap {
public:
    device_heap(std::uint64_t begin, std::uint64_t bytes) { free_[begin] = bytes; }

    // 0: there is not so much in one piece.
    std::uint64_t allocate(std::uint64_t bytes) {
        if (bytes == 0 || bytes > ~std::uint64_t{0} - alignment)
            return 0;
        const std::uint64_t room = (bytes + alignment - 1) / alignment * alignment;
        for (auto it = free_.begin(); it != free_.end(); ++it) {
            const auto [begin, size] = *it;
            if (size < room)
                continue;
            free_.erase(it);
            if (size > room)
                free_[begin + room] = size - room;
            used_[begin] = room;
            return begin;
        }
        return 0;
    }

    // Nothing happens for an address that allocate() did not give.
    void release(std::uint64_t address) {
        const auto it = used_.find(address);
        if (it == used_.end())
            return;
        std::uint64_t begin = it->first, size = it->second;
        used_.erase(it);
        const auto behind = free_.find(begin + size);
        if (behind != free_.end()) {
            size += behind->second;
            free_.erase(behind);
        }
        const auto next = free_.lower_bound(begin);
        if (next != free_.begin()) {
            const auto before = std::prev(next);
            if (before->first + before->second == begin) {
                before->second += size;
                return;
            }
        }
        free_[begin] = size;
    }

private:
    static constexpr std::uint64_t alignment = 16;
    std::map<std::uint64_t, std::uint64_t> free_, used_; // by address; neighbours in free_ are joined
};

} // namespace kagemusha::machine
