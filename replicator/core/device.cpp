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
#include <unordered_set>
#include <utility>

#include "core/hang_watchdog.hpp"
#include "core/limits.hpp"

namespace kagemusha::core {

namespace {

constexpr std::uint64_t timer_key = UINT64_MAX; // files are 32-bit numbers

// Of the tokens that a port gets: a request that the tap injected. file_fsm uses the lower 63 bits.
constexpr std::uint64_t injected_bit = std::uint64_t{1} << 63;

// A record about something of the tap's, if it is one at all.
bool is_of_tap(std::span<const std::byte> record) {
    vgpu_record header;
    if (record.size() < sizeof(header)) {
        return false;
    }
    std::memcpy(&header, record.data(), sizeof(header));
    if (header.type == VGPU_RECORD_COMPLETION && record.size() == sizeof(vgpu_record_completion)) {
        vgpu_record_completion c;
        std::memcpy(&c, record.data(), sizeof(c));
        return (c.event & VGPU_HOST_ID_BIT) != 0 && c.pad == 0 && c.status <= 0;
    }
    if (header.type == VGPU_RECORD_QUEUE_ERROR && record.size() == sizeof(vgpu_record_queue_error)) {
        vgpu_record_queue_error e;
        std::memcpy(&e, record.data(), sizeof(e));
        return (e.queue & VGPU_HOST_ID_BIT) != 0 && e.error < 0;
    }
    return false;
}

// After so many records of one file the next file has its turn.
constexpr unsigned records_per_turn = 64;

std::string lost_reason(vgpu_lost_reason reason, std::uint32_t detail) {
    switch (reason) {
    case VGPU_LOST_CRASHED:
        return "it died (signal or exit code " + std::to_string(detail) + ")";
    case VGPU_LOST_HUNG:
        return "it made no progress for " + std::to_string(detail) + " ms";
    case VGPU_LOST_PROTOCOL:
        return "it broke its protocol";
    case VGPU_LOST_START:
        return "it could not be started";
    case VGPU_LOST_GPU:
        return "its GPU was lost (code " + std::to_string(detail) + ")";
    }
    return "unknown reason";
}

} // namespace

// A private copy of a request that the port had no room for.
struct device::waiting_request {
    std::uint64_t token;
    std::vector<std::uint64_t> stream;
    std::vector<kagemusha_payload> payloads;
    std::vector<kagemusha_segment> segments;

    explicit waiting_request(const worker::request_view& r)
        : token(r.token)
        , stream(r.stream.size() / 8)
        , payloads(r.payloads.begin(), r.payloads.end())
        , segments(r.segments.begin(), r.segments.end()) {
        std::memcpy(stream.data(), r.stream.data(), r.stream.size());
    }
    static std::size_t bytes_of(const worker::request_view& r) {
        return r.stream.size() + r.payloads.size_bytes() + r.segments.size_bytes();
    }
    worker::request_view view() const {
        return {token, std::as_bytes(std::span(stream)), payloads, segments};
    }
};

struct device::file_entry final : worker::port_sink {
    file_entry(device& d, std::uint32_t n, std::uint64_t hash_seed)
        : owner(d)
        , number(n)
        , fsm(n, d.config_.file, d.usage_, hash_seed)
        , watchdog(d.config_.hang_timeout_ms) {}

    device& owner;
    const std::uint32_t number;
    file_fsm fsm;
    std::unique_ptr<worker::port> port; // from the first request on, until the file is lost
    std::deque<waiting_request> waiting;
    hang_watchdog watchdog;
    bool undelivered = false; // is in device::undelivered_
    bool draining = false;    // the port must not be given anything just now
    // Of the tap: its requests that were not answered; answers and records of the guest that it holds back.
    std::unordered_set<std::uint64_t> injected;
    struct held_answer {
        std::uint64_t token; // the guest's
        vgpu_response response;
    };
    std::unordered_map<std::uint64_t, held_answer> held;
    bool records_held = false;
    // The watchdog looks for signs of the guest's work only, see device::check_watchdogs().
    bool tap_was_active = false;
    std::uint64_t guest_progress = 0;
    std::uint64_t port_progress = 0;
    // What a drain found; carried out after it.
    const char* violation = nullptr;
    bool port_lost = false;
    vgpu_lost_reason lost_reason = VGPU_LOST_CRASHED;
    std::uint32_t lost_detail = 0;

    void on_done(std::uint64_t token, const vgpu_response& response) override {
        if (violation || port_lost) {
            return;
        }
        if ((token & injected_bit) != 0) {
            on_injected_done(token & ~injected_bit, response);
            return;
        }
        const done_decision d = fsm.on_done(token, response);
        if (d.violation) {
            violation = d.broken_rule;
            return;
        }
        ++guest_progress;
        if (d.broken_rule) {
            owner.log_broken_rule(number, "worker", d.broken_rule, owner.now_ms_);
        }
        if (owner.tap_ && !owner.tap_->on_done(number, token, d.response)) {
            held.emplace(token, held_answer{d.token, d.response});
            return;
        }
        owner.answer(d.token, d.response);
    }

    void on_injected_done(std::uint64_t token, const vgpu_response& response) {
        if (injected.erase(token) == 0) {
            violation = "it answered a request of the host that it was not given, or one twice";
            return;
        }
        tap_was_active = true;
        owner.tap_->on_agent_done(number, token, response);
    }

    void on_record(std::span<const std::byte> record) override {
        if (violation || port_lost) {
            return;
        }
        if (owner.tap_ && is_of_tap(record)) {
            tap_was_active = true;
            owner.tap_->on_agent_record(number, record);
            return;
        }
        const record_decision d = fsm.on_record(record);
        if (d.broken_rule) {
            violation = d.broken_rule;
            return;
        }
        ++guest_progress;
        if (owner.tap_ && (d.completed || d.failed)) {
            hold_if_in_use(record);
        }
        owner.events_completed_.add(d.completed);
        owner.events_failed_.add(d.failed);
        owner.text_bytes_.add(d.text_bytes);
        owner.text_dropped_bytes_.add(d.dropped_text_bytes);
        owner.deliver(*this);
    }

    void hold_if_in_use(std::span<const std::byte> record) {
        vgpu_record_completion c;
        if (record.size() == sizeof(c)) {
            std::memcpy(&c, record.data(), sizeof(c));
            records_held |=
                c.record.type == VGPU_RECORD_COMPLETION && !owner.tap_->on_completion(number, c.event);
        }
    }

    void on_lost(vgpu_lost_reason reason, std::uint32_t detail) override {
        port_lost = true;
        lost_reason = reason;
        lost_detail = detail;
    }
};

std::unique_ptr<device> device::create(device_config config, port_factory factory, std::string& error) {
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    const int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = timer_key;
    if (epoll < 0 || timer < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &event) != 0) {
        error = std::string("the device can't have its descriptors: ") + std::strerror(errno) +
                "; raise the limit of open files";
        for (const int fd : {epoll, timer}) {
            if (fd >= 0) {
                close(fd);
            }
        }
        return nullptr;
    }
    return std::unique_ptr<device>(new device(std::move(config), std::move(factory), epoll, timer));
}

device::device(device_config config, port_factory factory, int epoll, int timer)
    : config_(std::move(config))
    , factory_(std::move(factory))
    , epoll_(epoll)
    , timer_(timer)
    , guest_log_(log_burst_lines, log_interval_ms) {
    usage_.max_objects = max_objects_of_device;
    usage_.max_memory_bytes = config_.max_memory_bytes;
}

device::~device() {
    reset();
    close(timer_);
    close(epoll_);
}

void device::set_tap(mirror_tap* tap) {
    assert(files_total_.get() == 0);
    tap_ = tap;
}

void device::add_region(std::uint32_t region, std::uint64_t bytes) {
    if (region >= regions_.size()) {
        regions_.resize(region + 1);
    }
    regions_[region] = bytes;
}

// ---- requests
// --------------------------------------------------------------------------------------------------------

void device::answer(std::uint64_t token, const vgpu_response& response) {
    if (response.status != VGPU_STATUS_OK) {
        requests_refused_.add();
    }
    config_.callbacks.request_done(config_.user_data, token, &response);
}

void device::answer(std::uint64_t token, vgpu_status status) {
    vgpu_response response{};
    response.status = status;
    response.failed_offset = status == VGPU_STATUS_MALFORMED ? UINT32_MAX : 0;
    answer(token, response);
}

void device::open_file(std::uint32_t file, std::uint64_t token) {
    if (file == 0 || files_.contains(file)) {
        log_broken_rule(file, "guest", "a file that is opened has the number 0 or is open", now_ms_);
        answer(token, VGPU_STATUS_MALFORMED);
        return;
    }
    if (files_.size() >= config_.max_files) {
        log_broken_rule(file, "guest", "more open files than max_files", now_ms_);
        answer(token, VGPU_STATUS_LIMIT);
        return;
    }
    files_total_.add();
    const std::uint64_t seed = config_.hash_seed + files_total_.get();
    files_.emplace(file, std::make_unique<file_entry>(*this, file, seed));
    if (tap_) {
        tap_->on_open(file);
    }
    publish();
    answer(token, VGPU_STATUS_OK);
}

void device::close_file(std::uint32_t file, std::uint64_t token) {
    const auto at = files_.find(file);
    if (at == files_.end()) {
        answer(token, VGPU_STATUS_NO_FILE);
        return;
    }
    if (tap_) {
        tap_->on_close(file);
    }
    cancel(*at->second);
    files_.erase(at);
    publish();
    answer(token, VGPU_STATUS_OK);
}

void device::submit(const kagemusha_request& request, std::uint64_t now_ms) {
    now_ms_ = now_ms;
    requests_.add();
    const auto at = files_.find(request.file);
    if (at == files_.end()) {
        answer(request.token, VGPU_STATUS_NO_FILE);
        return;
    }
    file_entry& f = *at->second;
    if (waiting_bytes_ > max_waiting_bytes_of_device) {
        answer(request.token, VGPU_STATUS_NO_MEMORY);
        return;
    }
    if (f.fsm.requests_in_flight() + f.held.size() >= config_.file.max_requests && !f.held.empty()) {
        answer(request.token, VGPU_STATUS_LIMIT);
        return;
    }
    const submit_decision d = f.fsm.on_submit(request, regions_);
    if (d.broken_rule) {
        log_broken_rule(f.number, "guest", d.broken_rule, now_ms);
    }
    if (d.what == submit_decision::action::answer) {
        answer(request.token, d.response);
    } else {
        commands_.add(d.work.commands);
        launches_.add(d.work.launches);
        calls_.add(d.work.calls);
        bytes_to_gpu_.add(d.work.bytes_to_gpu);
        bytes_from_gpu_.add(d.work.bytes_from_gpu);
        if (f.port || start_worker(f)) {
            if (tap_) {
                tap_->on_submit(f.number, d.request, f.fsm.objects());
            }
            forward(f, d.request);
            if (tap_) {
                tap_->on_forwarded(f.number);
            }
        }
    }
    deliver(f);
    publish();
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

void device::forward(file_entry& f, const worker::request_view& request) {
    watch(true);
    observe(f);
    hand_over(f, request);
}

void device::hand_over(file_entry& f, const worker::request_view& request) {
    if (f.waiting.empty() && !f.draining && f.port->submit(request) == worker::submit_result::accepted) {
        f.port->kick();
        doorbells_.add();
        return;
    }
    // Full, or dead: then draining tells why and answers everything.
    waiting_bytes_ += waiting_request::bytes_of(request);
    f.waiting.emplace_back(request);
}

void device::flush_waiting(file_entry& f) {
    bool submitted = false;
    while (!f.waiting.empty()) {
        const worker::request_view view = f.waiting.front().view();
        if (f.port->submit(view) != worker::submit_result::accepted) {
            break;
        }
        waiting_bytes_ -= waiting_request::bytes_of(view);
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
                check_watchdogs();
                if (tap_ && tick_ms_ != 0) {
                    tap_->on_tick(now_ms);
                }
            }
            continue;
        }
        const auto at = files_.find(static_cast<std::uint32_t>(events[i].data.u64));
        if (at != files_.end() && at->second->port) {
            drain(*at->second);
        }
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
             "its worker was lost: " + lost_reason(f.lost_reason, f.lost_detail));
    } else {
        flush_waiting(f);
        deliver(f);
    }
}

void device::end_port(file_entry& f) {
    if (f.port) {
        epoll_ctl(epoll_, EPOLL_CTL_DEL, f.port->event_fd(), nullptr);
        f.port->kill();
        f.port.reset();
    }
    for (const waiting_request& w : f.waiting) {
        waiting_bytes_ -= waiting_request::bytes_of(w.view());
    }
    f.waiting.clear();
    f.injected.clear();
}

// What the tap held back is told when the file ends; from then on what is in use is of no interest to the
// guest any more.
void device::answer_held(file_entry& f) {
    for (const auto& [token, h] : std::exchange(f.held, {})) {
        answer(h.token, h.response);
    }
    f.records_held = false;
}

void device::lose(file_entry& f, vgpu_lost_reason reason, std::uint32_t detail, const std::string& why) {
    end_port(f); // from here on nothing touches guest memory, so the requests may be answered
    workers_lost_.add();
    if (guest_log_.allow(now_ms_)) {
        log(KAGEMUSHA_LOG_WARNING, config_.name + ": file " + std::to_string(f.number) + ": " + why +
                                       "; its guest process gets errors, everything else goes on");
    }
    if (tap_) {
        tap_->on_lost(f.number);
    }
    answer_held(f);
    f.fsm.on_lost(reason, detail);
    f.fsm.end_all(VGPU_STATUS_LOST,
                  [this](std::uint64_t token, const vgpu_response& response) { answer(token, response); });
    deliver(f);
}

void device::cancel(file_entry& f) {
    end_port(f);
    answer_held(f);
    f.fsm.end_all(VGPU_STATUS_CANCELED,
                  [this](std::uint64_t token, const vgpu_response& response) { answer(token, response); });
    if (f.undelivered) {
        std::erase(undelivered_, f.number);
    }
}

void device::reset() {
    if (tap_) {
        tap_->on_reset();
    }
    for (auto& [number, file] : files_) {
        cancel(*file);
    }
    files_.clear();
    undelivered_.clear();
    no_room_ = false;
    watch(false);
    publish();
}

// ---- the timer: for the watchdog and for the tap
// -----------------------------------------------------------------------------------------

void device::watch(bool on) {
    if (config_.hang_timeout_ms != 0 && on != watching_) {
        watching_ = on;
        update_timer();
    }
}

void device::set_tick_period(std::uint32_t period_ms) {
    tick_ms_ = period_ms;
    update_timer();
}

void device::update_timer() {
    std::uint32_t period_ms = tick_ms_;
    if (watching_) {
        const std::uint32_t watchdog_ms =
            std::clamp(config_.hang_timeout_ms / 4, min_watchdog_period_ms, max_watchdog_period_ms);
        period_ms = period_ms == 0 ? watchdog_ms : std::min(period_ms, watchdog_ms);
    }
    if (period_ms == timer_period_ms_) {
        return;
    }
    itimerspec spec{};
    spec.it_value.tv_sec = spec.it_interval.tv_sec = period_ms / 1000;
    spec.it_value.tv_nsec = spec.it_interval.tv_nsec = static_cast<long>(period_ms % 1000) * 1'000'000;
    timerfd_settime(timer_, 0, &spec, nullptr);
    timer_period_ms_ = period_ms;
}

// Whether the file's worker hangs with work of the guest. What the tap injects must neither look like a sign
// of life of the guest's work nor be waited for: progress of the worker counts where the tap did nothing
// meanwhile, answers and records of the guest's own count always.
bool device::observe(file_entry& f) {
    const std::uint64_t progress = f.port->progress();
    if (!std::exchange(f.tap_was_active, false)) {
        f.guest_progress += progress - f.port_progress;
    }
    f.port_progress = progress;
    return f.watchdog.observe(now_ms_, f.fsm.busy(), f.guest_progress);
}

void device::check_watchdogs() {
    bool any_busy = false;
    for (auto& [number, file] : files_) {
        file_entry& f = *file;
        if (!f.port) {
            continue;
        }
        any_busy |= f.fsm.requests_in_flight() != 0 || f.fsm.objects().pending_events() != 0;
        if (observe(f)) {
            workers_killed_hung_.add();
            lose(f, VGPU_LOST_HUNG, config_.hang_timeout_ms,
                 "its worker was killed because " + lost_reason(VGPU_LOST_HUNG, config_.hang_timeout_ms));
        }
    }
    if (!any_busy) {
        watch(false);
    }
}

// ---- the tap's
// -----------------------------------------------------------------------------------------

bool device::inject(std::uint32_t file, const worker::request_view& request) {
    const auto at = files_.find(file);
    if (at == files_.end() || !at->second->port) {
        return false;
    }
    file_entry& f = *at->second;
    assert((request.token & (std::uint64_t{3} << 62)) == 0);
    [[maybe_unused]] const bool is_new = f.injected.insert(request.token).second;
    assert(is_new);
    f.tap_was_active = true;
    worker::request_view marked = request;
    marked.token |= injected_bit;
    hand_over(f, marked);
    return true;
}

const object_table* device::objects(std::uint32_t file) const {
    const auto at = files_.find(file);
    return at == files_.end() ? nullptr : &at->second->fsm.objects();
}

void device::release_answer(std::uint32_t file, std::uint64_t token) {
    const auto at = files_.find(file);
    if (at == files_.end()) {
        return;
    }
    if (const auto held = at->second->held.extract(token)) {
        answer(held.mapped().token, held.mapped().response);
    }
}

void device::release_records(std::uint32_t file) {
    const auto at = files_.find(file);
    if (at != files_.end()) {
        at->second->records_held = false;
        deliver(*at->second);
    }
}

// ---- records
// ---------------------------------------------------------------------------------------------------------

// False if the guest has no room.
bool device::deliver_some(file_entry& f, unsigned at_most) {
    for (; f.fsm.has_record() && at_most != 0; --at_most) {
        const std::span<const std::byte> record = f.fsm.front_record();
        const int result = config_.callbacks.record(config_.user_data, record.data(), record.size());
        if (result == -EAGAIN) {
            return false;
        }
        if (result != 0) {
            std::abort(); // the contract of the callback knows 0 and -EAGAIN
        }
        f.fsm.on_record_taken();
    }
    return true;
}

void device::deliver(file_entry& f) {
    if (f.records_held) {
        return;
    }
    if (!no_room_) {
        no_room_ = !deliver_some(f, UINT32_MAX);
    }
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
        if (f.undelivered) {
            undelivered_.push_back(f.number);
        }
    }
}

// ---- for people
// ------------------------------------------------------------------------------------------------------

void device::log(kagemusha_log_level level, const std::string& message) const {
    if (config_.callbacks.log) {
        config_.callbacks.log(config_.user_data, level, message.c_str());
    }
}

void device::log_broken_rule(std::uint32_t file, const char* who, const char* rule, std::uint64_t now_ms) {
    if (!guest_log_.allow(now_ms)) {
        return;
    }
    std::string line = config_.name + ": file " + std::to_string(file) + ": " + who + ": " + rule;
    if (const std::uint64_t suppressed = guest_log_.take_suppressed()) {
        line += " (and " + std::to_string(suppressed) + " more lines like this were not written)";
    }
    log(KAGEMUSHA_LOG_WARNING, line);
}

// Numbers that are the sum over the files, for readers on other threads.
void device::publish() {
    requests_in_flight_.set(usage_.requests_in_flight);
    files_open_.set(files_.size());
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
}

} // namespace kagemusha::core
