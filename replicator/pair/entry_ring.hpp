// SPDX-License-Identifier: GPL-2.0-or-later
// entry_ring: records of words from one thread to another inside this process, without a lock and without an
// instruction that waits for the other's processor. Who writes learns where the reader is only when its own
// memory of that says that there is no room.
//
// A record is in one piece; what is left at the end of the memory is passed over. A full ring is the
// caller's matter: it has another way.
//
// Threads: one writes; one reads, or several under a lock of theirs. has_records() is anybody's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kagemusha::pair {

class entry_ring {
public:
    // A power of two.
    explicit entry_ring(std::size_t words) : words_(words), memory_(new std::uint64_t[words]) {}

    // ---- who writes

    // Room for a record of at most so many words; null if there is none now, or never.
    std::uint64_t* reserve(std::size_t words) {
        const std::size_t needed = words + 1, at = offset(written_here_);
        const std::size_t passed_over = needed > words_ - at ? words_ - at : 0;
        if (needed > words_ / 2)
            return nullptr;
        if (needed + passed_over > words_ - (written_here_ - read_seen_)) {
            read_seen_ = read_.load(std::memory_order_acquire);
            if (needed + passed_over > words_ - (written_here_ - read_seen_))
                return nullptr;
        }
        if (passed_over != 0) {
            memory_[at] = pass_over;
            written_here_ += passed_over;
        }
        return memory_.get() + offset(written_here_) + 1;
    }
    // The record is complete, and has so many words: at most what was reserved.
    void publish(std::size_t words) {
        memory_[offset(written_here_)] = words;
        written_here_ += words + 1;
        written_.store(written_here_, std::memory_order_release);
    }

    // ---- who reads

    // The next record, until pop(); empty: there is none.
    std::span<const std::uint64_t> front() {
        const std::uint64_t end = written_.load(std::memory_order_acquire);
        std::uint64_t at = read_.load(std::memory_order_relaxed);
        if (at == end)
            return {};
        if (memory_[offset(at)] == pass_over) { // never the last thing that was written
            at += words_ - offset(at);
            read_.store(at, std::memory_order_release);
        }
        return {memory_.get() + offset(at) + 1, memory_[offset(at)]};
    }
    void pop() {
        const std::uint64_t at = read_.load(std::memory_order_relaxed);
        read_.store(at + memory_[offset(at)] + 1, std::memory_order_release);
    }

    bool has_records() const {
        return written_.load(std::memory_order_acquire) != read_.load(std::memory_order_relaxed);
    }

private:
    static constexpr std::uint64_t pass_over = UINT64_MAX;
    static constexpr std::size_t line_bytes = 64;
    std::size_t offset(std::uint64_t position) const { return position & (words_ - 1); }

    const std::size_t words_;
    const std::unique_ptr<std::uint64_t[]> memory_;

    // Words, ever. What one side writes often lies on lines of its own.
    alignas(line_bytes) std::uint64_t written_here_ = 0; // ahead of written_ by what was passed over
    std::uint64_t read_seen_ = 0;
    alignas(line_bytes) std::atomic<std::uint64_t> written_ = 0;
    alignas(line_bytes) std::atomic<std::uint64_t> read_ = 0;
};

} // namespace kagemusha::pair
