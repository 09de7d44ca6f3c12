// SPDX-License-Identifier: GPL-2.0-or-later
// dirty_map: where a command's dirty mark goes, by the id of the memory object that it writes. Every
// argument of every launch is looked up here, among as many objects as the guest likes to have, so a lookup
// touches one line of memory and the mark itself another. Internal to session_shadow.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "mirror/shadow/session_shadow.hpp"

namespace kagemusha::mirror {

class dirty_map {
public:
    explicit dirty_map(std::uint64_t seed) : seed_(seed) {}

    // Whose marks a write to the object sets, and whether a kernel that gets it as an argument may write it.
    struct target {
        memory_info* info = nullptr; // null: no such memory object
        bool kernels_only_read = false;
    };
    target find(guest_id id) const {
        if (slots_.empty())
            return {};
        for (std::size_t at = home(id);; at = next(at)) {
            if (slots_[at].id == id) {
                return {reinterpret_cast<memory_info*>(slots_[at].value & ~std::uintptr_t{1}),
                        (slots_[at].value & 1) != 0};
            }
            if (slots_[at].id == 0)
                return {};
        }
    }

    // An id that is not in the table.
    void insert(guest_id id, target t) {
        if (used_ * 2 >= slots_.size())
            grow();
        put(id, reinterpret_cast<std::uintptr_t>(t.info) | std::uintptr_t{t.kernels_only_read});
        ++used_;
    }

    void erase(guest_id id) {
        if (!find(id).info)
            return;
        std::size_t hole = home(id);
        while (slots_[hole].id != id)
            hole = next(hole);
        // What stands behind it moves up, where it is not at home already, so that no search ends early.
        for (std::size_t at = next(hole); slots_[at].id != 0; at = next(at)) {
            const std::size_t from_home = (at - home(slots_[at].id)) & (slots_.size() - 1);
            const std::size_t from_hole = (at - hole) & (slots_.size() - 1);
            if (from_home >= from_hole) {
                slots_[hole] = slots_[at];
                hole = at;
            }
        }
        slots_[hole] = {};
        if (--used_ == 0)
            slots_ = {};
    }

    void clear() {
        slots_ = {};
        used_ = 0;
    }

private:
    static_assert(alignof(memory_info) >= 2, "the lowest bit of a pointer is used");
    struct slot {
        guest_id id = 0; // 0: free
        std::uintptr_t value = 0;
    };

    std::size_t home(guest_id id) const {
        std::uint64_t x = (id ^ seed_) * 0x9e3779b97f4a7c15;
        x ^= x >> 32;
        x *= 0xd6e8feb86659fd93;
        return x >> (64 - std::bit_width(slots_.size() - 1));
    }
    std::size_t next(std::size_t at) const { return (at + 1) & (slots_.size() - 1); }
    void put(guest_id id, std::uintptr_t value) {
        std::size_t at = home(id);
        while (slots_[at].id != 0)
            at = next(at);
        slots_[at] = {id, value};
    }
    void grow() {
        const std::vector<slot> before =
            std::exchange(slots_, std::vector<slot>(slots_.empty() ? 64 : slots_.size() * 2));
        for (const slot& s : before)
            if (s.id != 0)
                put(s.id, s.value);
    }

    const std::uint64_t seed_;
    std::vector<slot> slots_; // a power of two
    std::size_t used_ = 0;
};

} // namespace kagemusha::mirror
