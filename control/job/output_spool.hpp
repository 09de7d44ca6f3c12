// SPDX-License-Identifier: GPL-2.0-or-later
//
// One stream of a job's output: from the program that writes it to a reader who may be lost, and come back on
// another host. What is kept is what the reader has not confirmed yet, so none of it is lost; it asks from
// where it has it, so none comes twice. Pure.
//
// Positions are those of the file that the output goes to, so a reader needs only the file to know where to
// go on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace kagemusha::control::job {

inline constexpr std::size_t most_unconfirmed = 1 << 20; // then the program waits

class output_spool {
public:
    // `base`: what was in the file before.
    explicit output_spool(std::uint64_t base, std::size_t capacity = most_unconfirmed)
        : first_(base), capacity_(capacity) {}

    std::size_t room() const { return capacity_ - kept_.size(); }
    // At most room().
    void append(std::string_view bytes) { kept_ += bytes.substr(0, room()); }

    std::uint64_t first() const { return first_; }
    std::uint64_t end() const { return first_ + kept_.size(); }
    // Where a reader that has everything before `position` goes on: what was confirmed is not there any more, and
    // a file may have got other bytes than these.
    std::uint64_t begin_for(std::uint64_t position) const { return std::clamp(position, first(), end()); }
    // Until the next append() or confirm(). `position` is one that begin_for() gave.
    std::string_view from(std::uint64_t position) const {
        return std::string_view(kept_).substr(position - first_);
    }
    // The reader has everything before it for good.
    void confirm(std::uint64_t position) {
        const auto upto = begin_for(position);
        kept_.erase(0, upto - first_);
        first_ = upto;
    }

private:
    std::uint64_t first_;
    const std::size_t capacity_;
    std::string kept_;
};

} // namespace kagemusha::control::job
