// SPDX-License-Identifier: GPL-2.0-or-later
// The epochs of a standby's copy: those that the primary has closed, those whose entries are all here, and what was
// committed. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "mirror/protocol/message.hpp"

namespace kagemusha::mirror {

class standby_marks {
public:
    // The rule that it breaks, or nothing. `received`: the last entry that is here.
    std::string on_marker(const marker& m, log_sequence received);

    // Everything before this entry is here. Returns the last epoch that became complete by that and needs no
    // checkpoint; 0: none did.
    std::uint64_t complete_before(log_sequence first_incomplete);

    // Up to this epoch. Returns the last entry of it, or nothing if no complete epoch is among them.
    std::optional<log_sequence> commit(std::uint64_t epoch);

    // What is not committed never will be.
    void drop_uncommitted();

    std::uint64_t epoch() const { return last_.epoch; }
    std::uint64_t complete_epoch() const { return complete_epoch_; }
    std::uint64_t committed_epoch() const { return committed_epoch_; }
    std::uint64_t complete_checkpoint() const { return complete_checkpoint_; } // of epochs that one commits
    std::uint64_t committed_checkpoint() const { return committed_checkpoint_; }
    std::uint64_t pending() const { return open_.size() + complete_.size(); }

private:
    std::deque<marker> open_;     // not all content is there
    std::deque<marker> complete_; // may be committed
    marker last_;
    std::uint64_t complete_epoch_ = 0, committed_epoch_ = 0;
    std::uint64_t complete_checkpoint_ = 0, committed_checkpoint_ = 0;
};

} // namespace kagemusha::mirror
