// SPDX-License-Identifier: GPL-2.0-or-later
//
// See crash_fsm.hpp.
#include "control/demo/crash_fsm.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kagemusha::control {

using namespace demo_action;

namespace {

constexpr std::size_t most_results = 1000; // the guest is a stranger

} // namespace

crash_fsm::crash_fsm(crash_config config, demo_program program)
    : config_(config), program_(program), works_(work_of(program)) {
    story_.program = program;
}

bool crash_fsm::next(any& action) {
    if (actions_.empty())
        return false;
    action = std::move(actions_.front());
    actions_.pop_front();
    return true;
}

void crash_fsm::finish(std::string why) {
    if (state_ == state::over)
        return;
    enter(state::over);
    act(end{std::move(why)});
}

// The program's next run.
void crash_fsm::run() {
    ++run_;
    results_.clear();
    shown_ = -1;
    ready_ = false;
    act(report_guest{demo_host::primary, fmt::format("run {} {}", run_, works_[work_].command)});
}

void crash_fsm::on_guest(demo_host from, const guest_event& event, std::uint64_t now_ns) {
    using kind = guest_event::kind;
    const bool on_primary = from == demo_host::primary;
    // What the primary had printed and nobody had read before it died is still shown, and no more.
    const bool counts = state_ != state::over && on_primary == (state_ < state::killed);
    switch (event.what) {
    case kind::ready:
        if (!counts)
            return;
        ready_ = true;
        if (state_ == state::booting) {
            story_.booted_ns = now_ns;
            act(say{"the guest is up; run 1: nothing fails, and there is no standby"});
            act(read_gpu{from, reading::before_reference});
            enter(state::reference);
            run();
        } else if (state_ == state::attaching) {
            begin_if_ready();
        }
        return;
    case kind::begun:
        if (!counts || event.run != run_)
            return;
        (state_ == state::reference ? story_.reference_begun_ns : story_.begun_ns) = now_ns;
        act(show{from, beginning_of(program_)});
        return;
    case kind::progress:
        return on_progress(from, event, now_ns);
    case kind::found:
        if (state_ != state::over)
            act(show{from, "found " + event.text});
        return;
    case kind::ended:
        if (!counts || event.run != run_)
            return;
        if (event.status != 0)
            return finish(fmt::format("{} ended with status {} on the {}", name_of(program_), event.status,
                                      to_text(from)));
        if (state_ == state::computing)
            return finish(fmt::format("{} was done before the primary could be killed in the middle of it",
                                      name_of(program_)));
        (state_ == state::reference ? story_.reference_ended_ns : story_.ended_ns) = now_ns;
        return;
    case kind::result:
        if (counts && event.run == run_ && results_.size() < most_results)
            results_.insert(event.text);
        return;
    case kind::results_end:
        if (!counts || event.run != run_)
            return;
        if (state_ == state::reference) {
            after_reference();
        } else if (state_ == state::killed || state_ == state::survived) {
            story_.result = results_;
            has_results_ = true;
            finish_if_done();
        }
        return;
    }
}

// The first set is small: it measures the GPU in seconds. A run of it is over before its host could die in
// the middle of it.
void crash_fsm::after_reference() {
    auto work = work_;
    const double enough = config_.least_seconds * fastest_;
    if (works_[work].size < enough)
        while (work + 1 < works_.size() && works_[work].size < enough * config_.margin)
            ++work;
    if (work != work_) {
        work_ = work;
        act(say{fmt::format("this GPU is too fast for that: once more, with {}", works_[work_].describe)});
        act(read_gpu{demo_host::primary, reading::before_reference});
        return run();
    }
    if (program_ == demo_program::hashcat)
        story_.words = words();
    story_.asked = works_[work_].describe;
    story_.reference = results_;
    act(read_gpu{demo_host::primary, reading::after_reference});
    act(say{"the standby starts, and gets a copy of the running VM and its GPU"});
    act(start_standby{});
    ready_ = false;
    enter(state::attaching);
}

void crash_fsm::on_progress(demo_host from, const guest_event& event, std::uint64_t now_ns) {
    if (state_ == state::over)
        return;
    if (from != shown_of_ || event.fraction < shown_ || event.fraction >= shown_ + config_.show_every ||
        event.fraction >= 1) {
        act(show{from, fmt::format("{:3.0f} %, {}", event.fraction * 100, event.text)});
        shown_ = event.fraction;
        shown_of_ = from;
    }
    if (state_ == state::reference) {
        fastest_ = std::max(fastest_, event.per_second);
        return;
    }
    story_.progress.push_back({from, now_ns, event.fraction, event.loss});
    if (state_ == state::computing && from == demo_host::primary && event.fraction >= config_.kill_at) {
        act(read_gpu{demo_host::primary, reading::before_kill});
        act(kill_primary{});
        enter(state::killed);
    }
}

void crash_fsm::begin_if_ready() {
    if (state_ != state::attaching || !ready_ || !protected_ || !standby_heard_)
        return;
    act(say{"run 2: the same, and its host dies in the middle"});
    act(read_gpu{demo_host::primary, reading::before_crash_run});
    enter(state::computing);
    run();
}

void crash_fsm::on_status(demo_host of, const supervisor_reading& status, std::uint64_t now_ns) {
    if (of == demo_host::primary && state_ <= state::computing) {
        const bool is_protected = status.state == "protecting" && status.checkpoints >= config_.checkpoints;
        story_.checkpoints = status.checkpoints;
        story_.pause_us = status.pause_us;
        if (state_ == state::attaching && is_protected && !protected_) {
            protected_ = true;
            story_.protected_ns = now_ns;
            act(say{fmt::format("protected: {} checkpoints are on the standby", status.checkpoints)});
            begin_if_ready();
        } else if (protected_ && status.state != "protecting") {
            finish(fmt::format("the VM lost its standby: {}",
                               status.degraded.empty() ? "it is " + status.state : status.degraded));
        }
    } else if (of == demo_host::standby && state_ >= state::killed) {
        story_.committed_ns = status.committed_ns;
        story_.decided_ns = status.decided_ns;
        story_.running_ns = status.running_ns;
        story_.first_command_ns = status.first_command_ns;
        finish_if_done();
    }
}

void crash_fsm::on_log(demo_host of, const std::string& event, const std::string& text, std::uint64_t ns) {
    if (state_ == state::over)
        return;
    if (event == "qemu-ended" && of == demo_host::primary && state_ >= state::killed) {
        if (story_.detected_ns == 0)
            story_.detected_ns = ns;
    } else if (event == "qemu-ended" && state_ != state::ending) {
        finish(fmt::format("the {}'s QEMU ended: {}", to_text(of), text));
    } else if (event == "running" && of == demo_host::standby && state_ == state::killed) {
        enter(state::survived);
        act(say{"the standby has taken over: " + text});
        act(read_gpu{demo_host::standby, reading::after_takeover});
    }
}

void crash_fsm::finish_if_done() {
    if (state_ != state::survived || !has_results_ || story_.first_command_ns == 0)
        return;
    act(read_gpu{demo_host::standby, reading::at_end});
    act(report_guest{demo_host::standby, "end"});
    enter(state::ending);
}

void crash_fsm::on_console(demo_host of) {
    if (of == demo_host::primary) {
        act(report_guest{of, ""}); // it says "ready" once more, if it had before
    } else {
        standby_heard_ = true;
        begin_if_ready();
    }
}

void crash_fsm::on_exit(demo_host of, int status) {
    ended_[of] = status;
    if (of == demo_host::primary ? state_ < state::killed : state_ < state::ending)
        return finish(fmt::format("the {}'s supervisor ended with status {}", to_text(of), status));
    if (state_ != state::ending || ended_.size() < 2)
        return;
    for (const auto& [host, code] : ended_)
        if (code != 0)
            return finish(fmt::format("the {}'s supervisor ended with status {}", to_text(host), code));
    finish({});
}

} // namespace kagemusha::control
