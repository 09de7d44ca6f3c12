// SPDX-License-Identifier: GPL-2.0-or-later
// content_in_use: which pieces of a file's guest memory the log may still send from, and who must not hear of
// something before the log has let go. Internal to primary_shadow.
//
// The guest may write over what a command read as soon as it knows that the command is complete: from its
// request's answer, from its event, or from the event of anything that comes after it. An event can wait only
// for commands of its own and of earlier requests, so its completion needs the content of those to be free.
// The GPU may write over it even earlier: by a read that the guest put behind the command, without waiting.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mirror/capture/memory_ranges.hpp"
#include "mirror/log/log_sink.hpp"
#include "mirror/log/stream_events.hpp"

namespace kagemusha::mirror {

class content_in_use {
public:
    bool empty() const { return used_.empty(); }

    // An entry of the request that is in hand. A request's entries are added before its events are noted.
    void add(std::uint64_t token, log_sequence entry, memory_ranges memory) {
        used_.push_back({next_request_, token, entry, std::move(memory), false, false});
    }

    // The request in hand reads into this memory. False: the log still uses some of it, and the request must
    // not be executed before on_released() says so.
    bool on_overwrite(const guest_memory& to, log_sink& log) {
        bool free = true;
        std::erase_if(used_, [&](use& u) {
            if (!u.memory.overlap(to))
                return false;
            const bool gone = let_go(u, log, free);
            u.overwritten |= !gone;
            return gone;
        });
        forget_events();
        return free;
    }

    // The events of the request in hand, while something is in use.
    void note_events(std::span<const std::byte> stream) {
        for_each_event(stream, [&](guest_id event) { request_of_event_[event] = next_request_; });
        ++next_request_;
    }

    // False: the log still uses memory of this request; on_released() says when it does not any more.
    bool on_done(std::uint64_t token, log_sink& log) {
        bool free = true;
        std::erase_if(used_, [&](use& u) { return u.token == token && let_go(u, log, free); });
        if (!free)
            held_answers_.push_back(token);
        forget_events();
        return free;
    }

    // The same of everything that the event may tell the end of.
    bool on_completion(guest_id event, log_sink& log) {
        const auto at = request_of_event_.find(event);
        if (at == request_of_event_.end())
            return !records_held_;
        const std::uint64_t request = at->second;
        request_of_event_.erase(at);
        bool free = true;
        std::erase_if(used_, [&](use& u) { return u.request <= request && let_go(u, log, free); });
        records_held_ |= !free;
        forget_events();
        return !records_held_;
    }

    bool holds_records() const { return records_held_; }

    struct released {
        bool found = false;
        bool answer = false; // of `token`
        bool records = false;
        bool requests = false; // that on_overwrite() was asked for
        std::uint64_t token = 0;
    };
    released on_released(log_sequence entry) {
        released out;
        const auto at =
            std::find_if(used_.begin(), used_.end(), [&](const use& u) { return u.entry == entry; });
        if (at == used_.end())
            return out;
        out.found = true;
        out.token = at->token;
        const bool was_overwritten = at->overwritten;
        used_.erase(at);
        const bool more_of_request =
            std::any_of(used_.begin(), used_.end(), [&](const use& u) { return u.token == out.token; });
        out.answer = !more_of_request && std::erase(held_answers_, out.token) != 0;
        const bool more = std::any_of(used_.begin(), used_.end(), [](const use& u) { return u.awaited; });
        out.records = records_held_ && !more;
        records_held_ = records_held_ && more;
        out.requests = was_overwritten &&
                       std::none_of(used_.begin(), used_.end(), [](const use& u) { return u.overwritten; });
        forget_events();
        return out;
    }

    // The file has ended; nobody is told any more.
    void release_all(log_sink& log) {
        for (const use& u : used_)
            if (!u.awaited)
                log.release_content(u.entry);
        *this = {};
    }

private:
    using guest_id = codec::guest_id;
    struct use {
        std::uint64_t request;
        std::uint64_t token;
        log_sequence entry;
        memory_ranges memory;
        bool awaited;     // the log was asked, and says when
        bool overwritten; // a request waits for it
    };

    static bool let_go(use& u, log_sink& log, bool& all_free) {
        if (!u.awaited && log.release_content(u.entry))
            return true;
        u.awaited = true;
        all_free = false;
        return false;
    }

    void forget_events() {
        if (used_.empty())
            request_of_event_.clear();
    }

    std::vector<use> used_; // in order
    std::unordered_map<guest_id, std::uint64_t> request_of_event_;
    std::vector<std::uint64_t> held_answers_;
    std::uint64_t next_request_ = 0;
    bool records_held_ = false;
};

} // namespace kagemusha::mirror
