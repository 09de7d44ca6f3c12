// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/shadow/happens_before.hpp"

#include <algorithm>
#include <utility>

namespace kagemusha::mirror {

void happens_before::start() {
    stop();
    running_ = true;
}

void happens_before::stop() {
    running_ = tracks_ = false;
    newest_ = 0;
    queues_.clear();
    of_nobody_.clear();
    known_ = 0;
    queue_of_.clear();
}

happens_before::queue_state* happens_before::find(guest_id queue) {
    const auto at =
        std::find_if(queues_.begin(), queues_.end(), [&](const auto& q) { return q.id == queue; });
    return at == queues_.end() ? nullptr : &*at;
}

void happens_before::queue_made(guest_id queue, bool out_of_order) {
    if (!running_)
        return;
    queue_gone(queue); // one that could not be made
    queues_.push_back({queue, out_of_order, {}});
    if (!tracks_ && (queues_.size() > 1 || out_of_order)) {
        tracks_ = true;
        if (const guest_id event = std::exchange(newest_, 0)) {
            of_nobody_.push_back(event);
            ++known_;
        }
    }
}

void happens_before::queue_gone(guest_id queue) {
    queue_state* q = find(queue);
    if (!q)
        return;
    of_nobody_.insert(of_nobody_.end(), q->known.begin(), q->known.end());
    queues_.erase(queues_.begin() + (q - queues_.data()));
}

void happens_before::completed(guest_id event, bool failed) {
    if (!tracks_) {
        if (running_ && !failed)
            newest_ = event;
        return;
    }
    const auto of = queue_of_.extract(event);
    if (failed)
        return;
    queue_state* q = of ? find(of.mapped()) : nullptr;
    std::vector<guest_id>& known = q ? q->known : of_nobody_;
    if (q && !q->out_of_order && !known.empty()) {
        known.front() = event;
        return;
    }
    known.push_back(event);
    ++known_;
}

bool happens_before::holds(guest_id only_queue) const {
    std::uint64_t own = 0;
    if (known_ != 0 && only_queue != 0)
        for (const queue_state& q : queues_)
            own += keeps_order(q, only_queue) ? q.known.size() : 0;
    return known_ != own;
}

void happens_before::take(guest_id only_queue, std::vector<guest_id>& out) {
    const auto move = [&](std::vector<guest_id>& known) {
        out.insert(out.end(), known.begin(), known.end());
        known_ -= known.size();
        known.clear();
    };
    move(of_nobody_);
    for (queue_state& q : queues_)
        if (!keeps_order(q, only_queue))
            move(q.known);
}

} // namespace kagemusha::mirror
