// SPDX-License-Identifier: GPL-2.0-or-later
//
// One stream of a job's output: from the program that writes it to a reader who may be lost, and come back on
// another host. What is kept is what the reader has not confirmed yet, so none of it is lost; it asks from
// where it has it, so none comes twice. Pure.
//
// Positions are those of the file that the output goes to, so a reader needs only the file to know where to go
// on. Others may write into that file too (a batch system's notes, another job): then its size says too much. So
// a reader also says how its file ends, and goes on behind these bytes; if they are not to be found, output comes
// again rather than be lost.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace kagemusha::control::job {

inline constexpr std::size_t most_unconfirmed = 1 << 20; // then the program waits
inline constexpr std::size_t most_file_end = 128;        // bytes by which a file is recognized

class output_spool {
public:
    explicit output_spool(std::size_t capacity = most_unconfirmed) : capacity_(capacity) {}

    // Of the first reader: output begins where its file ends now.
    void begin_at(std::uint64_t position) { base_ = first_ = position; }

    std::size_t room() const { return capacity_ - kept_.size(); }
    // At most room().
    void append(std::string_view bytes) { kept_ += bytes.substr(0, room()); }

    std::uint64_t first() const { return first_; }
    std::uint64_t end() const { return first_ + kept_.size(); }
    // Where a reader goes on whose file has `position` bytes and ends with `file_end`: at most most_file_end of
    // them, none if it cannot tell.
    std::uint64_t begin_for(std::uint64_t position, std::string_view file_end = {}) const;
    // Until the next append() or confirm(). `position` is one that begin_for() gave.
    std::string_view from(std::uint64_t position) const {
        return std::string_view(kept_).substr(position - first_);
    }
    // The reader has everything before it for good.
    void confirm(std::uint64_t position) {
        const auto upto = std::clamp(position, first(), end());
        behind_ += std::string_view(kept_).substr(0, upto - first_);
        behind_.erase(0, behind_.size() - std::min(behind_.size(), most_file_end));
        kept_.erase(0, upto - first_);
        first_ = upto;
    }

private:
    std::uint64_t base_ = 0, first_ = 0;
    const std::size_t capacity_;
    std::string behind_; // what was confirmed last, before first_
    std::string kept_;
};

inline std::uint64_t output_spool::begin_for(std::uint64_t position, std::string_view file_end) const {
    const auto known = behind_ + kept_;
    const auto start = first_ - behind_.size();
    // Before our output the file has what we do not know.
    const auto ends_at = [&](std::uint64_t at) {
        const auto length = std::min<std::uint64_t>(file_end.size(), at - base_);
        return std::string_view(known)
            .substr(0, at - start)
            .ends_with(file_end.substr(file_end.size() - length));
    };
    if (position >= first() && position <= end() && ends_at(position))
        return position;
    const auto least = std::max(first(), base_ + file_end.size()); // fewer bytes say nothing
    for (auto at = least; !file_end.empty() && at <= end(); ++at)
        if (ends_at(at))
            return at;
    return first();
}

} // namespace kagemusha::control::job
