// SPDX-License-Identifier: GPL-2.0-or-later
// event_poller: see event_poller.hpp.
#include "gpu/opencl/event_poller.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <thread>

#include "gpu/opencl/opencl_device.hpp"

namespace kagemusha::gpu {

namespace {

using clock = std::chrono::steady_clock;

using std::chrono::microseconds;
using std::chrono::nanoseconds;

// The pause between two looks: a thirty-second part of the time since something last happened, which for
// short commands is less than waking a thread costs, but no more than 0.1 ms until that is a 500th part. What
// waits for minutes (perhaps for the guest itself) is looked at every millisecond.
nanoseconds pause_after(nanoseconds waited) {
    const auto longest = std::clamp<nanoseconds>(waited / 500, microseconds(100), microseconds(1000));
    return std::clamp<nanoseconds>(waited / 32, microseconds(5), longest);
}

} // namespace

event_poller& event_poller::instance() {
    static event_poller* const self = new event_poller;
    return *self;
}

event_poller::event_poller() {
    std::thread([this] { run(); }).detach();
}

void event_poller::add(opencl_event& event, std::uint64_t lane, bool in_order) {
    const std::lock_guard lock(mutex_);
    arrived_.push_back({&event, lane, in_order});
    if (arrived_.size() == 1)
        wake_.notify_one();
}

void event_poller::run() {
    prctl(PR_SET_TIMERSLACK, 1); // else the kernel makes a pause of 5 µs one of 55
    std::vector<arrival> arrivals;
    clock::time_point last = clock::now();
    std::unique_lock lock(mutex_);
    for (;;) {
        if (lanes_.empty())
            wake_.wait(lock, [this] { return !arrived_.empty(); });
        arrivals.swap(arrived_);
        lock.unlock();
        for (const arrival& one : arrivals) {
            auto& to = lanes_.try_emplace(one.lane, lane{one.in_order, {}}).first->second;
            to.events.push_back({one.event, next_number_++});
            if (one.event->scatters())
                staged_reads_.push_back(one.event);
        }
        const bool news = look() || !arrivals.empty();
        arrivals.clear();
        const auto now = clock::now();
        if (news)
            last = now;
        lock.lock();
        if (!lanes_.empty())
            wake_.wait_for(lock, pause_after(now - last), [this] { return !arrived_.empty(); });
    }
}

// Again and again until nothing more is over: then whatever the events that were found waited for, in other
// queues too, was over before the last round, and was found as well.
bool event_poller::look() {
    over_.clear();
    for (std::size_t before = 0;; before = over_.size()) {
        for (auto at = lanes_.begin(); at != lanes_.end();) {
            look_at(at->second);
            at = at->second.events.empty() ? lanes_.erase(at) : std::next(at);
        }
        if (over_.size() == before)
            break;
    }
    // An event waits for earlier ones only.
    std::sort(over_.begin(), over_.end(),
              [](const found& a, const found& b) { return a.event.number < b.event.number; });
    for (const found& one : over_)
        conclude(one.event.event, one.status);
    // Of staged reads only the first: their bytes come into guest memory in order.
    const bool advanced = !staged_reads_.empty() && staged_reads_.front()->advance();
    return advanced || !over_.empty();
}

void event_poller::look_at(lane& one) {
    if (one.in_order) {
        while (!one.events.empty()) {
            const std::int32_t status = one.events.front().event->poll();
            if (status > 0)
                break;
            over_.push_back({one.events.front(), status});
            one.events.pop_front();
        }
        return;
    }
    std::erase_if(one.events, [this](const entry& waiting) {
        const std::int32_t status = waiting.event->poll();
        if (status <= 0)
            over_.push_back({waiting, status});
        return status <= 0;
    });
}

void event_poller::conclude(opencl_event* event, std::int32_t status) {
    ask_backwards(staged_reads_, event, status, states_);
    std::size_t at = 0;
    std::erase_if(staged_reads_, [&](opencl_event* read) {
        const std::int32_t state = states_[at++];
        if (state <= 0)
            read->settle(state);
        return state <= 0;
    });
    event->finish(status); // may destroy it
}

} // namespace kagemusha::gpu
