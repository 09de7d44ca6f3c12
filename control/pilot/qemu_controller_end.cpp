// SPDX-License-Identifier: GPL-2.0-or-later
//
// qemu_controller: how a QEMU ends: in order, killed, or held by the kernel, and then perhaps another one.
#include "control/pilot/qemu_controller.hpp"

#include <fmt/format.h>

#include <utility>

namespace kagemusha::control {

namespace {

using namespace std::chrono_literals;

// A process that was killed has ended by then, or the kernel holds a thread of it.
constexpr auto kill_time = 2s;

} // namespace

void qemu_controller::ended() {
    const auto status = qemu_->wait_for(0ms);
    if (!status)
        return;
    const bool in_order = *status == 0 && (life_.shut_down || life_.quitting);
    auto how = life_.killed_why.empty() ? how_it_ended(*status)
                                        : fmt::format("killed, because {}", life_.killed_why);
    const auto restart_why = std::move(life_.restart_why);
    forget_process();
    keeper_.leave();
    if (restart_why.empty())
        return events_.died(how, in_order, number_);
    events_.log("QEMU is started anew: " + restart_why);
    start_standby();
}

// A process that waits in the kernel for storage or a GPU ends when that wait does. It never comes back to
// its own code, so nobody hears of it any more, and a standby may go on; but what it has open stays open.
void qemu_controller::look_at_kill() {
    if (clock::now() < *life_.killed_at + kill_time)
        return;
    const bool held = only_held_threads(qemu_->pid());
    if (!std::exchange(life_.held, true))
        warn(concern::kill,
             fmt::format("QEMU (process {}) was killed and has not ended{}", qemu_->pid(),
                         held ? ": the kernel holds it in a wait for a device, as storage that hangs" : ""));
    if (!held || !life_.restart_why.empty())
        return; // another standby's QEMU would find its images and addresses in use
    auto how = fmt::format("killed, because {}; the kernel still holds a thread of it", life_.killed_why);
    qemu_->abandon();
    keeper_.spoil(); // that thread may be in a write
    forget_process();
    events_.died(how, false, number_);
}

void qemu_controller::forget_process() {
    qemu_.reset();
    qmp_.reset();
    life_ = {};
    enter(watched_phase::none);
    go_on_at_.reset();
    warn(concern::error, {});
    warn(concern::kill, {});
    flushed("QEMU ended before its disks were flushed");
}

void qemu_controller::kill(const std::string& why) {
    if (!qemu_)
        return;
    if (life_.killed_why.empty())
        life_.killed_why = why;
    if (!life_.killed_at) {
        life_.killed_at = clock::now();
        tick_at_ = *life_.killed_at + kill_time;
    }
    qemu_->kill();
}

void qemu_controller::quit() {
    if (!qemu_)
        return;
    life_.quitting = true;
    life_.quit_by = clock::now() + quit_time;
    if (life_.phase == phase::none && life_.negotiated)
        return ask("quit", {}, {});
    // In the middle of checkpoints its main loop may wait for a peer that is gone; at its start it takes no
    // command.
    kill("the VM is stopped");
}

void qemu_controller::restart_standby(const std::string& why, std::uint64_t qemu) {
    next_number_ = qemu;
    if (qemu_) {
        life_.restart_why = why;
        return kill(why); // ended() goes on
    }
    events_.log("QEMU is started anew: " + why);
    start_standby();
}

} // namespace kagemusha::control
