// SPDX-License-Identifier: GPL-2.0-or-later
//
// See registration_fsm.hpp.
#include "kubernetes/core/registration_fsm.hpp"

#include <algorithm>

namespace kagemusha::kubernetes {

namespace {

// After a failure; twice as long after each further one.
constexpr std::uint64_t first_pause_ms = 500, longest_pause_ms = 30'000;

} // namespace

registration_fsm::action registration_fsm::step(const std::optional<file_identity>& kubelet,
                                                const std::optional<file_identity>& own,
                                                std::uint64_t now_ms) {
    if (own_ && own != own_) { // removed, or somebody else's
        own_.reset();
        told_.reset();
    }
    if (told_ && kubelet != told_)
        told_.reset();
    if (now_ms < not_before_ms_)
        return action::none;
    if (!own_)
        return action::serve;
    return kubelet && !told_ ? action::enlist : action::none;
}

void registration_fsm::served(const std::optional<file_identity>& own, std::uint64_t now_ms) {
    own_ = own;
    if (!own)
        failed(now_ms);
}

void registration_fsm::enlisted(const std::optional<file_identity>& kubelet, std::uint64_t now_ms) {
    told_ = kubelet;
    if (!kubelet)
        return failed(now_ms);
    pause_ms_ = not_before_ms_ = 0;
}

void registration_fsm::failed(std::uint64_t now_ms) {
    pause_ms_ = std::clamp(2 * pause_ms_, first_pause_ms, longest_pause_ms);
    not_before_ms_ = now_ms + pause_ms_;
}

} // namespace kagemusha::kubernetes
