// SPDX-License-Identifier: GPL-2.0-or-later
// memory_ranges: pieces of guest memory, to be asked whether others overlap them. Internal to primary_shadow.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

namespace kagemusha::mirror {

using guest_memory = std::vector<std::span<const std::byte>>;

class memory_ranges {
public:
    memory_ranges() = default; // overlap nothing

    void add(std::span<const std::byte> piece) {
        if (piece.empty())
            return;
        const range one{piece.data(), piece.data() + piece.size()};
        low_ = low_ ? std::min(low_, one.begin) : one.begin;
        high_ = std::max(high_, one.end);
        ranges_.push_back(one);
        sorted_ = false;
    }
    void add(const guest_memory& memory) {
        for (const auto& piece : memory)
            add(piece);
    }

    bool empty() const { return ranges_.empty(); }

    bool overlap(const guest_memory& other) {
        return std::any_of(other.begin(), other.end(), [&](const auto& piece) {
            const std::byte *const begin = piece.data(), *const end = begin + piece.size();
            if (end <= low_ || begin >= high_)
                return false;
            sort();
            const auto behind =
                std::lower_bound(ranges_.begin(), ranges_.end(), end,
                                 [](const range& a, const std::byte* at) { return a.begin < at; });
            return behind != ranges_.begin() && std::prev(behind)->end > begin;
        });
    }

private:
    struct range {
        const std::byte* begin;
        const std::byte* end;
    };

    // Ascending and apart: only when somebody asks, as hardly anybody does.
    void sort() {
        if (std::exchange(sorted_, true))
            return;
        std::sort(ranges_.begin(), ranges_.end(),
                  [](const range& a, const range& b) { return a.begin < b.begin; });
        std::size_t last = 0;
        for (const range& one : ranges_)
            if (one.begin <= ranges_[last].end) // also the first one itself
                ranges_[last].end = std::max(ranges_[last].end, one.end);
            else
                ranges_[++last] = one;
        ranges_.resize(ranges_.empty() ? 0 : last + 1);
    }

    const std::byte *low_ = nullptr, *high_ = nullptr; // around all of it
    std::vector<range> ranges_;
    bool sorted_ = true;
};

} // namespace kagemusha::mirror
