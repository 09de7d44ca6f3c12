// SPDX-License-Identifier: GPL-2.0-or-later
//
// Early writes: blocking writes that returned when their bytes were taken, before the GPU had them. That is
// what the standard asks of a blocking write, and behind one in its own in-order queue nobody sees the
// difference. Programs also take one for done in every other queue of the context, where other
// implementations make it so. So commands of other queues wait for it.
//
// Of each queue only the last one counts: it is over after those before it. Only numbers are kept; an event
// belongs to its connection until it is over.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>

namespace kagemusha::opencl {

// Any thread.
class early_writes {
public:
    void add(std::uint64_t queue, std::uint64_t event) {
        const std::lock_guard held(mutex_);
        last_[queue] = event;
        any_.store(true, std::memory_order_release);
    }

    // still_runs(event) for what a command of `queue` has to wait for. False: it is over, and forgotten.
    template <class F>
    void for_each_before(std::uint64_t queue, F&& still_runs) {
        if (!any_.load(std::memory_order_acquire))
            return;
        const std::lock_guard held(mutex_);
        std::erase_if(last_, [&](const auto& one) { return one.first != queue && !still_runs(one.second); });
        any_.store(!last_.empty(), std::memory_order_release);
    }

private:
    std::mutex mutex_;
    std::map<std::uint64_t, std::uint64_t> last_; // queue, event
    std::atomic<bool> any_{false};
};

} // namespace kagemusha::opencl
