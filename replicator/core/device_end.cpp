// SPDX-License-Identifier: GPL-2.0-or-later
// device_end: how files and their workers end. device.hpp says what is promised while a worker does not.
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "core/device_session.hpp"
#include "core/limits.hpp"

namespace kagemusha::core {

std::string device::file_entry::text_of(vgpu_lost_reason reason, std::uint32_t detail) {
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

// ---- one file

// Kills the worker, and forgets what it was not given yet.
void device::end_port(file_entry& f) {
    if (f.port) {
        f.port->kill();
        epoll_event event{};
        event.events = EPOLLIN;
        if (f.port->gone()) {
            epoll_ctl(epoll_, EPOLL_CTL_DEL, f.port->event_fd(), nullptr);
        } else {
            f.ending = event.data.u64 = ++last_ending_;
            epoll_ctl(epoll_, EPOLL_CTL_MOD, f.port->event_fd(), &event);
            auto e = std::make_unique<ending_worker>();
            e->port = std::move(f.port);
            e->file = f.number;
            e->since_ms = now_ms_;
            e->memory = std::move(f.kept);
            ending_.emplace(f.ending, std::move(e));
            watch(true); // for warn_of_slow_ends()
        }
        f.port.reset();
    }
    if (std::exchange(f.start_waits, false))
        starts_.forget(f.number);
    f.kept.clear();
    remove_waiting(f, f.waiting_bytes);
    f.waiting.clear();
    f.injected.clear();
    f.requests_held = false;
}

// Answers what is in flight; what of its memory is not the guest's stays the worker's until that is gone.
// Requests that name guest memory only come here when nobody writes for them any more (or the VM stops).
void device::end_requests(file_entry& f, vgpu_status status) {
    report_written(f.fsm.rest_of_writes());
    f.fsm.end_all(status, [&](std::uint64_t token, const vgpu_response& response) {
        if (f.ending != 0 && memory_of_) {
            if (auto memory = memory_of_(token))
                ending_.at(f.ending)->memory.push_back(std::move(memory));
        }
        answer(token, response);
    });
}

void device::forget_records(file_entry& f) {
    if (f.undelivered) {
        std::erase(undelivered_, f.number);
        f.undelivered = false;
    }
}

void device::keep_until_gone(std::uint32_t file, std::shared_ptr<const void> memory) {
    const auto at = files_.find(file);
    if (at == files_.end())
        return;
    file_entry& f = *at->second;
    if (f.ending != 0)
        ending_.at(f.ending)->memory.push_back(std::move(memory));
    else if (f.port)
        f.kept.push_back(std::move(memory));
}

void device::close_file(std::uint32_t file, std::uint64_t token, origin from) {
    const auto at = files_.find(file);
    if (at == files_.end()) {
        answer(token, VGPU_STATUS_NO_FILE);
        return;
    }
    if (tap_)
        tap_->on_close(file);
    std::unique_ptr<file_entry> closed = std::move(at->second);
    file_entry& f = *closed;
    forget_records(f);
    files_.erase(at);
    end_port(f);
    answer_held(f);
    if (f.ending != 0 && (from == origin::guest || f.fsm.in_guest_memory())) {
        ending_worker& e = *ending_.at(f.ending);
        e.close_token = token;
        e.closed = std::move(closed);
    } else {
        end_requests(f, VGPU_STATUS_CANCELED);
        closed.reset();
        answer(token, VGPU_STATUS_OK);
    }
    publish();
}

// ---- lost workers

void device::lose(file_entry& f, vgpu_lost_reason reason, std::uint32_t detail, const std::string& why) {
    workers_lost_.add();
    // First of all: the worker may be stuck in its GPU's driver, and then nothing below comes to an end.
    const bool held = reason != VGPU_LOST_START && hold_loss_ &&
                      hold_loss_("file " + std::to_string(f.number) + ": " + why);
    end_port(f);
    f.unreported.emplace(file_entry::unreported_loss{reason, detail, why, held});
    if (held) {
        log(KAGEMUSHA_LOG_WARNING, config_.name + ": file " + std::to_string(f.number) + ": " + why +
                                       "; the guest is not told while a standby may go on with it");
    }
    settle_loss(f);
}

void device::report_losses() {
    for (auto& [number, f] : files_) {
        if (f->unreported) {
            f->unreported->held = false;
            settle_loss(*f);
        }
    }
    publish();
}

void device::settle_loss(file_entry& f) {
    if (f.unreported && !f.unreported->held && (f.ending == 0 || !f.fsm.in_guest_memory())) {
        const auto loss = std::exchange(f.unreported, {});
        report_loss(f, loss->reason, loss->detail, loss->why);
    }
}

void device::report_loss(file_entry& f, vgpu_lost_reason reason, std::uint32_t detail,
                         const std::string& why) {
    if (guest_log_.allow(now_ms_)) {
        log(KAGEMUSHA_LOG_WARNING, config_.name + ": file " + std::to_string(f.number) + ": " + why +
                                       "; its guest process gets errors, everything else goes on");
    }
    if (tap_)
        tap_->on_lost(f.number);
    answer_held(f);
    f.fsm.on_lost(reason, detail);
    end_requests(f, VGPU_STATUS_LOST);
    deliver(f);
}

// ---- all files

std::size_t device::reset() {
    if (tap_)
        tap_->on_reset();
    for (auto& [number, file] : files_) {
        file_entry& f = *file;
        end_port(f);
        answer_held(f);
        if (f.ending != 0)
            ending_.at(f.ending)->in_guest_memory = f.fsm.in_guest_memory();
        end_requests(f, VGPU_STATUS_CANCELED);
    }
    for (auto& [key, e] : ending_) {
        if (const auto closed = std::move(e->closed)) {
            e->in_guest_memory = closed->fsm.in_guest_memory();
            end_requests(*closed, VGPU_STATUS_CANCELED);
            answer(e->close_token, VGPU_STATUS_CANCELED);
        }
    }
    files_.clear();
    undelivered_.clear();
    no_room_ = false;
    watch(!ending_.empty());
    publish();
    return writers();
}

std::size_t device::writers() {
    sweep_ending();
    return static_cast<std::size_t>(
        std::ranges::count_if(ending_, [](const auto& e) { return e.second->in_guest_memory; }));
}

// ---- workers that end

void device::check_ending(std::uint64_t key) {
    if (const auto at = ending_.find(key); at != ending_.end() && at->second->port->gone())
        on_gone(key);
}

// Nothing of it touches any memory from here on.
void device::on_gone(std::uint64_t key) {
    const std::unique_ptr<ending_worker> e = std::move(ending_.extract(key).mapped());
    epoll_ctl(epoll_, EPOLL_CTL_DEL, e->port->event_fd(), nullptr);
    if (e->warned) {
        log(KAGEMUSHA_LOG_INFO,
            config_.name + ": file " + std::to_string(e->file) + ": its worker has ended");
    }
    if (e->closed) {
        e->closed->ending = 0;
        end_requests(*e->closed, VGPU_STATUS_CANCELED);
        answer(e->close_token, VGPU_STATUS_OK);
        e->closed.reset();
    } else if (const auto at = files_.find(e->file); at != files_.end() && at->second->ending == key) {
        at->second->ending = 0;
        settle_loss(*at->second);
    }
    publish();
}

// Whether any has gone.
bool device::sweep_ending() {
    const std::size_t before = ending_.size();
    for (auto next = ending_.begin(); next != ending_.end();) {
        const std::uint64_t key = next++->first;
        check_ending(key);
    }
    return ending_.size() < before;
}

// Whether there is any that somebody has to look after.
bool device::warn_of_slow_ends() {
    for (auto& [key, e] : ending_) {
        if (!e->warned && now_ms_ >= e->since_ms + slow_end_ms) {
            e->warned = true;
            log(KAGEMUSHA_LOG_WARNING,
                config_.name + ": file " + std::to_string(e->file) + ": its worker was killed " +
                    std::to_string(now_ms_ - e->since_ms) +
                    " ms ago and has not ended: the GPU's driver may be stuck (see the host's kernel log)");
        }
    }
    return std::ranges::any_of(ending_, [](const auto& e) { return !e.second->warned; });
}

// The others are counted with their file.
std::size_t device::workers_without_file() const {
    return static_cast<std::size_t>(std::ranges::count_if(ending_, [this](const auto& e) {
        const auto at = files_.find(e.second->file);
        return at == files_.end() || at->second->ending != e.first;
    }));
}

} // namespace kagemusha::core
