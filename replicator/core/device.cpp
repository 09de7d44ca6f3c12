// SPDX-License-Identifier: GPL-2.0-or-later
#include "core/device.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "core/device_session.hpp"
#include "core/limits.hpp"

namespace kagemusha::core {

namespace {

constexpr std::uint64_t timer_key = UINT64_MAX; // files are 32-bit numbers

// After so many records of one file the next file has its turn.
constexpr unsigned records_per_turn = 64;

} // namespace

std::unique_ptr<device> device::create(device_config config, port_factory factory, std::string& error) {
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    const int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = timer_key;
    if (epoll < 0 || timer < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &event) != 0) {
        error = std::string("the device can't have its descriptors: ") + std::strerror(errno) +
                "; raise the limit of open files";
        for (const int fd : {epoll, timer})
            if (fd >= 0)
                close(fd);
        return nullptr;
    }
    return std::unique_ptr<device>(new device(std::move(config), std::move(factory), epoll, timer));
}

device::device(device_config config, port_factory factory, int epoll, int timer)
    : config_(std::move(config))
    , factory_(std::move(factory))
    , epoll_(epoll)
    , timer_(timer)
    , guest_log_(log_burst_lines, log_interval_ms)
    , starts_(config_.worker_start_burst, config_.worker_starts_per_second) {
    usage_.max_objects = max_objects_of_device;
    usage_.max_memory_bytes = config_.max_memory_bytes;
    usage_.max_log_memory_bytes = limits_of_log().max_memory_bytes;
}

device::~device() {
    reset();
    close(timer_);
    close(epoll_);
}

void device::add_region(std::uint32_t region, std::uint64_t bytes) {
    if (region >= regions_.size())
        regions_.resize(region + 1);
    regions_[region] = bytes;
}

// ---- requests
// --------------------------------------------------------------------------------------------------------

void device::answer(std::uint64_t token, const vgpu_response& response) {
    if (response.status != VGPU_STATUS_OK)
        requests_refused_.add();
    config_.callbacks.request_done(config_.user_data, token, &response);
}

void device::answer(std::uint64_t token, vgpu_status status) {
    vgpu_response response{};
    response.status = status;
    response.failed_offset = status == VGPU_STATUS_MALFORMED ? UINT32_MAX : 0;
    answer(token, response);
}

void device::report_written(std::span<const kagemusha_segment> ranges) {
    if (!ranges.empty() && config_.callbacks.memory_written)
        config_.callbacks.memory_written(config_.user_data, ranges.data(), ranges.size());
}

void device::open_file(std::uint32_t file, std::uint64_t token, origin from) {
    if (file == 0 || files_.contains(file)) {
        log_broken_rule(file, "guest", "a file that is opened has the number 0 or is open", now_ms_);
        answer(token, VGPU_STATUS_MALFORMED);
        return;
    }
    const std::size_t most = from == origin::guest ? config_.max_files : limits_of_log().max_files;
    const auto full = [&] { return files_.size() + workers_without_file() >= most; };
    if (full() && (!sweep_ending() || full())) {
        log_broken_rule(file, "guest",
                        "more open files than max_files, or workers of closed ones that do not end", now_ms_);
        answer(token, VGPU_STATUS_LIMIT);
        return;
    }
    files_total_.add();
    const std::uint64_t seed = config_.hash_seed + files_total_.get();
    files_.emplace(file, std::make_unique<file_entry>(*this, file, seed));
    if (tap_)
        tap_->on_open(file);
    publish();
    answer(token, VGPU_STATUS_OK);
}

void device::submit(const kagemusha_request& request, std::uint64_t now_ms, origin from) {
    now_ms_ = now_ms;
    requests_.add();
    const auto at = files_.find(request.file);
    if (at == files_.end()) {
        answer(request.token, VGPU_STATUS_NO_FILE);
        return;
    }
    file_entry& f = *at->second;
    if (!may_wait(f)) {
        answer(request.token, VGPU_STATUS_NO_MEMORY);
        return;
    }
    if (f.fsm.guests_requests_in_flight() + f.held.size() >= config_.file.max_requests && !f.held.empty()) {
        answer(request.token, VGPU_STATUS_LIMIT);
        return;
    }
    const submit_decision d = f.fsm.on_submit(request, regions_, from != origin::guest);
    if (d.broken_rule)
        log_broken_rule(f.number, "guest", d.broken_rule, now_ms);
    if (d.what == submit_decision::action::answer) {
        answer(request.token, d.response);
    } else {
        commands_.add(d.work.commands);
        launches_.add(d.work.launches);
        unsupported_.note(d.work.unsupported);
        calls_.add(d.work.calls);
        bytes_to_gpu_.add(d.work.bytes_to_gpu);
        bytes_from_gpu_.add(d.work.bytes_from_gpu);
        // unreported: nobody executes it here
        if (f.unreported || f.port || f.start_waits || start_or_wait(f, from)) {
            mirror_tap* const tap = from == origin::log_of_mirror ? nullptr : tap_;
            if (tap) {
                f.fsm.note_log_range(d.request.token,
                                     tap->on_submit(f.number, d.request, d.repeats, f.fsm.objects()));
            }
            if (!f.unreported) // else it is in the log, and whoever goes on with the guest executes it
                forward(f, d);
            if (tap)
                tap->on_forwarded(f.number);
        }
    }
    deliver(f);
    publish();
}

// False: the worker can't be started, and the file is lost.
bool device::start_or_wait(file_entry& f, origin from) {
    if (from != origin::guest || starts_.ask(f.number, now_ms_))
        return start_worker(f);
    f.start_waits = true;
    workers_delayed_.add();
    if (starts_.waiting() == 1 && guest_log_.allow(now_ms_)) {
        log(KAGEMUSHA_LOG_WARNING, config_.name + ": file " + std::to_string(f.number) +
                                       ": its worker waits for its start: the guest started " +
                                       std::to_string(config_.worker_start_burst) + " workers, and gets " +
                                       std::to_string(config_.worker_starts_per_second) +
                                       " more per second (worker-start-burst, worker-starts-per-second)");
    }
    update_timer();
    return true;
}

void device::start_due() {
    while (const auto file = starts_.due(now_ms_)) {
        file_entry& f = *files_.at(*file);
        f.start_waits = false;
        if (start_worker(f)) {
            watch(true);
            flush_waiting(f);
            observe(f);
        }
    }
    update_timer();
}

bool device::start_worker(file_entry& f) {
    std::string error;
    f.port = factory_(f.number, error);
    if (f.port) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = f.number;
        if (epoll_ctl(epoll_, EPOLL_CTL_ADD, f.port->event_fd(), &event) == 0) {
            workers_started_.add();
            return true;
        }
        error = std::strerror(errno);
        f.port.reset();
    }
    lose(f, VGPU_LOST_START, 0, "its worker could not be started: " + error);
    return false;
}

void device::await_events(std::uint32_t file, std::span<const guest_id> events) {
    if (const auto at = files_.find(file); at != files_.end())
        at->second->fsm.await(events);
}

void device::forward(file_entry& f, const submit_decision& d) {
    if (f.port) {
        watch(true);
        observe(f);
    }
    hand_over(f, d.request, d.awaited);
}

void device::hand_over(file_entry& f, const worker::request_view& request,
                       std::span<const awaited_event> awaited) {
    if (f.port && awaited.empty() && f.waiting.empty() && !f.draining && !f.requests_held &&
        f.port->submit(request) == worker::submit_result::accepted) {
        f.port->kick();
        doorbells_.add();
        return;
    }
    // Full, or dead: then draining tells why and answers everything. What is awaited completes by a record,
    // which draining looks for too. No port: its start waits.
    add_waiting(f, f.waiting.emplace_back(request, awaited).bytes());
    if (f.port && !awaited.empty() && !f.draining)
        flush_waiting(f); // they may have completed between await_events() and this request
}

// As much of what may wait is left for others as this file has already. So all files together stay within the
// bound, n that want all of it get 1/(n + 1) each, and who has nothing waiting finds room.
bool device::may_wait(const file_entry& f) const {
    return waiting_bytes_ <= max_waiting_bytes_of_device &&
           f.waiting_bytes <= max_waiting_bytes_of_device - waiting_bytes_;
}

void device::add_waiting(file_entry& f, std::size_t bytes) {
    f.waiting_bytes += bytes;
    waiting_bytes_ += bytes;
}

void device::remove_waiting(file_entry& f, std::size_t bytes) {
    f.waiting_bytes -= bytes;
    waiting_bytes_ -= bytes;
}

void device::flush_waiting(file_entry& f) {
    bool submitted = false;
    while (!f.waiting.empty() && !f.requests_held) {
        waiting_request& next = f.waiting.front();
        while (!next.awaited.empty() &&
               f.fsm.objects().pending_serial(next.awaited.back().id) != next.awaited.back().serial) {
            next.awaited.pop_back();
        }
        if (!next.awaited.empty() || f.port->submit(next.view()) != worker::submit_result::accepted)
            break;
        remove_waiting(f, next.bytes());
        f.waiting.pop_front();
        submitted = true;
    }
    if (submitted) {
        f.port->kick();
        doorbells_.add();
    }
}

// ---- workers
// ---------------------------------------------------------------------------------------------------------

void device::dispatch(std::uint64_t now_ms) {
    now_ms_ = now_ms;
    epoll_event events[64];
    // What does not fit is still readable in the next call.
    const int count = epoll_wait(epoll_, events, static_cast<int>(std::size(events)), 0);
    for (int i = 0; i < count; ++i) {
        if (events[i].data.u64 == timer_key) {
            std::uint64_t expirations = 0;
            if (read(timer_, &expirations, sizeof(expirations)) == sizeof(expirations)) {
                start_due();
                check_watchdogs();
                if (tap_ && tick_ms_ != 0)
                    tap_->on_tick(now_ms);
            }
            continue;
        }
        if (events[i].data.u64 > UINT32_MAX) {
            check_ending(events[i].data.u64);
            continue;
        }
        const auto at = files_.find(static_cast<std::uint32_t>(events[i].data.u64));
        if (at != files_.end() && at->second->port)
            drain(*at->second);
    }
    publish();
}

void device::drain(file_entry& f) {
    f.draining = true;
    f.port->drain(f);
    f.draining = false;
    if (f.violation) {
        lose(f, VGPU_LOST_PROTOCOL, 0, std::string("its worker broke its protocol: ") + f.violation);
    } else if (f.port_lost) {
        lose(f, f.lost_reason, f.lost_detail,
             "its worker was lost: " + file_entry::text_of(f.lost_reason, f.lost_detail));
    } else {
        flush_waiting(f);
        deliver(f);
    }
}

void device::check_watchdogs() {
    bool any_busy = warn_of_slow_ends();
    for (auto& [number, file] : files_) {
        file_entry& f = *file;
        if (!f.port)
            continue;
        any_busy |= f.fsm.requests_in_flight() != 0 || f.fsm.objects().pending_events() != 0;
        switch (observe(f)) {
        case hang::none:
            break;
        case hang::no_progress:
            workers_killed_hung_.add();
            lose(f, VGPU_LOST_HUNG, config_.hang_timeout_ms,
                 "its worker was killed because " +
                     file_entry::text_of(VGPU_LOST_HUNG, config_.hang_timeout_ms));
            break;
        case hang::nothing_ended:
            workers_killed_hung_.add();
            lose(f, VGPU_LOST_HUNG, config_.end_timeout_ms,
                 "its worker was killed because it said that it makes progress and ended nothing for " +
                     std::to_string(config_.end_timeout_ms) +
                     " ms (end-timeout-ms; raise it for programs that enqueue more than that without an "
                     "event)");
            break;
        }
    }
    if (!any_busy)
        watch(false);
}

// ---- records
// ---------------------------------------------------------------------------------------------------------

// False if the guest has no room.
bool device::deliver_some(file_entry& f, unsigned at_most) {
    for (; f.fsm.has_record() && at_most != 0; --at_most) {
        const std::span<const std::byte> record = f.fsm.front_record();
        const int result = config_.callbacks.record(config_.user_data, record.data(), record.size());
        if (result == -EAGAIN)
            return false;
        if (result != 0)
            std::abort(); // the contract of the callback knows 0 and -EAGAIN
        f.fsm.on_record_taken();
    }
    return true;
}

void device::deliver(file_entry& f) {
    if (f.records_held)
        return;
    if (!no_room_)
        no_room_ = !deliver_some(f, UINT32_MAX);
    if (f.fsm.has_record() && !f.undelivered) {
        f.undelivered = true;
        undelivered_.push_back(f.number);
    }
}

void device::event_space() {
    no_room_ = false;
    while (!undelivered_.empty()) {
        file_entry& f = *files_.at(undelivered_.front());
        if (f.records_held) { // release_records() puts it back
            undelivered_.pop_front();
            f.undelivered = false;
            continue;
        }
        if (!deliver_some(f, records_per_turn)) {
            no_room_ = true;
            return;
        }
        undelivered_.pop_front();
        f.undelivered = f.fsm.has_record();
        if (f.undelivered)
            undelivered_.push_back(f.number);
    }
}

// ---- checkpoints
// ---------------------------------------------------------------------------------------------------------

std::vector<file_checkpoint> device::checkpoint() const {
    std::vector<file_checkpoint> out;
    out.reserve(files_.size());
    for (const auto& [number, f] : files_) {
        f->fsm.checkpoint(out.emplace_back());
        // Executed, and the guest is not told yet.
        for (const auto& [token, h] : f->held)
            out.back().requests.push_back({h.token, h.entries, h.progress});
    }
    std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.file < b.file; });
    return out;
}

void device::add_lost_file(std::uint32_t file, bool tell) {
    if (file == 0 || files_.contains(file) || files_.size() >= hard_max_files)
        return;
    files_total_.add();
    file_entry& f = *files_.emplace(file, std::make_unique<file_entry>(*this, file, config_.hash_seed + file))
                         .first->second;
    if (tap_) {
        tap_->on_open(file);
        tap_->on_lost(file);
    }
    f.fsm.on_lost(VGPU_LOST_GPU, 0);
    if (tell)
        deliver(f);
    else
        f.fsm.on_record_taken(); // elsewhere
    publish();
}

void device::add_refused(std::uint32_t file, const file_checkpoint::refused_event& event) {
    if (const auto at = files_.find(file); at != files_.end())
        at->second->fsm.add_refused(event);
}

// ---- for people
// ------------------------------------------------------------------------------------------------------

void device::log(kagemusha_log_level level, const std::string& message) const {
    if (config_.callbacks.log)
        config_.callbacks.log(config_.user_data, level, message.c_str());
}

void device::log_broken_rule(std::uint32_t file, const char* who, const char* rule, std::uint64_t now_ms) {
    if (!guest_log_.allow(now_ms))
        return;
    std::string line = config_.name + ": file " + std::to_string(file) + ": " + who + ": " + rule;
    if (const std::uint64_t suppressed = guest_log_.take_suppressed())
        line += " (and " + std::to_string(suppressed) + " more lines like this were not written)";
    log(KAGEMUSHA_LOG_WARNING, line);
}

// Numbers that are the sum over the files, for readers on other threads.
void device::publish() {
    requests_in_flight_.set(usage_.requests_in_flight);
    files_open_.set(files_.size());
    workers_ending_.set(ending_.size());
    workers_waiting_.set(starts_.waiting());
    objects_.set(usage_.objects);
    memory_bytes_.set(usage_.memory_bytes);
}

void device::stats(kagemusha_device_stats& out) const {
    out.files_open = files_open_.get();
    out.files_total = files_total_.get();
    out.requests = requests_.get();
    out.requests_in_flight = requests_in_flight_.get();
    out.requests_refused = requests_refused_.get();
    out.commands = commands_.get();
    out.launches = launches_.get();
    out.calls = calls_.get();
    out.bytes_to_gpu = bytes_to_gpu_.get();
    out.bytes_from_gpu = bytes_from_gpu_.get();
    out.events_completed = events_completed_.get();
    out.events_failed = events_failed_.get();
    out.objects = objects_.get();
    out.memory_bytes = memory_bytes_.get();
    out.workers_started = workers_started_.get();
    out.workers_lost = workers_lost_.get();
    out.workers_killed_hung = workers_killed_hung_.get();
    out.text_bytes = text_bytes_.get();
    out.text_dropped_bytes = text_dropped_bytes_.get();
    out.doorbells = doorbells_.get();
    out.workers_ending = workers_ending_.get();
    out.workers_delayed = workers_delayed_.get();
    out.workers_waiting = workers_waiting_.get();
}

} // namespace kagemusha::core
