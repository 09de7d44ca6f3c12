// SPDX-License-Identifier: GPL-2.0-or-later
//
// Which parts of a range of addresses are in use. First fit, with neighbours joined again: the same calls
// always give the same addresses. Pure.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

namespace kagemusha::cuda {

class address_space {
public:
    struct piece {
        std::uint64_t address, bytes;
    };

    // All of the pieces are multiples of this, in place and length.
    explicit address_space(std::uint64_t alignment) : alignment_(alignment) {}

    // More addresses, which were not part of it.
    void add(std::uint64_t address, std::uint64_t bytes) { give(address, bytes); }

    // Takes away addresses of which none is in use; false, and nothing happens, if one is.
    bool remove(std::uint64_t address, std::uint64_t bytes) {
        auto found = free_.upper_bound(address);
        if (found == free_.begin())
            return false;
        found = std::prev(found);
        const std::uint64_t before = address - found->first;
        if (before > found->second || found->second - before < bytes)
            return false;
        const std::uint64_t behind = found->second - before - bytes;
        found->second = before;
        if (before == 0)
            free_.erase(found);
        if (behind > 0)
            free_[address + bytes] = behind;
        return true;
    }

    // At least so many bytes (not 0); none if there is no room.
    std::optional<std::uint64_t> allocate(std::uint64_t bytes) {
        if (bytes == 0 || bytes > ~alignment_)
            return std::nullopt;
        const std::uint64_t room = (bytes + alignment_ - 1) / alignment_ * alignment_;
        for (auto one = free_.begin(); one != free_.end(); ++one) {
            if (one->second < room)
                continue;
            const std::uint64_t address = one->first;
            const std::uint64_t rest = one->second - room;
            free_.erase(one);
            if (rest > 0)
                free_[address + room] = rest;
            used_[address] = {room, bytes};
            return address;
        }
        return std::nullopt;
    }

    // The same at the highest addresses that have room.
    std::optional<std::uint64_t> allocate_last(std::uint64_t bytes) {
        if (bytes == 0 || bytes > ~alignment_)
            return std::nullopt;
        const std::uint64_t room = (bytes + alignment_ - 1) / alignment_ * alignment_;
        for (auto one = free_.rbegin(); one != free_.rend(); ++one) {
            if (one->second < room)
                continue;
            const std::uint64_t address = one->first + one->second - room;
            if (one->second -= room; one->second == 0)
                free_.erase(std::prev(one.base()));
            used_[address] = {room, bytes};
            return address;
        }
        return std::nullopt;
    }

    // False if nothing was allocated there.
    bool release(std::uint64_t address) {
        const auto found = used_.find(address);
        if (found == used_.end())
            return false;
        give(address, found->second.room);
        used_.erase(found);
        return true;
    }

    // The allocation that this address is in, as long as it was asked for.
    std::optional<piece> find(std::uint64_t address) const {
        auto found = used_.upper_bound(address);
        if (found == used_.begin())
            return std::nullopt;
        found = std::prev(found);
        if (address - found->first >= found->second.bytes)
            return std::nullopt;
        return piece{found->first, found->second.bytes};
    }

private:
    struct allocation {
        std::uint64_t room, bytes;
    };

    void give(std::uint64_t address, std::uint64_t bytes) {
        auto next = free_.lower_bound(address);
        if (next != free_.end() && address + bytes == next->first) {
            bytes += next->second;
            next = free_.erase(next);
        }
        if (next != free_.begin()) {
            const auto before = std::prev(next);
            if (before->first + before->second == address) {
                before->second += bytes;
                return;
            }
        }
        free_[address] = bytes;
    }

    const std::uint64_t alignment_;
    std::map<std::uint64_t, std::uint64_t> free_;
    std::map<std::uint64_t, allocation> used_;
};

} // namespace kagemusha::cuda
