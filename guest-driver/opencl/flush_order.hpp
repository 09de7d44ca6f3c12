// SPDX-License-Identifier: GPL-2.0-or-later
//
// Where the stores into mapped memory go in a context with several queues, and what waits for them. Pure.
//
// With one queue, a flush goes to the queue of the request that it precedes, and its order does the rest.
// With several, no queue of the program is good for all: commands of another queue would not wait for what
// was flushed there, and if they did, they would wait for whatever that queue waits for. So the context gets
// a queue of ours that has nothing but flushes. After each flush there comes a marker, and whichever queue
// gets commands next waits for its event first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace kagemusha::opencl {

class flush_order {
public:
    // The context's flushes go to this queue from now on.
    void add(std::uint64_t context, std::uint64_t queue) { lines_[context].queue = queue; }

    // The event that nobody needs any more, or 0.
    std::uint64_t remove(std::uint64_t context) {
        const auto found = lines_.find(context);
        if (found == lines_.end())
            return 0;
        const std::uint64_t event = found->second.event;
        lines_.erase(found);
        return event;
    }

    // The queue for flushes, or 0: they go to the queue of the request.
    std::uint64_t queue_of(std::uint64_t context) const {
        const auto found = lines_.find(context);
        return found == lines_.end() ? 0 : found->second.queue;
    }

    // Something was flushed, and `event` is that of the marker behind it. The event before it, or 0.
    std::uint64_t flushed(std::uint64_t context, std::uint64_t event) {
        line& one = lines_.at(context);
        one.waiting.clear();
        return std::exchange(one.event, event);
    }

    // What the queue has to wait for before its next command, or 0. Once for each flush.
    std::uint64_t wait_for(std::uint64_t context, std::uint64_t queue) {
        line& one = lines_.at(context);
        if (one.event == 0 || std::find(one.waiting.begin(), one.waiting.end(), queue) != one.waiting.end())
            return 0;
        one.waiting.push_back(queue);
        return one.event;
    }

    // Every context that has such a queue, with it.
    template <class F>
    void for_each(F&& f) const {
        for (const auto& [context, one] : lines_)
            f(context, one.queue);
    }

private:
    struct line {
        std::uint64_t queue = 0;
        std::uint64_t event = 0;            // of the last flush that sent something
        std::vector<std::uint64_t> waiting; // queues with commands that wait for it
    };
    std::map<std::uint64_t, line> lines_; // by context
};

} // namespace kagemusha::opencl
