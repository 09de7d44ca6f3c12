// SPDX-License-Identifier: GPL-2.0-or-later
//
// See early_writes.hpp.
#include "early_writes.hpp"

#include "queue.hpp"

namespace kagemusha::opencl {

void early_writes::add(queue& where, std::uint64_t number) {
    const std::lock_guard held(mutex_);
    last_write& last = last_[where.id()];
    if (number > last.number) // else another thread's is behind this one
        last = {&where, number, 0};
    any_.store(true, std::memory_order_release);
}

std::vector<early_writes::write> early_writes::elsewhere(const queue& here) const {
    std::vector<write> found;
    if (!any_.load(std::memory_order_acquire))
        return found;
    const std::lock_guard held(mutex_);
    for (const auto& [id, one] : last_)
        if (id != here.id())
            found.push_back({id, one.number, one.marker, ref<queue>(one.marker ? nullptr : one.where)});
    return found;
}

bool early_writes::unmarked(const queue& where) const {
    if (!any_.load(std::memory_order_acquire))
        return false;
    const std::lock_guard held(mutex_);
    const auto found = last_.find(where.id());
    return found != last_.end() && found->second.marker == 0;
}

void early_writes::mark(std::uint64_t queue_id, std::uint64_t number, std::uint64_t marker) {
    const std::lock_guard held(mutex_);
    const auto found = last_.find(queue_id);
    if (found != last_.end() && found->second.number <= number)
        found->second.marker = marker;
}

void early_writes::forget(std::uint64_t queue_id, std::uint64_t number) {
    const std::lock_guard held(mutex_);
    const auto found = last_.find(queue_id);
    if (found != last_.end() && found->second.number <= number)
        last_.erase(found);
    any_.store(!last_.empty(), std::memory_order_release);
}

} // namespace kagemusha::opencl
