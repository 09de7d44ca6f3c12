// SPDX-License-Identifier: GPL-2.0-or-later
// completion_filter: after a takeover, which completions the guest must still hear of. At the last checkpoint it
// knew of some and waited for others; the standby's GPU executed what was committed in its own time. So
//
//   an event the guest waited for     is told once, whenever its command completes here, or now if it has
//   an event that it knew of          is not told again, although its command completes here
//   an event of a later command       is told as always
//
// Pure. Costs nothing once what was open at the takeover is over.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "codec/op.hpp"
#include "core/object_table.hpp"
#include "mirror/log/stream_events.hpp"

namespace kagemusha::mirror {

class completion_filter {
public:
    // What the guest waited for in this file.
    void waited_for(std::uint32_t file, std::span<const codec::guest_id> events) {
        files_[file].unreported.insert(events.begin(), events.end());
    }
    // A command with this event was executed for the standby's log, or is executed again for the guest.
    void executed_before(std::uint32_t file, codec::guest_id event) {
        file_view& f = files_[file];
        if (!f.unreported.contains(event))
            f.quiet.insert(event);
    }
    void executed_before(std::uint32_t file, std::span<const std::byte> stream) {
        for_each_event(stream, [&](codec::guest_id event) { executed_before(file, event); });
    }

    // An event completed. False: the guest knows.
    bool tells(std::uint32_t file, codec::guest_id event) const {
        const auto f = files_.find(file);
        return f == files_.end() || !f->second.quiet.contains(event);
    }
    // Events that the guest knows of and that may not have completed here: what it asks for next relies on
    // them.
    std::vector<codec::guest_id> known(std::uint32_t file) const {
        const auto f = files_.find(file);
        return f == files_.end()
                   ? std::vector<codec::guest_id>()
                   : std::vector<codec::guest_id>(f->second.quiet.begin(), f->second.quiet.end());
    }
    // And that was acted upon.
    void over(std::uint32_t file, codec::guest_id event) {
        if (const auto f = files_.find(file); f != files_.end()) {
            f->second.quiet.erase(event);
            f->second.unreported.erase(event);
            if (f->second.quiet.empty() && f->second.unreported.empty())
                files_.erase(f);
        }
    }

    struct completion {
        std::uint32_t file;
        codec::guest_id event;
        std::int32_t status;
    };
    // Events of the file that the guest waits for and that completed here before anybody listened.
    // `everything`: also those that this device never heard of: nothing of what could make them is left to be
    // executed.
    std::vector<completion> completed(std::uint32_t file, const core::object_table* objects,
                                      bool everything) {
        std::vector<completion> out;
        const auto f = files_.find(file);
        if (f == files_.end())
            return out;
        for (const codec::guest_id event : f->second.unreported) {
            const core::object* o = objects ? objects->find(event, VGPU_OBJECT_EVENT) : nullptr;
            if (o ? o->event == core::event_state::done || o->event == core::event_state::refused
                  : everything && !(objects && objects->taken(event))) {
                out.push_back({file, event, o ? o->status : 0});
            }
        }
        for (const completion& c : out)
            over(file, c.event);
        return out;
    }
    void forget(std::uint32_t file) { files_.erase(file); }
    void clear() { files_.clear(); }
    bool empty() const { return files_.empty(); }

private:
    struct file_view {
        std::unordered_set<codec::guest_id> unreported, quiet;
    };
    std::map<std::uint32_t, file_view> files_;
};

} // namespace kagemusha::mirror
