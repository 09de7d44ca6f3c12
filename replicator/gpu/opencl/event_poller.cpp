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

// The pause between two looks: a part of the time since something last happened, between these bounds. The
// upper one is half a percent of a kernel of 50 ms.
constexpr int waited_to_pause = 32;
constexpr std::chrono::microseconds shortest_pause{5}, longest_pause{250};

std::chrono::nanoseconds pause_after(clock::duration waited) {
    return std::clamp<std::chrono::nanoseconds>(waited / waited_to_pause, shortest_pause, longest_pause);
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
            to.events.push_back(one.event);
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

bool event_poller::look() {
    bool news = false;
    for (auto at = lanes_.begin(); at != lanes_.end();) {
        news |= look_at(at->second);
        at = at->second.events.empty() ? lanes_.erase(at) : std::next(at);
    }
    return news;
}

bool event_poller::look_at(lane& one) {
    bool news = false;
    if (one.in_order) {
        while (!one.events.empty()) {
            const std::int32_t status = one.events.front()->poll();
            if (status > 0)
                break;
            opencl_event* const over = one.events.front();
            one.events.pop_front();
            conclude(over, status);
            news = true;
        }
        return news;
    }
    std::deque<opencl_event*> rest;
    for (opencl_event* const event : one.events) {
        const std::int32_t status = event->poll();
        if (status > 0) {
            rest.push_back(event);
            continue;
        }
        conclude(event, status);
        news = true;
    }
    one.events.swap(rest);
    return news;
}

void event_poller::conclude(opencl_event* event, std::int32_t status) {
    std::erase_if(staged_reads_, [&](opencl_event* read) {
        const std::int32_t state = read == event ? status : read->poll();
        if (state > 0)
            return false;
        read->settle(state);
        return true;
    });
    event->finish(status); // may destroy it
}

} // namespace kagemusha::gpu
