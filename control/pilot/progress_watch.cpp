// SPDX-License-Identifier: GPL-2.0-or-later
//
// See progress_watch.hpp.
#include "control/pilot/progress_watch.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kagemusha::control {

namespace {

// In-band answers come this late on a busy machine, too. Beyond it nothing is held against the standby. With
// a short bound it is half of that: the main loop that stands still was asked later than the last checkpoint.
constexpr std::uint64_t prompt_ms = 2000;

bool beyond(std::uint64_t waited, std::uint64_t bound) {
    return bound != 0 && waited >= bound;
}

} // namespace

std::uint32_t asking_period_ms(const progress_bounds& bounds) {
    std::uint32_t period = progress_watch::longest_step_ms;
    const auto at_most = [&period](std::uint32_t bound, std::uint32_t share) {
        if (bound != 0)
            period = std::min(period, bound / share);
    };
    at_most(bounds.answer_ms, 5);
    at_most(bounds.main_loop_ms, 5);
    at_most(bounds.transfer_ms, 5);
    // Half of its time may be an epoch; then the main loop's answer must be missing for long enough.
    at_most(bounds.checkpoint_ms, 10);
    return std::max(period, 500u);
}

void progress_watch::started(std::uint64_t now) {
    const auto bounds = bounds_;
    const auto time = time_;
    const auto warning = warning_;
    *this = progress_watch(bounds);
    begun_ = true;
    seen_ = now;
    time_ = moved_ = time;
    warning_ = warning; // is taken back by the next look()
}

void progress_watch::asked(question what) {
    auto& q = questions_[static_cast<int>(what)];
    if (!q.open)
        q = {true, time_};
}

void progress_watch::answered(question what) {
    questions_[static_cast<int>(what)].open = false;
    if (what != question::in_band || !freed_)
        return;
    // The main loop only waited for the standby.
    freed_ = false;
    lose(suspicion_);
}

void progress_watch::enter(watched_phase phase) {
    if (phase == phase_)
        return;
    // Checkpoints that follow the first copy are of the same stream.
    if (phase == watched_phase::none || phase_ == watched_phase::none) {
        lost_ = freed_ = false;
        number_ = 0;
    }
    phase_ = phase;
    moved_ = time_;
}

void progress_watch::progress(std::uint64_t number) {
    if (number == number_)
        return;
    number_ = number;
    moved_ = time_;
}

bool progress_watch::may_report_loss(const std::string& why) {
    if (lost_)
        return false;
    if (freed_) {
        suspicion_ = why;
        return false;
    }
    lost_ = true;
    return true;
}

std::uint64_t progress_watch::waited(question what) const {
    const auto& q = questions_[static_cast<int>(what)];
    return q.open ? time_ - q.since : 0;
}

void progress_watch::lose(const std::string& why) {
    if (lost_)
        return;
    lost_ = true;
    events_.push_back({progress_event::kind::replication_lost, why});
}

void progress_watch::warn(const std::string& why) {
    if (why == warning_)
        return;
    warning_ = why;
    events_.push_back({progress_event::kind::warn, why});
}

bool progress_watch::look(std::uint64_t now, progress_event& out) {
    if (begun_ && now != seen_) {
        time_ += std::min(now - seen_, longest_step_ms);
        seen_ = now;
        judge();
    }
    if (events_.empty())
        return false;
    out = std::move(events_.front());
    events_.pop_front();
    return true;
}

void progress_watch::judge() {
    using kind = progress_event::kind;
    const auto process = waited(question::out_of_band), main_loop = waited(question::in_band);
    if (beyond(process, bounds_.answer_ms)) {
        const auto why = fmt::format("its monitor gave no answer for {} ms", bounds_.answer_ms);
        warn("QEMU stands still: " + why);
        events_.push_back({kind::stuck, why});
        return;
    }
    if (beyond(main_loop, bounds_.main_loop_ms)) {
        const auto why = fmt::format("its main loop has stood still for {} ms", bounds_.main_loop_ms);
        warn("QEMU does not get on: " + why);
        if (phase_ == watched_phase::none) {
            events_.push_back({kind::stuck, why});
        } else if (!freed_ && !lost_) {
            freed_ = true;
            freed_at_ = time_;
            suspicion_ = "QEMU waited for the standby and did nothing else: " + why;
            events_.push_back({kind::free_stream, why});
        } else if (!freed_ || time_ - freed_at_ >= std::max<std::uint64_t>(bounds_.main_loop_ms / 4, 500)) {
            events_.push_back({kind::stuck, why + ", also without its stream to the standby"});
        }
        return;
    }
    const auto idle = time_ - moved_;
    if (phase_ == watched_phase::gpu_copy && beyond(idle, bounds_.transfer_ms))
        return warn(
            fmt::format("the first copy of the GPU's state has not got on for {} ms; a program of the "
                        "guest may hold it up: `kage status` has the GPU's reason",
                        bounds_.transfer_ms));
    const auto bound = phase_ == watched_phase::transfer     ? bounds_.transfer_ms
                       : phase_ == watched_phase::protected_ ? bounds_.checkpoint_ms
                                                             : 0;
    const auto* what = phase_ == watched_phase::transfer ? "the first copy has not got on"
                                                         : "no checkpoint has reached the standby";
    // Of a main loop that is late the standby may be innocent.
    if (beyond(idle, bound) && main_loop < std::min<std::uint64_t>(prompt_ms, bound / 2))
        lose(fmt::format("{} for {} ms; the standby, its storage or the network to it is stuck or too slow",
                         what, bound));
    if (!lost_ && bound != 0 && idle >= bound / 2)
        warn(fmt::format("{} for {} ms; after {} ms the standby is given up", what, bound / 2, bound));
    else if (bounds_.main_loop_ms != 0 && main_loop >= bounds_.main_loop_ms / 2)
        warn(fmt::format("QEMU's main loop has stood still for {} ms", bounds_.main_loop_ms / 2));
    else
        warn({});
}

} // namespace kagemusha::control
