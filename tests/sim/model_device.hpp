// SPDX-License-Identifier: GPL-2.0-or-later
// model_device: the primary's device with its guest and its mirror, as far as the log can tell: it appends
// entries for what a random guest does, transfers state while the guest goes on, takes digests and repairs.
// It obeys the contract of mirror/log/log_sink.hpp.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "sim/model_gpu.hpp"
#include "sim/options.hpp"
#include "sim/rng.hpp"

namespace kagemusha::sim {

// What the device's thread tells the replication's thread, in order.
struct reported_entry {
    body entry;
};
struct reported_outcome {
    mirror::log_sequence entry;
    bool canceled;
    std::int32_t result;
};
struct reported_content {
    mirror::log_sequence entry;
    std::uint32_t first_word, words, total;
    std::array<std::uint64_t, max_words> content;
};
struct reported_digests {
    mirror::log_sequence entry;
    std::vector<std::uint64_t> hashes;
};
struct reported_synced {
    mirror::log_sequence last;
};
struct reported_failed {};
struct reported_stopped {};
using told = std::variant<reported_entry, reported_outcome, reported_content, reported_digests,
                          reported_synced, reported_failed, reported_stopped>;

class model_device {
public:
    model_device(const options& o, rng& random, std::uint64_t salt)
        : options_(o), random_(random), gpu_(salt) {}

    std::deque<told> out;

    // What the guest does next. False: it may not (congestion, a full queue).
    bool guest_step();
    // What happens by itself: a call answers, content has been read, the state transfer goes on.
    void work_step();
    void settle(); // the guest sets its events and does nothing more

    void start_sync();
    void stop();
    void set_congestion(bool on) { congested_ = on; }
    void on_digest_result(mirror::log_sequence entry, const std::vector<std::uint64_t>& different);
    void take_digests(); // of all files

    enum class mode : std::uint8_t { off, syncing, on };
    mode state() const { return mode_; }
    bool idle() const { return calls_.empty() && contents_.empty() && hashes_.empty() && comparing_.empty(); }
    const model_gpu& gpu() const { return gpu_; }
    // How many comparisons found a difference since the last question.
    std::uint64_t take_differences() { return std::exchange(differences_, 0); }
    std::uint64_t comparisons() const { return comparisons_; }

private:
    struct pending_call {
        mirror::log_sequence entry;
        std::uint32_t file;
        std::int32_t result;
    };
    struct pending_content {
        body entry;
        std::uint32_t reported_words = 0;
    };
    struct pending_hashes {
        mirror::log_sequence entry;
        std::uint32_t file;
        std::vector<std::uint64_t> hashes;
    };

    bool may_append() const { return mode_ != mode::off; }
    body make(std::uint32_t file) const;
    void append(body b);
    void append(mirror::entry_kind kind, std::uint32_t file);
    void submit(body b, bool writes);
    void end_work(std::uint32_t file);
    void ship(std::uint32_t file, std::uint8_t a);
    void digest(std::uint32_t file);
    std::uint32_t some_file();
    std::uint64_t& content(body& b);

    const options& options_;
    rng& random_;
    model_gpu gpu_;
    mode mode_ = mode::off;
    bool congested_ = false;
    mirror::log_sequence last_ = 0;
    std::uint32_t next_file_ = 1;
    std::set<std::uint32_t> lost_;
    std::set<std::pair<std::uint32_t, std::uint8_t>> dirty_; // in a state transfer
    std::vector<pending_call> calls_;
    std::vector<pending_content> contents_;
    std::vector<pending_hashes> hashes_;
    std::map<mirror::log_sequence, std::uint32_t> comparing_; // file
    std::uint64_t differences_ = 0, comparisons_ = 0;
};

} // namespace kagemusha::sim
