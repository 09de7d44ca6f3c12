// SPDX-License-Identifier: GPL-2.0-or-later
//
// takeover_drill: `kage drill`, a takeover on purpose. The primary's QEMU is killed as a power supply would
// do it, the standby goes on, and whoever asked is told how long each step took, as far as the primary's host
// sees it. (The standby's own supervisor has the rest: last_takeover_ns of its status.) The state machine
// decides whether it may be: only while a standby would go on. Pure; times are ns of any clock that does not
// go back.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace kagemusha::control {

class takeover_drill {
public:
    // So long after begin() QEMU was killed, or nobody allowed it.
    static constexpr std::uint64_t permission_ns = 2'000'000'000;

    // `checkpoint_age_ms`: how old the standby's last checkpoint is.
    void begin(std::uint64_t checkpoint_age_ms, std::uint64_t now);
    bool under_way() const { return begun_; }
    void killed(std::uint64_t now);
    void qemu_ended(std::uint64_t now);
    // Nothing, or what to answer: it was not allowed.
    std::optional<nlohmann::json> refusal(std::uint64_t now);
    // The supervisor is through. What to answer.
    nlohmann::json over(bool in_order, const std::string& why, std::uint64_t now) const;

private:
    bool begun_ = false;
    std::uint64_t checkpoint_age_ms_ = 0;
    std::uint64_t begun_at_ = 0, killed_at_ = 0, ended_at_ = 0; // 0: not yet
};

// For a person.
std::string drill_text(const nlohmann::json& result);

} // namespace kagemusha::control
