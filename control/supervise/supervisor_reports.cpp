// SPDX-License-Identifier: GPL-2.0-or-later
//
// What QEMU reports to the supervisor_loop and what the supervisor_loop orders, each on its thread; and the marks of the disks'
// images, which come between.
#include "control/base/log_file.hpp"
#include "control/supervise/supervisor_impl.hpp"
#include "control/vm/image_mark.hpp"

#include <fmt/format.h>

#include <string_view>

namespace kagemusha::control {

namespace {

double ms_between(std::uint64_t from_ns, std::uint64_t to_ns) {
    return (static_cast<double>(to_ns) - static_cast<double>(from_ns)) * 1e-6;
}

} // namespace

pilot_events supervisor::pilot_reports() {
    pilot_events events;
    events.ready = [this, own = std::vector{state_address_, gpu_address_}](std::uint64_t qemu,
                                                                           const std::string& replica) {
        constexpr std::string_view prefix = "unix:";
        for (const std::string& address : own)
            if (address.starts_with(prefix))
                qemus_sockets_.insert(address.substr(prefix.size()));
        loop_->qemu_ready(qemu, replica);
    };
    events.protecting = [this](std::uint64_t replication) { loop_->qemu_protecting(replication); };
    events.replication_lost = [this](std::uint64_t replication, const std::string& why) {
        loop_->replication_lost(replication, why);
    };
    events.running = [this] {
        const moment now;
        loop_->qemu_running();
        running_ns_ = now.ns;
        committed_ns_ = completed_ns_ = 0;
        log("running",
            fmt::format("the VM runs here, {:.1f} ms after the decision",
                        ms_between(loop_->status().decided_ns, now.ns)),
            now);
    };
    events.gpu_computes = [this](std::uint64_t committed_ns, std::uint64_t completed_ns) {
        committed_ns_ = committed_ns;
        completed_ns_ = completed_ns;
        const auto decided_ns = loop_->status().decided_ns;
        moment then;
        then.time -= std::chrono::duration_cast<std::chrono::system_clock::duration>(
            std::chrono::nanoseconds(then.ns - completed_ns));
        then.ns = completed_ns;
        log("first-command",
            fmt::format("the GPU completed the guest's first command, {:.1f} ms after the decision; the last "
                        "checkpoint was {:.1f} ms before it",
                        ms_between(decided_ns, completed_ns), ms_between(committed_ns, decided_ns)),
            then);
    };
    events.takeover_failed = [this](const std::string& why) { loop_->takeover_failed(why); };
    events.stuck = [this](const std::string& why) { loop_->qemu_stuck(why); };
    events.warning = [this](const std::string& what) {
        warning_ = what;
        log("warning", what.empty() ? "what was warned of is over" : what);
    };
    events.differences = [this](const std::string& what) { log("differences", what); };
    events.guest_ended = [this](const std::string& how) {
        log("stop", how);
        loop_->stop();
    };
    events.stopped = [this] { log("stopped", "the VM stands still until the standby has it"); };
    events.handed_over = [this](std::uint64_t replication) { loop_->qemu_handed_over(replication); };
    events.hand_over_failed = [this](const std::string& why) { hand_over_failed(why); };
    events.gpu_lost = [this](const std::string& why) {
        gpu_lost_ = why;
        log("gpu-lost", why);
        loop_->gpu_lost(why);
    };
    events.gpu_failed = [this](const std::string& why) { loop_->gpu_failed(why); };
    events.died = [this](const std::string& how, bool in_order, std::uint64_t qemu) {
        drill_.qemu_ended(boot_ns());
        log("qemu-ended", how);
        loop_->qemu_died(how, in_order, qemu); // first: others wait for it
        if (!in_order)
            for (const auto& line : last_lines(qemu_log(), 5))
                log("qemu", line);
        if (quitting_)
            over_ = true;
    };
    events.log = [this](const std::string& line) { log("qemu", line); };
    return events;
}

supervisor_loop_orders supervisor::orders() {
    supervisor_loop_orders orders;
    const auto order = [this](void (qemu_controller::*what)()) {
        return [this, what] { inbox_.put([this, what] { ((*pilot_).*what)(); }); };
    };
    orders.start_primary = order(&qemu_controller::start_primary);
    orders.start_standby = order(&qemu_controller::start_standby);
    orders.go_on_alone = order(&qemu_controller::go_on_alone);
    orders.report_gpu_failure = order(&qemu_controller::report_gpu_failure);
    orders.take_over = order(&qemu_controller::take_over);
    orders.replicate = [this](std::uint64_t replication, std::string replica, bool page_changes) {
        inbox_.put([this, replication, replica = std::move(replica), page_changes] {
            this->replicate(replication, replica, page_changes);
        });
    };
    orders.restart_standby = [this](std::string why, std::uint64_t qemu) {
        inbox_.put([this, why = std::move(why), qemu] {
            gpu_lost_.clear();
            pilot_->restart_standby(why, qemu);
        });
    };
    orders.use_files = [this](ha::description_parts parts) {
        inbox_.put([this, parts = std::move(parts)] { loop_->files_ready(use_files(parts)); });
    };
    orders.kill = [this](std::string why) {
        inbox_.put([this, why = std::move(why)] {
            drill_.killed(boot_ns());
            pilot_->kill(why);
        });
    };
    orders.mark = [this](const ha::disk_mark& m, bool flush) {
        inbox_.put([this, m, flush] {
            marks_.push_back({m, flush});
            if (marks_.size() == 1)
                begin_mark();
        });
    };
    orders.ended = [this](bool in_order, std::string why) {
        inbox_.put([this, in_order, why = std::move(why)] { finish(in_order, why); });
    };
    orders.event = [this](std::string name, std::string text) {
        inbox_.put([this, name = std::move(name), text = std::move(text), when = moment()] {
            log(name, text, when);
            state_changed(name);
        });
    };
    return orders;
}

// Before anybody else is asked: a VM must not go back to disks that are not the newest. Of one that had a
// standby, that standby knows more.
std::string supervisor::look_at_images() {
    for (const auto& disk : vm_.disks)
        if (disk.writable)
            images_.push_back(disk.path);
    std::string error;
    image_mark_ = read_marks(images_, error);
    if (options_.standby && error.empty() && image_mark_.state == ha::disk_state::unmarked) {
        image_mark_ = ha::waits(image_mark_); // from now on nobody starts the VM from it by mistake
        error = write_marks(images_, image_mark_);
    }
    const bool is_person_sure = options_.standby ? options_.overwrite : options_.anew;
    if (is_person_sure)
        return {};
    if (!error.empty() || options_.standby || images_.empty())
        return error;
    const bool may_ask = !options_.address.empty() || !vm_.protection.standby.empty();
    return may_ask && image_mark_.state == ha::disk_state::protected_
               ? std::string()
               : why_not_start(image_mark_, images_[0]);
}

// An image may only be called the newest when all that it has is on the disk. A QEMU that runs has a part of
// that in its memory (qcow2's tables), so it flushes.
void supervisor::begin_mark() {
    if (!marks_.front().flush)
        return finish_mark({});
    if (!pilot_->alive())
        return finish_mark(flush_images(images_));
    pilot_->flush_disks([this](const std::string& problem) { finish_mark(problem); });
}

void supervisor::finish_mark(std::string problem) {
    if (problem.empty())
        problem = write_marks(images_, marks_.front().mark);
    if (!problem.empty())
        log("disks", problem + ". Without its mark nobody knows which host has the newest disks");
    marks_.pop_front();
    loop_->marked(problem);
    if (!marks_.empty())
        begin_mark();
}

std::string supervisor::use_files(const ha::description_parts& parts) {
    if (auto problem = use_guest_files(*prepared_, vm_, places_, parts); !problem.empty())
        return problem;
    in_use_ = parts;
    pilot_->use(prepared_->command, prepared_->standby_command, confinement_text());
    return {};
}

void supervisor::state_changed(const std::string& state) {
    // The VM runs here, or is on its way: what it ran with before that is not needed any more.
    const bool is_settled = state == to_text(ha::primary_state::alone) ||
                            state == to_text(ha::standby_state::synced) ||
                            state == to_text(ha::standby_state::running);
    if (kept_ && is_settled)
        kept_.drop(ha::unwanted_files(kept_.own(), prepared_->fingerprint.parts, in_use_));
    if (state == to_text(ha::primary_state::alone) || state == to_text(ha::primary_state::reclaiming))
        switching_over_ = false;
    // The standby did not run it.
    if (state == to_text(ha::primary_state::reclaiming) && std::exchange(moving_out_, false))
        stop_instead();
}

void supervisor::hand_over_failed(const std::string& why) {
    log("switchover", "not possible: " + why);
    switching_over_ = false;
    if (std::exchange(moving_out_, false))
        stop_instead();
}

void supervisor::stop_instead() {
    log("stop", "the VM could not move to its standby, and this host wants it to end");
    loop_->stop();
}

} // namespace kagemusha::control
