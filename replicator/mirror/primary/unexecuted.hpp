// SPDX-License-Identifier: GPL-2.0-or-later
// unexecuted: for how long the standby could have executed what it has not. Part of primary_log.
//
// An entry counts from when this side was through with it: from when it came, or, if it awaits something of
// this side (a call's outcome, late content, digests), from when that was told. Before, the standby can't run
// it however fast it is: a guest that builds programs without a pause always has a build in the log that is
// as old as this side's compiler is slow.
//
// Only the oldest entry is looked at, as acknowledgements name no other. What lies behind one that awaits
// something may be of another file and late already; it counts when the first one has ended.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "mirror/log/log_entry.hpp"

namespace kagemusha::mirror {

class unexecuted {
public:
    void on_entry(log_sequence s, std::uint64_t now) {
        if (came_.empty() || came_.back().second != now)
            came_.emplace_back(s, now);
    }
    // What it awaited of this side was told; of one that is there already, nothing is to be remembered.
    void on_through(log_sequence s, std::uint64_t now) {
        if (s > executed_)
            through_[s] = now;
    }
    // All up to `executed`, of those up to `appended`.
    void on_executed(log_sequence executed, log_sequence appended) {
        executed_ = executed;
        while (came_.size() > 1 && came_[1].first <= executed + 1)
            came_.pop_front();
        if (executed == appended)
            came_.clear();
        while (!through_.empty() && through_.begin()->first <= executed) {
            // The next one of its file could not run before.
            since_ = std::max(since_, through_.begin()->second);
            through_.erase(through_.begin());
        }
    }

    bool empty() const { return came_.empty(); }
    // The first one that was not executed; there is one.
    log_sequence oldest() const { return std::max(executed_ + 1, came_.front().first); }
    // Of the oldest, which awaits nothing of this side.
    std::uint64_t since() const {
        const auto own = through_.find(oldest());
        return std::max({came_.front().second, since_, own == through_.end() ? 0 : own->second});
    }

private:
    log_sequence executed_ = 0;
    std::deque<std::pair<log_sequence, std::uint64_t>> came_; // first entry of a millisecond, which
    std::map<log_sequence, std::uint64_t> through_;           // of entries that are not executed
    std::uint64_t since_ = 0;                                 // the latest of those that are
};

} // namespace kagemusha::mirror
