// SPDX-License-Identifier: GPL-2.0-or-later
//
// The connection's own threads: one reads the device's records and completes events, one sends batches that
// the program left lying, so that work makes progress without a flush.
#include "connection.hpp"

#include "event.hpp"
#include "queue.hpp"

#include <pthread.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

namespace kagemusha::opencl {
namespace {

constexpr std::size_t record_buffer_bytes = std::size_t{64} << 10;
static_assert(record_buffer_bytes >= VGPU_MAX_RECORD_BYTES);

// What the device tells of nothing that is awaited may lie for so long.
constexpr auto rest = std::chrono::milliseconds(10);

// A command may be over without a record: it could not be sent, or the connection is lost.
constexpr int look_again_ms = 100;

constexpr auto flush_interval = std::chrono::milliseconds(2);
constexpr int idle_intervals_until_sleep = 16;

template <class Record>
bool take(Record& record, const vgpu_record& header, const std::byte* place) {
    if (header.bytes < sizeof record)
        return false;
    std::memcpy(&record, place, sizeof record);
    return true;
}

} // namespace

void connection::start() {
    records_.resize(record_buffer_bytes);
    {
        const std::lock_guard held(pending_mutex_);
        running_threads_ = flush_interval_ms_ ? 3 : 2;
    }
    const auto run = [self = shared_from_this()](void (connection::*work)()) {
        std::thread([self, work] {
            ((*self).*work)();
            const std::lock_guard held(self->pending_mutex_);
            --self->running_threads_;
            self->progress_.notify_all();
        }).detach();
    };
    run(&connection::read_records);
    run(&connection::flush_periodically);
    if (flush_interval_ms_)
        run(&connection::flush_by_time);
}

void connection::close() {
    closing_.store(true);
    transport_->shut_down();
    {
        const std::lock_guard held(pending_mutex_);
        wake_keeper_locked();
    }
    {
        const lock held(batch_mutex_);
        flusher_sleeps_ = false;
        flusher_wakes_.notify_all();
        timed_flush_.notify_all();
    }
    {
        lock held(pending_mutex_);
        progress_.wait(held, [this] { return running_threads_ == 0; });
    }
    lose();
}

void connection::read_records() {
    while (read_some(-1)) {
        lock held(pending_mutex_);
        if (turn_.rest(!pending_.empty()))
            rest_locked(held);
    }
    lose();
    const lock held(batch_mutex_);
    flusher_sleeps_ = false;
    flusher_wakes_.notify_all();
    timed_flush_.notify_all();
}

void connection::rest_locked(lock& held) {
    const auto woken = [this] { return !turn_.resting(); };
    while (!keeper_rests_.wait_for(held, rest, woken) && turn_.on_rested()) {
    }
}

void connection::wake_keeper_locked() {
    if (turn_.wake())
        keeper_rests_.notify_one();
}

void connection::read_until_over(const event& awaited) {
    {
        const std::lock_guard held(pending_mutex_);
        if (!turn_.begin())
            return;
    }
    // Reading is where a thread can be cancelled; waiting for an event is not.
    int cancel_state = 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    bool more = true;
    while (more && !awaited.is_over())
        more = read_some(look_again_ms);
    pthread_setcancelstate(cancel_state, nullptr);
    const std::lock_guard held(pending_mutex_);
    if (turn_.end(!more || !pending_.empty()))
        keeper_rests_.notify_one();
}

// False: no more will come.
bool connection::read_some(int timeout_ms) {
    const std::ptrdiff_t got = transport_->read_records(records_, timeout_ms);
    if (got <= 0)
        return got == -EAGAIN;
    const auto bytes = static_cast<std::size_t>(got);
    std::size_t offset = 0;
    while (bytes - offset >= sizeof(vgpu_record)) {
        vgpu_record header;
        std::memcpy(&header, records_.data() + offset, sizeof header);
        if (header.bytes < sizeof header || header.bytes > bytes - offset)
            break;
        handle_record(header, records_.data() + offset);
        offset += header.bytes;
    }
    return true;
}

void connection::handle_record(const vgpu_record& header, const std::byte* place) {
    switch (header.type) {
    case VGPU_RECORD_COMPLETION: {
        vgpu_record_completion record;
        if (take(record, header, place))
            deliver(record.event, record.status > 0 ? CL_COMPLETE : record.status,
                    {record.queued_ns, record.submit_ns, record.start_ns, record.end_ns});
        break;
    }
    case VGPU_RECORD_TEXT: {
        vgpu_record_text record;
        if (take(record, header, place) && record.text_bytes <= header.bytes - sizeof record) {
            std::fwrite(place + sizeof record, 1, record.text_bytes, stdout);
            std::fflush(stdout);
        }
        break;
    }
    case VGPU_RECORD_TEXT_DROPPED: {
        vgpu_record_text_dropped record;
        if (take(record, header, place))
            std::fprintf(stderr,
                         "kagemusha: %llu bytes of printf output of kernels were too much and are lost\n",
                         static_cast<unsigned long long>(record.dropped_bytes));
        break;
    }
    case VGPU_RECORD_QUEUE_ERROR: {
        vgpu_record_queue_error record;
        if (take(record, header, place)) {
            const std::lock_guard held(pending_mutex_);
            const auto found = queues_.find(record.queue);
            if (found != queues_.end())
                found->second->set_error(record.error);
        }
        break;
    }
    case VGPU_RECORD_OVERFLOW:
        std::fputs("kagemusha: answers of the GPU were lost; every command in flight counts as failed\n",
                   stderr);
        fail_pending(CL_OUT_OF_RESOURCES);
        break;
    case VGPU_RECORD_LOST:
        lose();
        break;
    default: // a newer device says something that this driver does not know; nothing here depends on it
        break;
    }
}

void connection::deliver(std::uint64_t id, cl_int status, const profiling_times& times) {
    {
        const std::lock_guard held(pending_mutex_);
        const auto found = pending_.find(id);
        if (found == pending_.end())
            return;
        found->second->arrived = {true, status, times};
        ++completions_;
        progress_.notify_all();
    }
    queue* where = nullptr;
    ref<event> next;
    while (next_complete(id, where, next))
        next->complete(next->arrived.status, next->arrived.times);
}

// The GPU's runtime tells of commands from several threads, so records may overtake each other. A program
// may rely on an in-order queue: when one event is complete, so are those before it.
bool connection::next_complete(std::uint64_t id, queue*& where, ref<event>& next) {
    ref<event> before = std::move(next); // released after the lock
    const std::lock_guard held(pending_mutex_);
    if (!before) {
        const auto found = pending_.find(id);
        if (found == pending_.end())
            return false;
        if (!found->second->where()->in_order()) {
            next = std::move(found->second);
            pending_.erase(found);
            return true;
        }
        where = found->second->where();
    }
    if (!where || where->in_flight.empty() || !where->in_flight.front()->arrived.here)
        return false;
    const auto found = pending_.find(where->in_flight.front()->id());
    where->in_flight.pop_front();
    next = std::move(found->second);
    pending_.erase(found);
    return true;
}

void connection::fail_command(const batch::entry& failed, cl_int error) {
    if (failed.event) {
        {
            const std::lock_guard held(pending_mutex_);
            const auto found = pending_.find(failed.event);
            if (found != pending_.end())
                found->second->set_known_to_device(false);
        }
        deliver(failed.event, error, {});
    } else if (failed.queue) {
        const std::lock_guard held(pending_mutex_);
        const auto found = queues_.find(failed.queue);
        if (found != queues_.end())
            found->second->set_error(error);
    }
}

void connection::fail_pending(cl_int error) {
    std::unordered_map<std::uint64_t, ref<event>> failed;
    {
        const std::lock_guard held(pending_mutex_);
        failed.swap(pending_);
        for (const auto& [id, affected] : queues_) {
            affected->set_error(error);
            affected->in_flight.clear();
        }
        ++completions_;
        progress_.notify_all();
    }
    for (auto& [id, one] : failed) {
        // What the device made of it is not known; a wrong id in a later command would do more harm than one
        // that stays.
        one->set_known_to_device(false);
        one->complete(error);
    }
}

void connection::flush_periodically() {
    int idle = 0;
    lock held(batch_mutex_);
    while (!closing_.load() && usable()) {
        wait_for_sender_locked(held);
        if (batch_.empty() && !destroys_wait_.load(std::memory_order_acquire)) {
            if (++idle > idle_intervals_until_sleep) {
                flusher_sleeps_ = true;
                flusher_wakes_.wait(held, [this] { return !flusher_sleeps_; });
                idle = 0;
            }
        } else {
            idle = 0;
            drain_destroys_locked(held);
            if (batch_is_old_ && !batch_.empty())
                send_locked(held);
            batch_is_old_ = !batch_.empty();
        }
        if (!closing_.load())
            flusher_wakes_.wait_for(held, flush_interval);
    }
}

// A kernel that waits for a store into mapped memory sees it without a call of the program.
void connection::flush_by_time() {
    lock held(batch_mutex_);
    while (!closing_.load() && usable()) {
        wait_for_sender_locked(held);
        std::vector<std::uint64_t> contexts; // sending may release the lock for a while
        flush_order_.for_each([&](std::uint64_t context, std::uint64_t) { contexts.push_back(context); });
        for (const std::uint64_t context : contexts) {
            wait_for_sender_locked(held);
            if (flush_order_.queue_of(context) != 0 && flush_apart_locked(held, context, 0) == -ENODEV)
                lose();
        }
        if (!closing_.load())
            timed_flush_.wait_for(held, std::chrono::milliseconds(flush_interval_ms_));
    }
}

} // namespace kagemusha::opencl
