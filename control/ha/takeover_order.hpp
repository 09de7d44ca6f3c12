// SPDX-License-Identifier: GPL-2.0-or-later
//
// takeover_order: when many standbys of one host take over at once, because the host of their primaries died,
// those of a higher priority begin first: starting a VM takes processors, and its GPU catches up. Pure.
//
// A standby waits for those of a higher priority that take over and do not run yet, and for those whose
// primary has fallen silent, too, and that have not decided yet: one host's death is noticed within one
// heartbeat by all. It never waits longer than longest_order_wait_ns; to begin late is always safe, because
// its right is asked for meanwhile, and the gate opens with that.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace kagemusha::ha {

inline constexpr std::uint32_t most_takeover_priority = 7; // 0 is the default, and waits for all others

// 25 takeovers take less than that on a host that is to bear them; what is longer is a fault of another VM.
inline constexpr std::uint64_t longest_order_wait_ns = 1'000'000'000;

enum class takeover_phase : std::uint8_t {
    none,        // it could not take over now
    standing_by, // its primary runs, or is silent for less than the budget
    taking_over, // decided, and not running yet
    runs,
};

// Another standby of this host, as it was seen last.
struct other_standby {
    std::string name;
    std::uint32_t priority = 0;
    takeover_phase phase = takeover_phase::none;
    std::uint64_t heard_ns = 0;     // its primary's last heartbeat
    std::uint64_t heartbeat_ns = 0; // how often these come
};

struct takeover_turn {
    bool begins = true;
    bool gave_up = false; // somebody is still first, and was waited for long enough
    std::string for_whom; // names of those that are first
};

takeover_turn turn_of(std::uint32_t priority, std::uint64_t decided_ns, std::span<const other_standby> others,
                      std::uint64_t now_ns);

} // namespace kagemusha::ha
