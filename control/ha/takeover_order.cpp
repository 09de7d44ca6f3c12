// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/ha/takeover_order.hpp"

namespace kagemusha::ha {
namespace {

// A heartbeat is due. The budget is at least two of them, so who decided by silence finds those whose primaries
// fell silent with its own. A heartbeat that is only late costs a lower one the wait for it.
bool is_silent(const other_standby& one, std::uint64_t now_ns) {
    return now_ns > one.heard_ns && now_ns - one.heard_ns >= one.heartbeat_ns;
}

} // namespace

takeover_turn turn_of(std::uint32_t priority, std::uint64_t decided_ns, std::span<const other_standby> others,
                      std::uint64_t now_ns) {
    takeover_turn out;
    for (const other_standby& one : others) {
        if (one.priority <= priority)
            continue;
        if (one.phase == takeover_phase::taking_over ||
            (one.phase == takeover_phase::standing_by && is_silent(one, now_ns)))
            out.for_whom += (out.for_whom.empty() ? "" : ", ") + one.name;
    }
    if (out.for_whom.empty())
        return out;
    out.gave_up = now_ns > decided_ns && now_ns - decided_ns >= longest_order_wait_ns;
    out.begins = out.gave_up;
    return out;
}

} // namespace kagemusha::ha
