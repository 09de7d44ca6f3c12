// SPDX-License-Identifier: GPL-2.0-or-later
//
// See rate_limiter.hpp.
#include "control/access/rate_limiter.hpp"

#include <algorithm>
#include <cmath>

namespace kagemusha::control::access {

double rate_limiter::left_of(const bucket& one, double now_s) const {
    return std::min(rule_.at_once, one.left + std::max(0.0, now_s - one.at_s) * rule_.per_s);
}

rate_limiter::bucket& rate_limiter::of(const std::string& name, double now_s) {
    const auto found = table_.find(name);
    if (found != table_.end())
        return found->second;
    if (table_.size() >= most_)
        std::erase_if(table_, [&](const auto& one) { return left_of(one.second, now_s) >= rule_.at_once; });
    return table_.try_emplace(table_.size() < most_ ? name : std::string(), bucket{rule_.at_once, now_s})
        .first->second;
}

bool rate_limiter::allow(const std::string& name, double now_s) {
    auto& one = of(name, now_s);
    one = {left_of(one, now_s), now_s};
    if (one.left < 1)
        return false;
    one.left -= 1;
    return true;
}

unsigned rate_limiter::retry_after_s() const {
    return static_cast<unsigned>(std::max(1.0, std::ceil(1 / rule_.per_s)));
}

} // namespace kagemusha::control::access
