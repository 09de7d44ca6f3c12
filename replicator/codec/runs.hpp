// SPDX-License-Identifier: GPL-2.0-or-later
// runs: where the bytes of a WRITE_RUNS go. The format is described at vgpu_cmd_write_runs; one walk reads
// it, for the decoder, which checks all of it, and for whoever carries the command out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::codec {

// The number at `at`, which moves behind it. Null, or the rule that was broken.
inline const char* read_number(std::span<const std::byte> from, std::size_t& at, std::uint64_t& out) {
    constexpr const char* bad = "a number of a write's runs is too large or not the shortest";
    out = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (at == from.size())
            return "a write of runs ends in the middle of a number";
        const auto group = std::to_integer<std::uint64_t>(from[at++]);
        if (shift == 63 && group > 1)
            return bad;
        out |= (group & 0x7f) << shift;
        if ((group & 0x80) == 0)
            return group != 0 || shift == 0 ? nullptr : bad;
    }
    return bad;
}

struct buffer_run {
    std::uint64_t offset; // in the buffer
    std::uint32_t from;   // in the command's data
    std::uint32_t bytes;
};

// The runs one after the other, until they end or break a rule.
class run_walk {
public:
    run_walk(std::span<const std::byte> encoded, std::uint32_t data_bytes)
        : encoded_(encoded), data_bytes_(data_bytes) {}

    // False at the end, and after a rule was broken.
    bool next(buffer_run& out) {
        if (error_ || (repeats_ == 0 && !entry()))
            return false;
        --repeats_;
        if (++count_ > VGPU_MAX_RUNS)
            return fail("a write has more runs than VGPU_MAX_RUNS");
        if (length_ == 0 || length_ > data_bytes_ - from_)
            return fail("a run is empty, or the runs are longer than their data");
        std::uint64_t end = 0;
        if (__builtin_add_overflow(end_, gap_, &out.offset) ||
            __builtin_add_overflow(out.offset, length_, &end))
            return fail("offset + length of a run overflow");
        out.from = from_;
        out.bytes = static_cast<std::uint32_t>(length_);
        from_ += out.bytes;
        end_ = end;
        return true;
    }

    const char* error() const { return error_; }
    std::uint64_t end() const { return end_; }    // behind the last run
    std::uint32_t bytes() const { return from_; } // of all runs

private:
    bool fail(const char* why) {
        error_ = why;
        return false;
    }

    bool number(std::uint64_t& out) {
        const char* why = read_number(encoded_, at_, out);
        return !why || fail(why);
    }

    // False at the end of the entries, or if this one breaks a rule.
    bool entry() {
        std::uint64_t n = 0;
        if (at_ == encoded_.size() || !number(n))
            return false;
        switch (n & 3) {
        case VGPU_RUN_NEW:
            gap_ = n >> 2;
            repeats_ = 1;
            return number(length_);
        case VGPU_RUN_SAME_LENGTH:
            gap_ = n >> 2;
            repeats_ = 1;
            return count_ != 0 || fail("the first run of a write refers to one before it");
        case VGPU_RUN_REPEAT:
            repeats_ = n >> 2;
            return (count_ != 0 && repeats_ != 0) || fail("a repetition of no run, or of none before it");
        default:
            return fail("an unknown kind of run");
        }
    }

    std::span<const std::byte> encoded_;
    std::size_t at_ = 0;
    std::uint64_t end_ = 0;
    std::uint64_t gap_ = 0, length_ = 0;
    std::uint64_t repeats_ = 0; // runs that the entry in hand still gives
    std::uint32_t data_bytes_;
    std::uint32_t from_ = 0;
    std::uint32_t count_ = 0;
    const char* error_ = nullptr;
};

// The runs of a command that was decoded: iteration can't fail.
class run_list {
public:
    run_list() = default;
    run_list(std::span<const std::byte> encoded, std::uint32_t data_bytes)
        : encoded_(encoded), data_bytes_(data_bytes) {}
    template <class F>
    void for_each(F&& f) const { // f(const buffer_run&)
        run_walk walk(encoded_, data_bytes_);
        for (buffer_run run; walk.next(run);)
            f(run);
    }

private:
    std::span<const std::byte> encoded_;
    std::uint32_t data_bytes_ = 0;
};

} // namespace kagemusha::codec
