// SPDX-License-Identifier: GPL-2.0-or-later
// replayer: executes a memory_log on the standby's device, in order: each entry when all of its content is
// there and its outcome is known, as the real standby does after a commit. What the standby refuses, or
// answers unlike the primary, fails the test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "mirror/standby/replay_request.hpp"
#include "tests/support/memory_log.hpp"
#include "tests/support/test_device.hpp"

namespace kagemusha::mirror::testing {

class replayer {
public:
    // at_once: an entry without an answer waits for a user event, and later ones run. in_time: the standby's
    // worker has a thread; the answer to one entry comes before the next one begins.
    enum class answers { at_once, in_time };
    using compared = std::vector<std::pair<log_sequence, std::vector<std::uint64_t>>>; // what differs

    // `arena`: the standby's region 0.
    replayer(test_device& standby, std::span<std::byte> arena, memory_log& log, answers when)
        : standby_(standby), arena_(arena), log_(log), when_(when) {}

    log_sequence executed = 0;

    // As far as outcomes and content are known, and answers have come.
    void run() { run_to(log_.items.size()); }
    void run_to(log_sequence last);
    // The link is gone: what was not executed never is.
    void drop();
    bool idle() const { return executed == log_.items.size() && comparing_.empty(); }
    // Digests of both sides that have come since the last call.
    compared take_compared();

    // Once no user event is unset any more.
    void expect_answers();

private:
    enum class begun { no, skipped, runs };
    begun begin(memory_log::item& i);
    begun begin_submit(memory_log::item& i);
    bool run_one(memory_log::item& i);
    void ended(memory_log::item& i, const vgpu_response& response);
    void forget_answered();

    test_device& standby_;
    const std::span<std::byte> arena_;
    memory_log& log_;
    const answers when_;
    replay_request replay_; // of the entry that runs
    std::uint64_t token_ = 0;
    std::uint64_t arena_used_ = 0;
    std::vector<std::pair<log_sequence, std::uint64_t>> unanswered_;
    std::map<log_sequence, std::vector<std::uint64_t>> comparing_; // digests here
};

} // namespace kagemusha::mirror::testing
