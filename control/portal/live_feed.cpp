// SPDX-License-Identifier: GPL-2.0-or-later
//
// See live_feed.hpp.
#include "control/portal/live_feed.hpp"

namespace kagemusha::control::portal {

void live_feed::append(entry what) {
    ++version_;
    if (!what.topic.empty())
        versions_[what.topic] = version_;
    entries_.emplace(version_, std::move(what));
}

void live_feed::forget(std::uint64_t version) {
    const auto found = entries_.find(version);
    if (found == entries_.end())
        return;
    if (const auto known = versions_.find(found->second.topic);
        known != versions_.end() && known->second == version)
        versions_.erase(known);
    entries_.erase(found);
}

void live_feed::put(const std::string& topic, std::string what) {
    if (const auto known = versions_.find(topic); known != versions_.end()) {
        const auto& last = entries_.at(known->second);
        if (!last.is_gone && *last.what == what)
            return;
        entries_.erase(known->second);
    }
    append({topic, std::make_shared<const std::string>(std::move(what)), false});
}

void live_feed::remove(const std::string& topic, std::string what) {
    const auto known = versions_.find(topic);
    if (known == versions_.end() || entries_.at(known->second).is_gone)
        return;
    entries_.erase(known->second);
    append({topic, std::make_shared<const std::string>(std::move(what)), true});
    gone_.push_back(version_);
    if (gone_.size() > most_gone) {
        forget(gone_.front());
        gone_.pop_front();
    }
}

void live_feed::add_event(std::string what) {
    append({{}, std::make_shared<const std::string>(std::move(what)), false});
    events_.push_back(version_);
    if (events_.size() > most_events) {
        forget(events_.front());
        events_.pop_front();
    }
}

std::vector<std::string> live_feed::topics() const {
    std::vector<std::string> out;
    for (const auto& [topic, version] : versions_)
        if (!entries_.at(version).is_gone)
            out.push_back(topic);
    return out;
}

std::vector<live_feed::text> live_feed::news(reader& who, std::size_t most_bytes) const {
    std::vector<text> out;
    std::size_t bytes = 0;
    const bool is_new = who.seen == 0;
    for (auto one = entries_.upper_bound(who.seen); one != entries_.end(); ++one) {
        if (!out.empty() && bytes + one->second.what->size() > most_bytes)
            break;
        who.seen = one->first;
        if (is_new && one->second.is_gone)
            continue; // it has never had it
        bytes += one->second.what->size();
        out.push_back(one->second.what);
    }
    return out;
}

} // namespace kagemusha::control::portal
