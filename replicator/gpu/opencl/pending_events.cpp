// SPDX-License-Identifier: GPL-2.0-or-later
// pending_events: see pending_events.hpp.
#include "gpu/opencl/pending_events.hpp"

#include <chrono>
#include <thread>
#include <vector>

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

std::uint64_t pending_events::add(opencl_event& event) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t number = next_++;
    entries_.emplace(number, entry{&event});
    if (event.scatters())
        staged_reads_.push_back(&event);
    if (entries_.size() == 1)
        wake_.notify_one();
    return number;
}

opencl_event* pending_events::take(std::uint64_t number, std::int32_t status) {
    const std::lock_guard lock(mutex_);
    const auto at = entries_.find(number);
    if (at == entries_.end())
        return nullptr;
    if (at->second.pinned) {
        at->second.called_back = true;
        at->second.status = status;
        return nullptr;
    }
    opencl_event* event = at->second.event;
    entries_.erase(at);
    if (staged_reads_.empty())
        return event;
    deferred_.push_back({event, status});
    wake_.notify_one();
    return nullptr;
}

void pending_events::remove(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto at = entries_.find(number);
    if (at == entries_.end())
        return;
    std::erase(staged_reads_, at->second.event);
    entries_.erase(at);
}

void pending_events::conclude(opencl_event* event, std::int32_t status) {
    std::unique_lock lock(mutex_);
    const std::vector<opencl_event*> reads = staged_reads_;
    lock.unlock();
    std::vector<opencl_event*> settled;
    for (opencl_event* const read : reads) {
        const std::int32_t state = read == event ? status : read->poll();
        if (state > CL_COMPLETE)
            continue;
        read->settle(state);
        settled.push_back(read);
    }
    lock.lock();
    for (opencl_event* const read : settled)
        std::erase(staged_reads_, read);
    lock.unlock();
    event->finish(status);
}

std::int32_t pending_events::fail(const opencl_api& api, cl_event user_event, std::int32_t status) {
    const cl_int error = api.clSetUserEventStatus(user_event, status);
    std::vector<event_handle> old; // let go of without the lock; not while a call like the one above runs
    const std::lock_guard lock(mutex_);
    for (; failed_.size() > max_kept; failed_.pop_front())
        old.push_back(std::move(failed_.front()));
    look_now_ = true;
    wake_.notify_one();
    return error;
}

void pending_events::keep(event_handle failed) {
    const std::lock_guard lock(mutex_);
    failed_.push_back(std::move(failed));
}

void pending_events::run() {
    std::vector<std::uint64_t> numbers;
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return !entries_.empty() || !deferred_.empty(); });
        wake_.wait_for(lock, look_every, [this] { return look_now_ || !deferred_.empty(); });
        while (!deferred_.empty()) {
            const deferred_event next = deferred_.front();
            deferred_.pop_front();
            lock.unlock();
            conclude(next.event, next.status);
            lock.lock();
        }
        look_now_ = false;
        numbers.clear();
        for (const auto& [number, e] : entries_)
            numbers.push_back(number);
        lock.unlock();
        for (const std::uint64_t number : numbers)
            look_at(number);
        lock.lock();
    }
}

void pending_events::look_at(std::uint64_t number) {
    std::unique_lock lock(mutex_);
    auto at = entries_.find(number);
    if (at == entries_.end())
        return;
    opencl_event* const event = at->second.event;
    at->second.pinned = true;
    lock.unlock();
    std::int32_t status = event->poll();
    lock.lock();
    at = entries_.find(number);
    if (at == entries_.end())
        return; // removed: nobody is to be told
    at->second.pinned = false;
    if (at->second.called_back)
        status = at->second.status;
    else if (status >= 0)
        return; // its callback will come
    entries_.erase(at);
    lock.unlock();
    conclude(event, status);
}

} // namespace kagemusha::gpu
