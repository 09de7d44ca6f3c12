// SPDX-License-Identifier: GPL-2.0-or-later
// reported_in_order: what the guest may hear of one file whose kernels' results are shipped (differences = ship).
// Internal to primary_shadow.
//
// The standby executes a request that has no answer at a checkpoint anew, and its kernels may give something
// else there. So the guest must know nothing of such a request, nor of what comes after it: answers are given
// in the order of the requests, and a completion waits for the answers of all requests that were made before
// it was reported. Then whoever goes on with the guest is free to compute all of it again.
//
// Shipping may begin at any request. What the guest knows of those that were open then can't be taken back;
// but what comes after them waits for their answers, too, because what is shipped behind an in-flight request is
// nothing to whoever executes that one anew.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "core/mirror_tap.hpp"

namespace kagemusha::mirror {

class reported_in_order {
public:
    // What may be told now, that was held back before.
    struct released {
        std::vector<std::uint64_t> answers; // tokens, in order
        bool records = false;
    };

    bool empty() const { return requests_.empty(); }

    // It was handed on. Each token once until its on_done(). `ships`: from this one on results are shipped.
    void submitted(std::uint64_t token, core::log_range entries, bool ships) {
        in_order_ = in_order_ || ships;
        requests_.push_back({token, entries, ++last_, in_order_, false});
    }

    // It may be answered for all that anybody else knows. False: not before an earlier one; take_released()
    // says when.
    bool on_done(std::uint64_t token) {
        const auto at = std::find_if(requests_.begin(), requests_.end(),
                                     [&](const request& r) { return r.token == token; });
        if (at == requests_.end())
            return true; // from before
        if (at != requests_.begin() && at->in_order) {
            at->done = true;
            return false;
        }
        requests_.erase(at);
        while (!requests_.empty() && requests_.front().done) {
            released_.answers.push_back(requests_.front().token);
            requests_.pop_front();
        }
        if (records_held_ && (requests_.empty() || requests_.front().number > held_until_)) {
            records_held_ = false;
            released_.records = true;
        }
        return true;
    }

    // False: the guest must not hear of this completion, nor of what comes behind it.
    bool on_completion() {
        if (!records_held_ && in_order_ && !requests_.empty()) {
            records_held_ = true;
            held_until_ = requests_.back().number;
        }
        return !records_held_;
    }

    released take_released() { return std::exchange(released_, {}); }

    // No standby any more.
    released release_all() {
        released out = take_released();
        for (const request& r : requests_)
            if (r.done)
                out.answers.push_back(r.token);
        out.records |= records_held_;
        *this = {};
        return out;
    }

    bool holds_records() const { return records_held_; }
    // Whether the guest knows nothing of the request that left these entries in the log.
    bool knows_nothing_of(core::log_range entries) const {
        return std::any_of(requests_.begin(), requests_.end(), [&](const request& r) {
            return r.in_order && r.entries.after == entries.after && r.entries.last == entries.last;
        });
    }

private:
    struct request {
        std::uint64_t token;
        core::log_range entries;
        std::uint64_t number;
        bool in_order; // the guest knows nothing of it before its answer
        bool done;
    };
    std::deque<request> requests_; // without an answer; at most what a file may have open
    released released_;
    std::uint64_t last_ = 0, held_until_ = 0;
    bool in_order_ = false, records_held_ = false;
};

} // namespace kagemusha::mirror
