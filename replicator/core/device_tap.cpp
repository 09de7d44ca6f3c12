// SPDX-License-Identifier: GPL-2.0-or-later
// device_tap: the part of the device that is there for its tap, and the timer that both need.
#include <sys/timerfd.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "core/device_session.hpp"
#include "core/limits.hpp"

namespace kagemusha::core {

void device::set_tap(mirror_tap* tap) {
    assert(files_total_.get() == 0);
    tap_ = tap;
}

bool device::inject(std::uint32_t file, const worker::request_view& request) {
    const auto at = files_.find(file);
    if (at == files_.end() || (!at->second->port && !at->second->start_waits))
        return false;
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
    if (at == files_.end())
        return;
    if (const auto held = at->second->held.extract(token))
        answer(held.mapped().token, held.mapped().response);
}

void device::release_records(std::uint32_t file) {
    const auto at = files_.find(file);
    if (at != files_.end()) {
        at->second->records_held = false;
        deliver(*at->second);
    }
}

void device::hold_requests(std::uint32_t file) {
    const auto at = files_.find(file);
    assert(at != files_.end());
    at->second->requests_held = true;
}

void device::release_requests(std::uint32_t file) {
    const auto at = files_.find(file);
    if (at != files_.end() && std::exchange(at->second->requests_held, false) && at->second->port)
        flush_waiting(*at->second);
}

void device::lose_session(std::uint32_t file, std::uint32_t after_ms, const std::string& why) {
    const auto at = files_.find(file);
    if (at != files_.end() && !at->second->fsm.lost() && !at->second->unreported)
        lose(*at->second, VGPU_LOST_HUNG, after_ms, why);
}

// What the tap held back is told when the file ends; from then on what is in use is of no interest to the
// guest any more.
void device::answer_held(file_entry& f) {
    for (const auto& [token, h] : std::exchange(f.held, {}))
        answer(h.token, h.response);
    f.records_held = false;
}

// ---- the timer: for the watchdog, for starts that wait, and for the tap
// -----------------------------------------------------------------------------------------

// The shorter one of those that there are.
std::uint32_t device::watchdog_timeout_ms() const {
    return config_.hang_timeout_ms == 0  ? config_.end_timeout_ms
           : config_.end_timeout_ms == 0 ? config_.hang_timeout_ms
                                         : std::min(config_.hang_timeout_ms, config_.end_timeout_ms);
}

void device::watch(bool on) {
    if (watchdog_timeout_ms() != 0 && on != watching_) {
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
            std::clamp(watchdog_timeout_ms() / 4, min_watchdog_period_ms, max_watchdog_period_ms);
        period_ms = period_ms == 0 ? watchdog_ms : std::min(period_ms, watchdog_ms);
    }
    if (starts_.waiting() != 0)
        period_ms = period_ms == 0 ? starts_.period_ms() : std::min(period_ms, starts_.period_ms());
    if (period_ms == timer_period_ms_)
        return;
    itimerspec spec{};
    spec.it_value.tv_sec = spec.it_interval.tv_sec = period_ms / 1000;
    spec.it_value.tv_nsec = spec.it_interval.tv_nsec = static_cast<long>(period_ms % 1000) * 1'000'000;
    timerfd_settime(timer_, 0, &spec, nullptr);
    timer_period_ms_ = period_ms;
}

// Whether the file's worker hangs with work of the guest. What the tap injects must neither look like a sign
// of life of the guest's work nor be waited for: progress of the worker counts where the tap did nothing
// meanwhile, answers and records of the guest's own count always.
hang device::observe(file_entry& f) {
    const std::uint64_t progress = f.port->progress();
    if (!std::exchange(f.tap_was_active, false))
        f.guest_progress += progress - f.port_progress;
    f.port_progress = progress;
    return f.watchdog.observe(now_ms_, f.fsm.busy(), f.requests_held, f.guest_progress, f.guest_ended);
}

} // namespace kagemusha::core
