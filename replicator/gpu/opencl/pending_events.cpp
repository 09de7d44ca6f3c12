// SPDX-License-Identifier: GPL-2.0-or-later
// pending_events: see pending_events.hpp.
#include "gpu/opencl/pending_events.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "gpu/opencl/opencl_device.hpp"

namespace kagemusha::gpu {

namespace {

// How late a failure without a callback may be told. Rare, so it need not be soon; often enough for a person.
constexpr std::chrono::milliseconds look_every{100};

// Of failed commands: more than a file may have pending by default, so that the runtime is done with one when
// as many others have failed after it. A few hundred bytes each.
constexpr std::size_t max_kept = 32768;

} // namespace

pending_events& pending_events::instance() {
    static pending_events* const self = new pending_events;
    return *self;
}

pending_events::pending_events() {
    std::thread([this] { run(); }).detach();
}

std::uint64_t pending_events::add(opencl_event& event, const place& where,
                                  std::span<const std::uint64_t> waits) {
    const std::lock_guard held(mutex_);
    const std::uint64_t number = next_++;
    event.set_number(number);
    lane& in = lanes_[where.lane];
    const std::uint64_t after = where.in_order || where.for_all ? number : in.last_barrier;
    in.unreported.insert(number);
    if (where.barrier)
        in.last_barrier = number + 1; // the barrier itself is told before what comes after it
    entry& made = entries_.emplace(number, entry{&event, where.lane, after}).first->second;
    for (const std::uint64_t wait : waits)
        if (entries_.contains(wait)) {
            made.waits.push_back(wait);
            followers_[wait].push_back(number);
        }
    if (event.scatters())
        staged_reads_.push_back(&event);
    if (entries_.size() == 1)
        wake_.notify_one();
    return number;
}

void pending_events::called_back(std::uint64_t number, std::int32_t status) {
    lock held(mutex_);
    const auto at = entries_.find(number);
    if (at == entries_.end() || at->second.over)
        return;
    at->second.over = true;
    at->second.status = status;
    if (!at->second.pinned)
        tell(held, number, false);
}

void pending_events::remove(std::uint64_t number) {
    const std::lock_guard held(mutex_);
    const auto at = entries_.find(number);
    if (at == entries_.end())
        return;
    std::erase(staged_reads_, at->second.event);
    for (const std::uint64_t wait : at->second.waits)
        if (const auto found = followers_.find(wait); found != followers_.end())
            std::erase(found->second, number);
    // Nothing waits for it: it was the last that was added.
    const auto in = lanes_.find(at->second.lane);
    in->second.unreported.erase(number);
    if (in->second.unreported.empty())
        lanes_.erase(in);
    entries_.erase(at);
}

// An event waits only for earlier ones, so what was erased from its list is all that it ever waits for.
bool pending_events::may_be_told(const entry& one) {
    return *lanes_.at(one.lane).unreported.begin() >= one.after && one.waits.empty();
}

void pending_events::take_followers(std::uint64_t told, std::vector<std::uint64_t>& ready) {
    const auto waiting = followers_.extract(told);
    if (!waiting)
        return;
    for (const std::uint64_t number : waiting.mapped()) {
        entry& one = entries_.at(number);
        std::erase(one.waits, told);
        if (!one.waits.empty() || !one.held_by_waits)
            continue;
        lane& in = lanes_.at(one.lane);
        one.held_by_waits = false;
        --in.held_by_waits;
        in.held.emplace(one.after, number);
        take_ready(in, ready);
    }
}

// Each is looked at when it is put there and when it is taken: behind one that is told late there may be as
// many as a file may have pending, and whoever looked at all of them for each that is told would do nothing
// else for minutes.
void pending_events::take_ready(lane& from, std::vector<std::uint64_t>& ready) {
    const std::uint64_t turn = *from.unreported.begin();
    const auto begun = static_cast<std::ptrdiff_t>(ready.size());
    while (!from.held.empty() && from.held.begin()->first <= turn) {
        ready.push_back(from.held.begin()->second);
        from.held.erase(from.held.begin());
    }
    std::sort(ready.begin() + begun, ready.end());
}

void pending_events::hold(entry& one, std::uint64_t number) {
    lane& in = lanes_.at(one.lane);
    if (one.waits.empty()) {
        in.held.emplace(one.after, number);
        return;
    }
    one.held_by_waits = true;
    ++in.held_by_waits;
}

void pending_events::tell(lock& held, std::uint64_t number, bool on_thread) {
    std::vector<std::uint64_t> ready{number};
    for (std::size_t i = 0; i < ready.size(); ++i) {
        const std::uint64_t next = ready[i];
        entry& one = entries_.at(next);
        if (!on_thread && !staged_reads_.empty()) {
            deferred_.push_back(next);
            wake_.notify_one();
            continue;
        }
        if (!may_be_told(one)) {
            hold(one, next);
            continue;
        }
        opencl_event* const event = one.event;
        const std::int32_t status = one.status;
        const std::uint64_t lane_number = one.lane;
        held.unlock();
        if (on_thread)
            settle_reads(event, status);
        event->finish(status); // may destroy it
        held.lock();
        entries_.erase(next);
        const auto in = lanes_.find(lane_number);
        in->second.unreported.erase(next);
        if (in->second.unreported.empty())
            lanes_.erase(in);
        else
            take_ready(in->second, ready);
        take_followers(next, ready);
    }
}

void pending_events::settle_reads(const opencl_event* told, std::int32_t status) {
    lock held(mutex_);
    const std::vector<opencl_event*> reads = staged_reads_;
    held.unlock();
    std::vector<std::int32_t> states;
    ask_backwards(reads, told, status, states);
    std::vector<opencl_event*> settled;
    for (std::size_t i = 0; i < reads.size(); ++i) {
        if (states[i] > CL_COMPLETE)
            continue;
        reads[i]->settle(states[i]);
        settled.push_back(reads[i]);
    }
    held.lock();
    for (opencl_event* const read : settled)
        std::erase(staged_reads_, read);
}

std::int32_t pending_events::fail(const opencl_api& api, cl_event user_event, std::int32_t status) {
    const cl_int error = api.clSetUserEventStatus(user_event, status);
    std::vector<event_handle> old; // let go of without the lock; not while a call like the one above runs
    const std::lock_guard held(mutex_);
    for (; failed_.size() > max_kept; failed_.pop_front())
        old.push_back(std::move(failed_.front()));
    look_now_ = true;
    wake_.notify_one();
    return error;
}

void pending_events::keep(event_handle failed) {
    const std::lock_guard held(mutex_);
    failed_.push_back(std::move(failed));
}

void pending_events::run() {
    std::vector<std::uint64_t> numbers;
    lock held(mutex_);
    for (;;) {
        wake_.wait(held, [this] { return !entries_.empty(); });
        wake_.wait_for(held, look_every, [this] { return look_now_ || !deferred_.empty(); });
        while (!deferred_.empty()) {
            const std::uint64_t next = deferred_.front();
            deferred_.pop_front();
            tell(held, next, true);
        }
        look_now_ = false;
        numbers.clear();
        for (const auto& [number, e] : entries_)
            numbers.push_back(number);
        for (const std::uint64_t number : numbers)
            look_at(held, number);
    }
}

void pending_events::look_at(lock& held, std::uint64_t number) {
    auto at = entries_.find(number);
    if (at == entries_.end() || at->second.over)
        return; // told, or to be told by whoever was told that it is over
    opencl_event* const event = at->second.event;
    at->second.pinned = true;
    held.unlock();
    const std::int32_t status = event->poll();
    held.lock();
    at = entries_.find(number);
    if (at == entries_.end())
        return; // removed: nobody is to be told
    at->second.pinned = false;
    if (!at->second.over) {
        // A callback of success will come, unless the runtime forgot it while others wait for it.
        const lane& in = lanes_.at(at->second.lane);
        const bool others_wait = !in.held.empty() || in.held_by_waits != 0 || followers_.contains(number);
        if (status > CL_COMPLETE || (status == CL_COMPLETE && !others_wait))
            return;
        at->second.over = true;
        at->second.status = status;
    }
    tell(held, number, true);
}

} // namespace kagemusha::gpu
