// SPDX-License-Identifier: GPL-2.0-or-later
// primary_followups: what a standby still has to be told about entries after the entries themselves:
// outcomes, late content, digests, or that they must not run. Part of replication_primary_fsm.
//
//   - Nothing of an entry leaves before the entry was sent.
//   - What was announced by the entry's flags is told exactly once, or taken back by a cancel: when the
//   device
//     gives up, and for everything open of a file that ends.
//   - An entry without such flags costs nothing here.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "mirror/primary/replication_primary_fsm.hpp"
#include "mirror/protocol/action_queue.hpp"

namespace kagemusha::mirror {

class primary_followups {
public:
    explicit primary_followups(action_queue<primary_action>& actions) : actions_(actions) {}

    void clear();
    // `sent`: the last entry that was handed to the link.
    void on_entry(const entry_meta& meta, log_sequence sent);
    void on_outcome(log_sequence entry, bool canceled, std::int32_t result, log_sequence sent);
    void on_late_content(log_sequence entry, std::uint32_t payload, std::uint64_t bytes, log_sequence sent);
    void on_digests(log_sequence entry, std::vector<std::uint64_t> hashes, log_sequence sent,
                    std::uint64_t now);
    // Entries up to here were handed to the link just now.
    void on_sent(log_sequence sent);

    // The next piece of content whose entry was sent.
    bool next_content(content& out);
    bool has_content() const { return !ready_content_.empty(); }
    std::uint64_t waiting_bytes() const { return waiting_bytes_; } // of pieces that were not sent

    // The standby answered for this entry: how many hashes it was asked to compare. Nothing if nobody waits
    // for it (any more).
    std::optional<std::uint64_t> take_comparison(log_sequence entry);

    // When this side had the oldest digests that the standby has not answered for; UINT64_MAX: there are
    // none.
    std::uint64_t unanswered_since() const { return comparing_.empty() ? UINT64_MAX : *comparing_.begin(); }

    // Whether the standby can't execute an entry yet, or not end it, whatever its speed: this side has still
    // to tell an outcome, content or digests.
    bool awaits_this_side(log_sequence entry) const {
        const auto at = open_.find(entry);
        return at != open_.end() &&
               (at->second.wants_outcome || at->second.wants_digests || at->second.late_bytes != 0);
    }

    std::size_t size() const { return open_.size(); }

private:
    struct open_entry {
        std::uint32_t file = 0;
        bool wants_outcome = false;
        bool wants_digests = false;
        bool compares = false; // digests were told, the result was not
        std::uint64_t hashes = 0, compared_at = 0;
        std::uint64_t late_bytes = 0;                                 // that the device has not told yet
        std::vector<std::pair<std::uint32_t, std::uint64_t>> offsets; // of payloads, in late content
        std::vector<message> unsent;                                  // until the entry is
        std::uint64_t pieces = 0, piece_bytes = 0;                    // told by the device, not sent
        bool over() const {
            return !wants_outcome && !wants_digests && !compares && late_bytes == 0 && unsent.empty() &&
                   pieces == 0;
        }
    };
    using iterator = std::unordered_map<log_sequence, open_entry>::iterator;

    void tell(iterator at, message m, log_sequence sent);
    void cancel(iterator at, log_sequence sent);
    void end_file(std::uint32_t file, log_sequence sent);
    void erase_if_over(iterator at);
    void end_comparison(open_entry& o);

    action_queue<primary_action>& actions_;
    std::unordered_map<log_sequence, open_entry> open_;
    std::unordered_map<std::uint32_t, std::unordered_set<log_sequence>> of_file_;
    std::set<log_sequence> with_unsent_;
    std::multiset<std::uint64_t> comparing_; // compared_at of those that compare
    // Pieces of entries that were canceled since are skipped: their entry is not open any more.
    std::deque<content> ready_content_;
    std::uint64_t waiting_bytes_ = 0;
};

} // namespace kagemusha::mirror
