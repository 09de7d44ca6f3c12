// SPDX-License-Identifier: GPL-2.0-or-later
//
// live_feed: what open pages show, and what each of them does not have yet. A topic (a cluster, the host) is
// only ever its newest text: a page that reads slowly skips what was in between, so nobody has a queue. Events
// are kept up to a number; a page that missed more gets those that are left.
//
// Pure. Texts are shared with whoever sends them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace kagemusha::control::portal {

class live_feed {
public:
    using text = std::shared_ptr<const std::string>;
    static constexpr std::size_t most_events = 300, most_gone = 1000;

    // The same text as before changes nothing.
    void put(const std::string& topic, std::string what);
    // `what` is for pages that have had the topic.
    void remove(const std::string& topic, std::string what);
    void add_event(std::string what);
    std::vector<std::string> topics() const; // that are there

    struct reader {
        std::uint64_t seen = 0;
    };
    // At most `most_bytes` of it, but one text in any case; the oldest first. Empty: it has everything.
    std::vector<text> news(reader& who, std::size_t most_bytes) const;

private:
    struct entry {
        std::string topic; // "": an event
        text what;
        bool is_gone = false;
    };
    void append(entry what);
    void forget(std::uint64_t version);

    std::uint64_t version_ = 0;
    std::map<std::uint64_t, entry> entries_; // by version; one for each topic
    std::map<std::string, std::uint64_t> versions_;
    std::deque<std::uint64_t> events_, gone_;
};

} // namespace kagemusha::control::portal
