// SPDX-License-Identifier: GPL-2.0-or-later
//
// Batching and submission: the half of the connection that runs in the program's threads.
// connection_records.cpp has the half that runs in ours.
#include "connection.hpp"

#include "event.hpp"
#include "queue.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <pthread.h>

namespace kagemusha::opencl {
namespace {

// How long a full device may make no progress while user events are unset before the batch is given up: then
// the program itself may be what everything waits for.
constexpr auto user_event_patience = std::chrono::seconds(2);

std::atomic<std::uint64_t> generation{1};

struct process_state {
    std::mutex mutex;                                           // also held across a fork
    std::map<std::string, std::shared_ptr<connection>> current; // by the device's name
    std::vector<connection*> all;
    bool fork_handlers = false;
};

// Never destroyed: threads and static objects of the program may come here until the very end.
process_state& process() {
    static auto* const state = new process_state;
    return *state;
}

unsigned chosen_flush_interval_ms() {
    const char* const text = std::getenv("KAGEMUSHA_FLUSH_MS");
    if (!text)
        return 0;
    unsigned value = 0;
    const char* const end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, value);
    if (error == std::errc{} && stop == end && value <= 60000)
        return value;
    std::fprintf(stderr,
                 "kagemusha: KAGEMUSHA_FLUSH_MS=%s is not a number of milliseconds up to 60000; nothing is "
                 "flushed by time\n",
                 text);
    return 0;
}

void before_fork() {
    process().mutex.lock();
}

void after_fork_in_parent() {
    process().mutex.unlock();
}

void after_fork_in_child() {
    process_state& state = process();
    generation.fetch_add(1);
    for (connection* one : state.all)
        one->abandon_after_fork();
    // The parent's connections are never destroyed here: their threads, which own them, do not exist in this
    // process.
    new auto(std::move(state.current));
    state.current.clear();
    state.all.clear();
    state.mutex.unlock();
}

} // namespace

std::uint64_t fork_generation() noexcept {
    return generation.load(std::memory_order_relaxed);
}

std::shared_ptr<connection> connection::current(const std::string& name, std::string* error) {
    process_state& state = process();
    std::shared_ptr<connection> replaced; // destroyed after the lock is given back
    const std::lock_guard held(state.mutex);
    const auto known = state.current.find(name);
    if (known != state.current.end() && known->second->usable())
        return known->second;
    std::string reason;
    std::unique_ptr<transport> device = make_transport(name, reason);
    if (!device) {
        if (error)
            *error = reason;
        return nullptr;
    }
    auto made = std::make_shared<connection>(std::move(device));
    made->start();
    if (!state.fork_handlers)
        state.fork_handlers = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
    state.all.push_back(made.get());
    replaced = std::exchange(state.current[name], made);
    return made;
}

connection::connection(std::unique_ptr<transport> device)
    : transport_(std::move(device))
    , limits_(transport_->limits())
    , fork_generation_(fork_generation())
    , flush_interval_ms_(chosen_flush_interval_ms())
    , pace_(limits_.age) {
    batch_.reserve(limits_);
}

connection::~connection() {
    process_state& state = process();
    const std::lock_guard held(state.mutex);
    std::erase(state.all, this);
}

bool connection::usable() const noexcept {
    return !lost_.load(std::memory_order_acquire) && fork_generation_ == fork_generation();
}

void connection::abandon_after_fork() noexcept {
    transport_->abandon_after_fork();
}

cl_int connection::append(const outgoing& command, event* completes, queue& where,
                          std::uint64_t* number_out) {
    if (!usable() || !batch_.possible(command))
        return CL_OUT_OF_RESOURCES;
    lock held(batch_mutex_);
    wait_for_sender_locked(held);
    drain_destroys_locked(held);
    const std::uint64_t number = commands_.fetch_add(1, std::memory_order_release) + 1;
    if (number_out)
        *number_out = number;
    if (completes) {
        const std::lock_guard pending_held(pending_mutex_);
        completes->command_number = number;
        if (lost_.load(std::memory_order_relaxed))
            return CL_OUT_OF_RESOURCES;
        pending_.emplace(completes->id(), ref<event>(completes));
        if (!completes->reads_into().empty())
            reads_in_flight_.fetch_add(1, std::memory_order_release);
        completes->set_known_to_device(true);
        if (where.in_order())
            where.in_flight.push_back(completes);
        if (turn_.on_enqueued(completes->awaited))
            keeper_rests_.notify_one();
    }
    where.needs_flush.store(true, std::memory_order_relaxed);
    if (windows_.load(std::memory_order_relaxed) > 0 && command.data.device_writes &&
        !command.data.fills_view)
        transport_->note_device_write(command.data.address, command.data.bytes);
    // What the program stored into mapped memory goes to one queue before the request, so the request is for
    // one queue. Without such memory there is nothing to keep apart.
    if (windows_.load(std::memory_order_relaxed) > 0 && batch_.target().queue != 0 &&
        batch_.target().queue != where.id())
        send_locked(held);
    append_locked(held, command, completes ? completes->id() : 0, where.id());
    batch_.set_target({where.id(), where.owner().id(), !where.in_order()});
    // Behind a wait the GPU may have nothing to do: what comes then goes in small requests first.
    const bool many = batch_.command_count() >= full_at_;
    if (many)
        full_at_ = std::min(2 * full_at_, batch_commands_threshold);
    if (many || batch_.stream_bytes() >= batch_bytes_threshold || pace_.is_old(send_pace::clock::now()))
        send_locked(held);
    return CL_SUCCESS;
}

ref<event> connection::read_in_flight(std::span<const std::byte> bytes) {
    if (reads_in_flight_.load(std::memory_order_acquire) == 0)
        return {};
    const std::less<const std::byte*> before;
    const std::lock_guard held(pending_mutex_);
    for (const auto& [id, one] : pending_) {
        const std::span<const std::byte> to = one->reads_into();
        if (!to.empty() && before(to.data(), bytes.data() + bytes.size()) &&
            before(bytes.data(), to.data() + to.size()))
            return one;
    }
    return {};
}

ref<event> connection::pending_event(std::uint64_t id) {
    const std::lock_guard held(pending_mutex_);
    const auto found = pending_.find(id);
    return found == pending_.end() ? ref<event>() : found->second;
}

cl_int connection::flush(queue* where) {
    if (!usable())
        return CL_OUT_OF_RESOURCES;
    lock held(batch_mutex_);
    wait_for_sender_locked(held);
    drain_destroys_locked(held);
    if (where && where->needs_flush.exchange(false, std::memory_order_relaxed)) {
        auto command = make_command<commands::flush>();
        command.queue = where->id();
        append_locked(held, make_outgoing(command), 0, 0);
    }
    full_at_ = first_full_at;
    return batch_.empty() ? CL_SUCCESS : send_locked(held);
}

cl_int connection::call(const outgoing& command, vgpu_response* answer) {
    std::uint64_t ticket = 0;
    const cl_int error = begin_call(command, ticket);
    return error == CL_SUCCESS ? finish_call(ticket, answer) : error;
}

cl_int connection::begin_call(const outgoing& command, std::uint64_t& ticket) {
    if (!usable())
        return CL_OUT_OF_RESOURCES;
    if (!batch_.possible(command))
        return CL_OUT_OF_HOST_MEMORY;
    lock held(batch_mutex_);
    wait_for_sender_locked(held);
    drain_destroys_locked(held);
    // An answer comes when every payload of its request was used. Payloads of earlier commands may have to
    // wait for an event that the caller is about to set, so they go ahead in a request of their own.
    if (batch_.has_payloads() || !batch_.fits(command))
        send_locked(held);
    append_locked(held, command, 0, 0);
    return send_locked(held, true, &ticket);
}

cl_int connection::finish_call(std::uint64_t ticket, vgpu_response* answer) {
    vgpu_response response{};
    int result;
    do {
        result = transport_->wait(ticket, response);
    } while (result == -EINTR);
    if (result < 0) {
        lose();
        return CL_OUT_OF_RESOURCES;
    }
    if (answer)
        *answer = response;
    return error_of(response);
}

void connection::destroy(vgpu_object_kind kind, std::uint64_t id) noexcept {
    if (!usable())
        return;
    try {
        const std::lock_guard held(destroys_mutex_);
        destroys_.emplace_back(kind, id);
        destroys_wait_.store(true, std::memory_order_release);
    } catch (...) {
        std::fputs("kagemusha: out of memory; an object of the GPU stays until the process ends\n", stderr);
    }
}

cl_int connection::set_user_event(std::uint64_t id, cl_int status) {
    if (!usable())
        return CL_OUT_OF_RESOURCES;
    auto command = make_command<commands::set_user_event>();
    command.cmd.bytes = sizeof command;
    command.event = id;
    command.status = status;
    std::uint64_t sequence = 0;
    const submission request{std::as_bytes(std::span(&command, 1)), {}, 0, false};
    int result;
    while ((result = transport_->submit(request, sequence)) == -EAGAIN) {
        lock held(pending_mutex_);
        progress_.wait_for(held, std::chrono::milliseconds(1));
    }
    requests_.fetch_add(1, std::memory_order_relaxed);
    if (result < 0) {
        lose();
        return CL_OUT_OF_RESOURCES;
    }
    return CL_SUCCESS;
}

window_view connection::map_window(const window_request& wanted) {
    if (!usable())
        return {};
    const window_view made = transport_->map_window(wanted);
    if (made.address)
        windows_.fetch_add(1, std::memory_order_relaxed);
    return made;
}

void connection::unmap_window(std::byte* address) noexcept {
    windows_.fetch_sub(1, std::memory_order_relaxed);
    transport_->unmap_window(address);
}

void connection::add_flush_queue(std::uint64_t context, std::uint64_t queue) {
    lock held(batch_mutex_);
    wait_for_sender_locked(held);
    flush_order_.add(context, queue);
}

void connection::remove_flush_queue(std::uint64_t context) noexcept {
    lock held(batch_mutex_);
    wait_for_sender_locked(held);
    const std::uint64_t queue = flush_order_.queue_of(context);
    const std::uint64_t event = flush_order_.remove(context);
    if (event != 0)
        destroy(VGPU_OBJECT_EVENT, event);
    if (queue != 0)
        destroy(VGPU_OBJECT_QUEUE, queue);
}

void connection::add_queue(queue& added) {
    const std::lock_guard held(pending_mutex_);
    queues_.emplace(added.id(), &added);
}

void connection::remove_queue(queue& removed) noexcept {
    const std::lock_guard held(pending_mutex_);
    queues_.erase(removed.id());
}

void connection::wait_for_sender_locked(lock& held) {
    sender_done_.wait(held, [this] { return !sending_; });
}

void connection::append_locked(lock& held, const outgoing& command, std::uint64_t event_id,
                               std::uint64_t queue_id) {
    if (!batch_.fits(command) && !batch_.empty())
        send_locked(held);
    if (batch_.empty()) {
        batch_is_old_ = false;
        pace_.began(send_pace::clock::now());
        if (flusher_sleeps_) {
            flusher_sleeps_ = false;
            flusher_wakes_.notify_one();
        }
    }
    batch_.append(command, event_id, queue_id);
}

void connection::drain_destroys_locked(lock& held) {
    if (!destroys_wait_.load(std::memory_order_acquire))
        return;
    {
        const std::lock_guard destroys_held(destroys_mutex_);
        draining_.swap(destroys_);
        destroys_wait_.store(false, std::memory_order_relaxed);
    }
    auto command = make_command<commands::destroy>();
    // Taken out of the member: sending may release the lock for a while.
    std::vector<std::pair<vgpu_object_kind, std::uint64_t>> dead = std::move(draining_);
    for (const auto& [kind, id] : dead) {
        command.kind = static_cast<__u32>(kind);
        command.id = id;
        append_locked(held, make_outgoing(command), 0, 0);
    }
    dead.clear();
    if (draining_.empty())
        draining_ = std::move(dead);
}

cl_int connection::send_locked(lock& held, bool waitable, std::uint64_t* sequence) {
    if (batch_.completion_count() > 0) {
        const std::lock_guard pending_held(pending_mutex_);
        for (const batch::entry& one : batch_.entries()) {
            if (one.event == 0)
                continue;
            const auto found = pending_.find(one.event);
            if (found != pending_.end())
                found->second->mark_submitted();
        }
    }
    std::uint64_t number = 0;
    int result = 0;
    if (const flush_target target = batch_.target(); flush_order_.queue_of(target.context) != 0) {
        result = flush_apart_locked(held, target.context, target.queue);
        batch_.drop_target();
    }
    if (result == 0) {
        const auto begin = send_pace::clock::now();
        result = submit_locked(held, batch_.request(waitable), number);
        pace_.sent(send_pace::clock::now() - begin);
    }
    // The kernel refused the request as a whole: a pointer of the program that cannot be read, or no memory
    // to pin it. The commands that are not to blame are sent by themselves.
    if (result < 0 && result != -ENODEV && result != -EBUSY && batch_.command_count() > 1)
        result = send_one_by_one_locked(held, waitable, number);
    else if (result < 0)
        for (const batch::entry& one : batch_.entries())
            fail_command(one, CL_OUT_OF_RESOURCES);
    batch_.clear();
    if (result == -ENODEV)
        lose();
    if (sequence)
        *sequence = number;
    return result < 0 ? CL_OUT_OF_RESOURCES : CL_SUCCESS;
}

int connection::send_one_by_one_locked(lock& held, bool waitable, std::uint64_t& sequence) {
    int result = 0;
    for (std::size_t i = 0; i < batch_.command_count(); ++i) {
        const bool last = i + 1 == batch_.command_count();
        result = submit_locked(held, batch_.single(i, waitable && last), sequence);
        if (result < 0)
            fail_command(batch_.entries()[i], CL_OUT_OF_RESOURCES);
        if (result == -ENODEV)
            break;
    }
    return waitable || result == -ENODEV ? result : 0;
}

// Flushes the context's mapped memory to its queue for that, and lets commands of `queue` (0: of none) wait
// for everything that was flushed so far.
int connection::flush_apart_locked(lock& held, std::uint64_t context, std::uint64_t queue) {
    const flush_target target{flush_order_.queue_of(context), context, false};
    std::uint64_t flushed_bytes = 0;
    int result = with_patience_locked(held, [&] {
        std::uint64_t bytes = 0;
        const int tried = transport_->flush_window(target, bytes);
        flushed_bytes += tried == 0 ? bytes : 1; // a part may be sent, and nobody says how much
        return tried;
    });
    // Laid out here and not in the batch, which is being sent.
    struct {
        vgpu_cmd_sync marker = make_command<commands::marker>();
        vgpu_cmd_flush start = make_command<commands::flush>();
        vgpu_cmd_sync barrier = make_command<commands::barrier>();
        std::uint64_t awaited = 0;
    } apart;
    static_assert(sizeof apart == 2 * sizeof(vgpu_cmd_sync) + sizeof(vgpu_cmd_flush) + 8);
    const auto stream = std::as_bytes(std::span(&apart, 1));
    constexpr std::size_t marker_bytes = sizeof apart.marker + sizeof apart.start;
    std::size_t from = marker_bytes;
    std::size_t to = marker_bytes;
    if (flushed_bytes > 0) {
        apart.marker.cmd.bytes = sizeof apart.marker;
        apart.marker.enqueue.queue = target.queue;
        apart.marker.enqueue.event = new_id();
        apart.start.cmd.bytes = sizeof apart.start;
        apart.start.queue = target.queue;
        if (const std::uint64_t before = flush_order_.flushed(context, apart.marker.enqueue.event))
            destroy(VGPU_OBJECT_EVENT, before);
        from = 0;
    }
    apart.awaited = queue ? flush_order_.wait_for(context, queue) : 0;
    if (apart.awaited != 0) {
        apart.barrier.cmd.bytes = sizeof apart.barrier + sizeof apart.awaited;
        apart.barrier.enqueue.queue = queue;
        apart.barrier.enqueue.wait_count = 1;
        to = sizeof apart;
    }
    if (from == to || result == -ENODEV)
        return result;
    std::uint64_t sequence = 0;
    const int sent =
        submit_locked(held, {stream.subspan(from, to - from), {}, from == 0 ? 1u : 0u, false, {}}, sequence);
    return sent < 0 ? sent : result;
}

int connection::submit_locked(lock& held, const submission& request, std::uint64_t& sequence) {
    requests_.fetch_add(1, std::memory_order_relaxed);
    return with_patience_locked(held, [&] { return transport_->submit(request, sequence); });
}

// Tries until it is not for want of room that it fails.
template <class Attempt>
int connection::with_patience_locked(lock& held, Attempt attempt) {
    int result = attempt();
    if (result != -EAGAIN)
        return result;

    // No room. The lock is given back so that user events can be set and completions delivered; the batch
    // stays as it is.
    sending_ = true;
    held.unlock();
    auto since = std::chrono::steady_clock::now();
    std::uint64_t seen = 0;
    auto pause = std::chrono::microseconds(100);
    do {
        {
            lock pending_held(pending_mutex_);
            wake_keeper_locked();
            progress_.wait_for(pending_held, pause);
            if (seen != completions_) {
                seen = completions_;
                since = std::chrono::steady_clock::now();
            }
        }
        pause = std::min(pause * 2, std::chrono::microseconds(5000));
        if (lost_.load(std::memory_order_acquire))
            result = -ENODEV;
        else if (unset_user_events_.load(std::memory_order_relaxed) > 0 &&
                 std::chrono::steady_clock::now() - since > user_event_patience)
            result = -EBUSY;
        else
            result = attempt();
    } while (result == -EAGAIN);
    held.lock();
    sending_ = false;
    sender_done_.notify_all();
    return result;
}

cl_int connection::error_of(const vgpu_response& answer) {
    switch (answer.status) {
    case VGPU_STATUS_OK:
        return answer.result;
    case VGPU_STATUS_LIMIT:
        return CL_OUT_OF_RESOURCES;
    case VGPU_STATUS_NO_MEMORY:
        return CL_OUT_OF_HOST_MEMORY;
    case VGPU_STATUS_MALFORMED:
        std::fprintf(stderr,
                     "kagemusha: the device refused a command at offset %u of a request; report this as a "
                     "bug of the driver\n",
                     answer.failed_offset);
        // Commands of the same request behind that offset will never complete.
        fail_pending(CL_OUT_OF_RESOURCES);
        return CL_OUT_OF_RESOURCES;
    default:
        lose();
        return CL_OUT_OF_RESOURCES;
    }
}

void connection::lose() noexcept {
    if (lost_.exchange(true))
        return;
    try {
        fail_pending(CL_OUT_OF_RESOURCES);
    } catch (...) {
        std::fputs("kagemusha: out of memory while the GPU was lost; waiting programs may not notice\n",
                   stderr);
    }
}

} // namespace kagemusha::opencl
