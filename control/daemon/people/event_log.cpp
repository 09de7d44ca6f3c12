// SPDX-License-Identifier: GPL-2.0-or-later
//
// See event_log.hpp.
#include "control/daemon/people/event_log.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>

namespace kagemusha::control::daemon {

std::string utc_now() {
    const auto now = std::chrono::system_clock::now();
    const auto ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
    return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(now)),
                       ms);
}

void event_log::add(const std::string& cluster, const std::string& text) {
    const std::lock_guard lock(mutex_);
    events_.push_back({{"number", ++number_}, {"at", utc_now()}, {"cluster", cluster}, {"text", text}});
    if (events_.size() > most)
        events_.pop_front();
    if (to_)
        to_(events_.back());
}

nlohmann::json event_log::last() const {
    const std::lock_guard lock(mutex_);
    return nlohmann::json::array_t(events_.begin(), events_.end());
}

void event_log::listen(listener to) {
    const std::lock_guard lock(mutex_);
    to_ = std::move(to);
    if (to_)
        for (const auto& one : events_)
            to_(one);
}

} // namespace kagemusha::control::daemon
