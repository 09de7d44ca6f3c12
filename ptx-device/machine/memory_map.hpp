// SPDX-License-Identifier: GPL-2.0-or-later
// memory_map: which addresses a kernel may touch. A device address is the address of memory of this process.
#pragma once

#include <cstdint>
#include <map>

namespace kagemusha::machine {

struct memory_range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    bool writable = true;

    bool holds(std::uint64_t address, std::uint64_t bytes) const {
        return address >= begin && address <= end && bytes <= end - address;
    }
};

class memory_map {
public:
    void add(memory_range r) { ranges_[r.begin] = r; }
    void remove(std::uint64_t begin) { ranges_.erase(begin); }
    void protect(std::uint64_t begin, bool writable) {
        if (const auto it = ranges_.find(begin); it != ranges_.end())
            it->second.writable = writable;
    }

    // The range with this address, or null.
    const memory_range* find(std::uint64_t address) const {
        auto it = ranges_.upper_bound(address);
        if (it == ranges_.begin())
            return nullptr;
        --it;
        return address < it->second.end ? &it->second : nullptr;
    }

    // Whether all of [address, address + bytes) may be touched: ranges side by side count as one.
    bool holds(std::uint64_t address, std::uint64_t bytes, bool write = false) const {
        while (bytes > 0) {
            const memory_range* r = find(address);
            if (r == nullptr || (write && !r->writable))
                return false;
            const std::uint64_t here = r->end - address;
            if (bytes <= here)
                return true;
            bytes -= here;
            address += here;
        }
        return true;
    }

private:
    std::map<std::uint64_t, memory_range> ranges_;
};

} // namespace kagemusha::machine
