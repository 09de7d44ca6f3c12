// SPDX-License-Identifier: GPL-2.0-or-later
//
// Pinned memory that kernels reach has two copies: the program's own bytes, and the GPU's at the address that
// kernels are given. This is what decides which bytes go where. Beside both there is what was known last: the
// bytes that were the same on both sides. What the program's memory differs in from that was stored by the
// program, and what the GPU's differs in, by a kernel; so both may change different bytes at a time. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace kagemusha::cuda {

// Calls body(first, bytes) for each run of bytes in which two memories differ, in order, until it returns false.
// At most `gap` equal bytes between two of them do not part them.
template <class Body>
void for_each_difference(const std::byte* a, const std::byte* b, std::size_t bytes, std::size_t gap,
                         Body&& body) {
    constexpr std::size_t block = 4096, word = sizeof(std::uint64_t);
    std::size_t first = 0, last = 0; // the run so far; empty: none
    const auto differs = [&](std::size_t at) {
        if (first != last && at - last <= gap) {
            last = at + 1;
            return true;
        }
        const bool goes_on = first == last || body(first, last - first);
        first = at;
        last = at + 1;
        return goes_on;
    };
    for (std::size_t at = 0; at < bytes;) {
        if (bytes - at >= block && std::memcmp(a + at, b + at, block) == 0) {
            at += block;
            continue;
        }
        for (const std::size_t end = std::min(bytes, at + block); at < end;) {
            if (end - at >= word && std::memcmp(a + at, b + at, word) == 0) {
                at += word;
                continue;
            }
            for (const std::size_t stop = std::min(end, at + word); at < stop; ++at)
                if (a[at] != b[at] && !differs(at))
                    return;
        }
    }
    if (first != last)
        body(first, last - first);
}

// Takes what the GPU's memory differs in from what was known. All other bytes of the program's are left alone: it
// may be storing there.
inline void take_differences(std::byte* program, std::byte* known, const std::byte* gpu, std::size_t bytes) {
    for_each_difference(known, gpu, bytes, 0, [&](std::size_t first, std::size_t count) {
        std::memcpy(program + first, gpu + first, count);
        std::memcpy(known + first, gpu + first, count);
        return true;
    });
}

struct byte_range {
    std::uint64_t first = 0, bytes = 0;
    friend bool operator==(const byte_range&, const byte_range&) = default;
};

// Commands that may write one piece of such memory, and of which bytes nobody has fetched the result. A queue's
// commands are counted; they end in their order.
class unfetched_commands {
public:
    // A command that may write there is about to be sent to this queue.
    void begin(std::uint64_t queue, byte_range where) {
        auto one = std::find_if(of_queues_.begin(), of_queues_.end(),
                                [&](const entry& e) { return e.queue == queue; });
        if (one == of_queues_.end())
            one = of_queues_.insert(one, {queue, 0, where, 0, false});
        ++one->on_their_way;
        one->where = joined(one->where, where);
        one->is_over = false;
    }

    // It was sent, and is at most the queue's `place`th; or could not be.
    void sent(std::uint64_t queue, std::uint64_t place) {
        for (entry& one : of_queues_)
            if (one.queue == queue && one.on_their_way > 0) {
                --one.on_their_way;
                one.place = std::max(one.place, place);
            }
    }

    // This queue's commands are over up to this place.
    void reach(std::uint64_t queue, std::uint64_t place) {
        for (entry& one : of_queues_)
            if (one.queue == queue && one.on_their_way == 0 && one.place <= place)
                one.is_over = true;
    }

    // What has to be fetched where a program may look. Also what may be unfinished: some of that may be over, and
    // the program may know it by another way.
    std::optional<byte_range> stale() const {
        std::optional<byte_range> all;
        for (const entry& one : of_queues_)
            all = all ? joined(*all, one.where) : one.where;
        return all;
    }

    // All of stale() was fetched.
    void fetched() {
        std::erase_if(of_queues_, [](const entry& one) { return one.is_over; });
    }

    // Nothing on the GPU differs from what is known.
    bool is_empty() const { return of_queues_.empty(); }

private:
    struct entry {
        std::uint64_t queue, place; // of the last one that was sent
        byte_range where;
        unsigned on_their_way; // begun, not yet sent
        bool is_over;
    };

    static byte_range joined(byte_range a, byte_range b) {
        const std::uint64_t first = std::min(a.first, b.first);
        return {first, std::max(a.first + a.bytes, b.first + b.bytes) - first};
    }

    std::vector<entry> of_queues_;
};

// Whether one of the words of a launch's parameters is in [low, high). Pointers are aligned in a parameter, and
// each parameter begins at a multiple of 8 here.
template <class Body>
bool any_word(std::span<const std::byte> parameters, std::uint64_t low, std::uint64_t high, Body&& body) {
    for (std::size_t at = 0; at + sizeof(std::uint64_t) <= parameters.size(); at += sizeof(std::uint64_t)) {
        std::uint64_t word = 0;
        std::memcpy(&word, parameters.data() + at, sizeof word);
        if (word - low < high - low && body(word))
            return true;
    }
    return false;
}

} // namespace kagemusha::cuda
