// SPDX-License-Identifier: GPL-2.0-or-later
//
// What has happened to clusters, for people: the last lines of the daemon's log, as objects with numbers.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

namespace kagemusha::control::daemon {

class event_log {
public:
    static constexpr std::size_t most = 300;
    using listener = std::function<void(const nlohmann::json& event)>;

    // Any thread may call. "" as cluster: the daemon itself.
    void add(const std::string& cluster, const std::string& text);
    nlohmann::json last() const; // an array, the oldest first
    // From now on; nobody: {}. It is called by whoever adds, and gets what there was first.
    void listen(listener to);

private:
    mutable std::mutex mutex_;
    std::deque<nlohmann::json> events_;
    std::uint64_t number_ = 0;
    listener to_;
};

// Now, "2026-11-26T05:00:00.123Z".
std::string utc_now();

} // namespace kagemusha::control::daemon
