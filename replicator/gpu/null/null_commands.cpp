// SPDX-License-Identifier: GPL-2.0-or-later
// null_commands: order and completion of commands, and what they do to memory.
#include <CL/cl.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "gpu/null/null_device.hpp"

namespace kagemusha::gpu {

namespace {

std::uint64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
}

// Waiters that became ready while this thread is inside complete(). See null_signal::complete.
struct ready_waiters {
    bool draining = false;
    std::vector<std::pair<null_signal::waiter, std::int32_t>> list;
};
thread_local ready_waiters ready;

bool is_pending(const signal_ptr& signal) {
    return signal && signal->status() > 0;
}

void write_zeros(const guest_payload& payload, const box_shape& shape, const box_pitch& pitch) {
    static constexpr std::byte zeros[16384] = {};
    for (std::uint64_t z = 0; z < shape.slices; ++z)
        for (std::uint64_t y = 0; y < shape.rows; ++y)
            for (std::uint64_t x = 0; x < shape.row_bytes; x += sizeof(zeros))
                if (!payload.write(z * pitch.slice + y * pitch.row + x, zeros,
                                   std::min<std::uint64_t>(sizeof(zeros), shape.row_bytes - x)))
                    return;
}

// What a transfer does when its turn comes; keeps what it needs.
struct transfer_job {
    bool write;
    payload_ptr data;
    std::shared_ptr<std::byte> storage;
    std::uint64_t offset; // in the storage
    box_shape shape;
    box_pitch host, buffer;

    void operator()() const {
        if (storage && write)
            data->read_box(shape, host, storage.get() + offset, buffer);
        else if (storage)
            data->write_box(shape, host, storage.get() + offset, buffer);
        else if (!write)
            write_zeros(*data, shape, host);
    }
};

struct runs_job {
    payload_ptr data;
    std::shared_ptr<std::byte> storage;
    std::uint64_t origin;
    std::vector<codec::buffer_run> runs;

    void operator()() const {
        for (const codec::buffer_run& run : runs)
            if (storage)
                std::memcpy(storage.get() + origin + run.offset, data->contiguous() + run.from, run.bytes);
    }
};

struct copy_job {
    std::shared_ptr<std::byte> from, to;
    std::uint64_t from_offset, to_offset;
    box_shape shape;
    box_pitch from_pitch, to_pitch;

    void operator()() const {
        if (!from || !to)
            return;
        for (std::uint64_t z = 0; z < shape.slices; ++z)
            for (std::uint64_t y = 0; y < shape.rows; ++y)
                std::memmove(to.get() + to_offset + z * to_pitch.slice + y * to_pitch.row,
                             from.get() + from_offset + z * from_pitch.slice + y * from_pitch.row,
                             shape.row_bytes);
    }
};

struct fill_job {
    std::shared_ptr<std::byte> to;
    std::uint64_t offset, bytes;
    std::uint32_t pattern_bytes;
    std::byte pattern[128];

    void operator()() const {
        for (std::uint64_t at = 0; to && at < bytes; at += pattern_bytes)
            std::memcpy(to.get() + offset + at, pattern, pattern_bytes);
    }
};

std::uint64_t box_offset(const __u64 (&origin)[3], const box_pitch& pitch) {
    return origin[2] * pitch.slice + origin[1] * pitch.row + origin[0];
}

// A command that waits for others.
struct waiting_command {
    std::atomic<std::uint32_t> left;
    std::atomic<bool> failed = false;
    signal_ptr done;
    bool profiles;
    std::function<void()> job;

    void one_done(bool ok) {
        if (!ok)
            failed.store(true, std::memory_order_relaxed);
        if (left.fetch_sub(1, std::memory_order_acq_rel) != 1)
            return;
        const bool run = !failed.load(std::memory_order_relaxed);
        if (run && profiles)
            done->timing.start_ns = now_ns();
        if (run)
            job();
        job = nullptr; // lets go of the payload before anybody is told
        if (run && profiles)
            done->timing.end_ns = now_ns();
        done->complete(run ? CL_COMPLETE : CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    }
};

} // namespace

bool null_signal::subscribe(waiter& f) {
    const std::lock_guard lock(mutex_);
    if (status_.load(std::memory_order_relaxed) <= 0)
        return false;
    waiters_.push_back(std::move(f));
    return true;
}

void null_signal::complete(std::int32_t status) {
    std::vector<waiter> waiters;
    {
        const std::lock_guard lock(mutex_);
        status_.store(status, std::memory_order_release);
        waiters.swap(waiters_);
    }
    for (waiter& f : waiters)
        ready.list.emplace_back(std::move(f), status);
    if (ready.draining)
        return;
    ready.draining = true;
    // First in, first out: completions are reported in the order in which commands were enqueued.
    for (std::size_t i = 0; i < ready.list.size(); ++i) {
        auto [f, s] = std::move(ready.list[i]);
        f(s);
    }
    ready.list.clear();
    ready.draining = false;
}

std::int32_t null_event::notify(callback fn, void* data) {
    null_signal::waiter later = [fn, data](std::int32_t status) { fn(data, status); };
    const signal_ptr signal = signal_; // fn may destroy this event
    if (signal && signal->subscribe(later))
        return CL_SUCCESS;
    fn(data, signal ? signal->status() : CL_COMPLETE);
    return CL_SUCCESS;
}

bool null_event::timing(event_timing& out) const {
    out = signal_ ? signal_->timing : times;
    return true;
}

std::int32_t null_event::set_status(std::int32_t status) {
    const signal_ptr signal = signal_;
    signal->complete(status);
    return CL_SUCCESS;
}

template <class Job>
std::int32_t null_device::submit(null_queue& queue, std::span<host_event* const> waits, bool waits_for_all,
                                 bool is_barrier, bool uses_payload, bool wants_event, enqueued& out,
                                 Job&& job) {
    std::vector<signal_ptr> before; // empty, and so without an allocation, for what need not wait
    if (is_pending(queue.last))
        before.push_back(queue.last);
    std::erase_if(queue.pending, [](const signal_ptr& s) { return !is_pending(s); });
    if (waits_for_all)
        before.insert(before.end(), queue.pending.begin(), queue.pending.end());
    std::vector<signal_ptr> listed;
    for (host_event* event : waits)
        if (const signal_ptr& signal = static_cast<null_event*>(event)->signal();
            signal && signal->status() != 0)
            listed.push_back(signal);

    if (before.empty() && listed.empty() && !wants_event) {
        job();
        return CL_SUCCESS;
    }
    if (before.empty() && listed.empty()) {
        auto event = std::make_unique<null_event>();
        if (queue.profiles)
            event->times.queued_ns = event->times.submit_ns = event->times.start_ns = now_ns();
        job();
        if (queue.profiles)
            event->times.end_ns = now_ns();
        out.event = std::move(event);
        return CL_SUCCESS;
    }

    auto command = std::make_shared<waiting_command>();
    command->left.store(static_cast<std::uint32_t>(before.size() + listed.size() + 1),
                        std::memory_order_relaxed);
    command->done = std::make_shared<null_signal>();
    command->profiles = queue.profiles;
    command->job = std::forward<Job>(job);
    if (queue.profiles)
        command->done->timing.queued_ns = command->done->timing.submit_ns = now_ns();
    if (wants_event)
        out.event = std::make_unique<null_event>(command->done);
    out.payload_busy = uses_payload;
    if (queue.in_order || is_barrier)
        queue.last = command->done;
    if (!queue.in_order)
        queue.pending.push_back(command->done);

    // That the command before failed does not fail this one; that a listed event failed does.
    for (const signal_ptr& signal : before) {
        null_signal::waiter f = [command](std::int32_t) { command->one_done(true); };
        if (!signal->subscribe(f))
            command->one_done(true);
    }
    for (const signal_ptr& signal : listed) {
        null_signal::waiter f = [command](std::int32_t status) { command->one_done(status == 0); };
        if (!signal->subscribe(f))
            command->one_done(signal->status() == 0);
    }
    command->one_done(true); // the one for this function
    return CL_SUCCESS;
}

std::int32_t null_device::mark(host_queue& queue, std::unique_ptr<host_event>& out) {
    enqueued marker;
    const std::int32_t error =
        submit(static_cast<null_queue&>(queue), {}, false, false, false, true, marker, [] {});
    out = std::move(marker.event);
    return error;
}

// One command on its way. What there is no overload for does not compile.
struct null_device::work {
    null_device& device;
    null_queue& queue;
    std::span<host_event* const> waits;
    bool wants_event;
    enqueued& out;

    template <class Job>
    std::int32_t simple(Job&& job) const {
        return device.submit(queue, waits, false, false, false, wants_event, out, std::forward<Job>(job));
    }
    template <class Job>
    std::int32_t transfer(Job&& job) const {
        return device.submit(queue, waits, false, false, true, true, out, std::forward<Job>(job));
    }

    std::int32_t operator()(const resolved<codec::op_launch>& r) const {
        const auto& [kernel, changed] = r.parts;
        for (const host_argument& a : changed)
            if (a.index >= static_cast<null_kernel&>(kernel).signature.arguments.size())
                return CL_INVALID_ARG_INDEX;
        return simple([] {});
    }
    std::int32_t operator()(const resolved<codec::op_transfer_buffer>& r) const {
        const auto& [buffer, data] = r.parts;
        const auto& memory = static_cast<const null_memory&>(buffer);
        return transfer(transfer_job{r.op.write(),
                                     data,
                                     memory.storage,
                                     memory.origin + r.op.c->offset,
                                     {data->bytes(), 1, 1},
                                     {},
                                     {}});
    }
    std::int32_t operator()(const resolved<codec::op_transfer_rect>& r) const {
        const auto& [buffer, data] = r.parts;
        const auto& memory = static_cast<const null_memory&>(buffer);
        const vgpu_cmd_transfer_rect& c = *r.op.c;
        const box_pitch pitch{c.buffer_row_pitch, c.buffer_slice_pitch};
        return transfer(transfer_job{r.op.write(),
                                     data,
                                     memory.storage,
                                     memory.origin + box_offset(c.buffer_origin, pitch),
                                     {c.region[0], c.region[1], c.region[2]},
                                     {c.host_row_pitch, c.host_slice_pitch},
                                     pitch});
    }
    std::int32_t operator()(const resolved<codec::op_write_runs>& r) const {
        const auto& [buffer, data] = r.parts;
        const auto& memory = static_cast<const null_memory&>(buffer);
        runs_job job{data, memory.storage, memory.origin, {}};
        r.op.runs.for_each([&](const codec::buffer_run& run) { job.runs.push_back(run); });
        return transfer(std::move(job));
    }
    std::int32_t operator()(const resolved<codec::op_copy_buffer>& r) const {
        const auto& [source, destination] = r.parts;
        const auto& from = static_cast<const null_memory&>(source);
        const auto& to = static_cast<const null_memory&>(destination);
        const vgpu_cmd_copy_buffer& c = *r.op.c;
        const std::uint64_t a = from.origin + c.source_offset, b = to.origin + c.destination_offset;
        if (&from == &to && a < b + c.bytes && b < a + c.bytes)
            return CL_MEM_COPY_OVERLAP;
        return simple(copy_job{from.storage, to.storage, a, b, {c.bytes, 1, 1}, {}, {}});
    }
    std::int32_t operator()(const resolved<codec::op_copy_rect>& r) const {
        const auto& [source, destination] = r.parts;
        const auto& from = static_cast<const null_memory&>(source);
        const auto& to = static_cast<const null_memory&>(destination);
        const vgpu_cmd_copy_rect& c = *r.op.c;
        const box_pitch a{c.source_row_pitch, c.source_slice_pitch};
        const box_pitch b{c.destination_row_pitch, c.destination_slice_pitch};
        return simple(copy_job{from.storage,
                               to.storage,
                               from.origin + box_offset(c.source_origin, a),
                               to.origin + box_offset(c.destination_origin, b),
                               {c.region[0], c.region[1], c.region[2]},
                               a,
                               b});
    }
    std::int32_t operator()(const resolved<codec::op_fill_buffer>& r) const {
        const auto& [buffer] = r.parts;
        const auto& memory = static_cast<const null_memory&>(buffer);
        const vgpu_cmd_fill_buffer& c = *r.op.c;
        fill_job job{memory.storage, memory.origin + c.offset, c.bytes, c.pattern_bytes, {}};
        std::memcpy(job.pattern, c.pattern, sizeof(job.pattern));
        return simple(job);
    }
    std::int32_t operator()(const resolved<codec::op_sync>& r) const {
        return device.submit(queue, waits, waits.empty() && !queue.in_order, r.op.barrier(), false,
                             wants_event, out, [] {});
    }
    std::int32_t operator()(const resolved<codec::op_migrate>&) const {
        return simple([] {});
    }
    // No images.
    std::int32_t operator()(const resolved<codec::op_transfer_image>&) const { return CL_INVALID_OPERATION; }
    std::int32_t operator()(const resolved<codec::op_copy_image>&) const { return CL_INVALID_OPERATION; }
    std::int32_t operator()(const resolved<codec::op_copy_image_buffer>&) const {
        return CL_INVALID_OPERATION;
    }
    std::int32_t operator()(const resolved<codec::op_fill_image>&) const { return CL_INVALID_OPERATION; }
};

std::int32_t null_device::enqueue(host_queue& host, const command& what, std::span<host_event* const> waits,
                                  bool wants_event, enqueued& out) {
    return std::visit(work{*this, static_cast<null_queue&>(host), waits, wants_event, out}, what);
}

} // namespace kagemusha::gpu
