// SPDX-License-Identifier: GPL-2.0-or-later
// run_checker: what the standby's device may do, judged only by what was appended on the primary and by what
// has arrived at the standby, not by what the state machines think:
//   - the entries that arrive are a prefix of the primary's log, each once and unchanged;
//   - nothing runs before a marker that covers it has arrived (and its checkpoint was applied), and all of
//   its
//     content;
//   - a call runs only when its outcome has arrived and allows it, or after a takeover;
//   - each entry runs at most once, in the order of its file; a reset runs alone;
//   - what comes in its file after a request that had no answer at the last checkpoint does not run before a
//     takeover; then each of those requests is executed once, in the place of its entries;
//   - what is skipped was canceled, had failed, or lay beyond the last commit at a takeover.
#pragma once

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "mirror/standby/replication_standby_fsm.hpp"
#include "sim/model_gpu.hpp"

namespace kagemusha::sim {

class run_checker {
public:
    // The primary's device begins a new log.
    void on_new_log() { log_.clear(); }
    void on_append(const body& b) { log_.push_back(b); }
    std::size_t appended() const { return log_.size(); }

    // The standby: a new connection, then what comes over it.
    void on_new_copy();
    std::string on_arrival(const body& b);
    void on_marker(std::uint64_t epoch, mirror::log_sequence up_to, bool checkpoint) {
        markers_[epoch] = {up_to, checkpoint};
    }
    void on_synced(mirror::log_sequence s) { synced_ = s; }
    void on_content(mirror::log_sequence s, std::uint32_t first_word, std::uint32_t words,
                    const std::array<std::uint64_t, max_words>& content);
    void on_outcome(mirror::log_sequence s, bool canceled, std::int32_t result);
    // The state of this epoch was applied; 0: what commits by itself is committed. An epoch that lacks
    // content is not.
    bool on_committed(std::uint64_t epoch);
    // With the last commit: the guest's requests without an answer.
    void on_open(std::vector<mirror::open_request> open);
    std::string on_resume(const mirror::open_request& r);
    void on_takeover() { taken_over_ = true; }
    // After a takeover: nothing that was open is forgotten.
    std::string all_resumed() const;

    std::string on_run(const body& b);
    std::string on_skip(mirror::log_sequence s);

    // Everything that was appended has run, or was rightly skipped.
    std::string all_done() const;
    mirror::log_sequence committed() const { return committed_; }
    bool complete_copy() const { return synced_ != 0 && committed_ >= synced_; }
    mirror::log_sequence first() const { return arrived_.empty() ? 0 : arrived_.front().entry.meta.sequence; }

    struct arrival {
        body entry;
        bool ran = false, skipped = false, canceled = false, outcome_known = false;
        std::int32_t result = 0;
        mirror::log_sequence before = 0; // the entry of its file before it
        bool settled() const { return ran || skipped; }
    };
    const std::vector<arrival>& arrived() const { return arrived_; }

private:
    arrival* find(mirror::log_sequence s);

    std::vector<body> log_;        // the primary's, of this run
    std::vector<arrival> arrived_; // of this copy
    std::unordered_map<std::uint32_t, mirror::log_sequence> last_of_file_;
    struct mark {
        mirror::log_sequence up_to;
        bool checkpoint;
    };
    std::map<std::uint64_t, mark> markers_;
    mirror::log_sequence committed_ = 0;
    std::size_t settled_ = 0;  // so many from the front are
    std::size_t complete_ = 0; // so many from the front have all of their content
    mirror::log_sequence synced_ = 0;
    std::vector<mirror::open_request> open_; // at the last commit, not resumed
    std::set<std::uint32_t> resumed_files_;  // an in-flight request of theirs was
    bool taken_over_ = false;
};

} // namespace kagemusha::sim
