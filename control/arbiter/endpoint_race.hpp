// SPDX-License-Identifier: GPL-2.0-or-later
//
// Which of several servers is asked when, so that one that is dead costs little: first the one that answered
// last; while no answer comes, after a short time each the next one too; after an error the next one at once.
// Pure: time is an argument, in milliseconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace kagemusha::control {

class endpoint_race {
public:
    // `count` servers, at least one; `first` is the index of the one to begin with.
    endpoint_race(std::size_t count, std::size_t first, std::uint64_t stagger_ms)
        : count_(count), first_(first), stagger_ms_(stagger_ms) {}

    // The index of a server to be asked now. Call until there is none.
    std::optional<std::size_t> next(std::uint64_t now) {
        if (asked_ == count_ || now < next_ms_)
            return std::nullopt;
        next_ms_ = now + stagger_ms_;
        return (first_ + asked_++) % count_;
    }
    // One that was asked will give no answer.
    void failed() {
        ++failed_;
        next_ms_ = 0;
    }
    bool lost() const { return failed_ == count_; }
    // When next() has one again.
    std::uint64_t next_ms() const { return asked_ == count_ ? UINT64_MAX : next_ms_; }

private:
    std::size_t count_, first_;
    std::uint64_t stagger_ms_;
    std::size_t asked_ = 0, failed_ = 0;
    std::uint64_t next_ms_ = 0;
};

} // namespace kagemusha::control
