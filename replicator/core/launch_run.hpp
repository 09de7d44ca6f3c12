// SPDX-License-Identifier: GPL-2.0-or-later
// launch_run: what validation says of launches that repeat an earlier one of their stream but for some words.
// Who works on the stream next need not look at those launches one by one.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kagemusha::core {

// A bit for each of the first 128 words of a command: a launch with 37 buffers for arguments has so many.
struct word_mask {
    static constexpr std::size_t words = 128;
    std::array<std::uint64_t, 2> bits{};

    bool any() const { return (bits[0] | bits[1]) != 0; }
    bool has(std::size_t word) const { return (bits[word / 64] >> word % 64 & 1) != 0; }
    void set(std::size_t word) { bits[word / 64] |= std::uint64_t{1} << word % 64; }
    unsigned count() const { return static_cast<unsigned>(std::popcount(bits[0]) + std::popcount(bits[1])); }
    template <class F>
    void for_each(F&& f) const {
        for (std::size_t i = 0; i < bits.size(); ++i)
            for (std::uint64_t rest = bits[i]; rest != 0; rest &= rest - 1)
                f(i * 64 + static_cast<std::size_t>(std::countr_zero(rest)));
    }
    friend word_mask operator|(const word_mask& a, const word_mask& b) {
        return {{a.bits[0] | b.bits[0], a.bits[1] | b.bits[1]}};
    }
    friend bool operator==(const word_mask&, const word_mask&) = default;
};

// Launches of one kernel to one queue, as long as each other and one directly behind the other, all of them
// accepted. Each repeats the launch that begins `back` words before it: it has the same arguments in the same
// places, and no object that the earlier one names was destroyed in between.
struct launch_run {
    std::uint32_t at = 0;    // where the first begins in the stream, in words
    std::uint32_t words = 0; // of each
    std::uint32_t count = 0;
    std::uint32_t back = 0;
    word_mask differs; // has every word in which one of them differs from the one that it repeats
    word_mask objects; // those of them that are the id of a memory object, or 0

    std::uint32_t end() const { return at + words * count; }
    friend bool operator==(const launch_run&, const launch_run&) = default;
};
// In the order of the stream.
using launch_runs = std::span<const launch_run>;

} // namespace kagemusha::core
