// SPDX-License-Identifier: GPL-2.0-or-later
//
// What the state machines decided is carried out: on the network, QEMU, the arbiter and the images' marks.
#include "world/supervisor.hpp"

#include "world/world.hpp"

namespace kagemusha::world {

using namespace ha;

namespace {

// A standby's address is its host's number.
std::uint8_t host_at(const std::string& address) {
    return static_cast<std::uint8_t>(std::stoi(address));
}

} // namespace

// ---- what a primary decided

void supervisor::carry_out(act_state& a) {
    w_.say(host_.index, "primary {}{}{}", to_text(a.state), a.why.empty() ? "" : ": ", a.why);
    if (a.state == primary_state::protecting)
        w_.liveness.now_protected();
}
void supervisor::carry_out(act_ask& a) {
    w_.arbiter->ask(host_.index, a.request);
}
void supervisor::carry_out(act_gate& a) {
    gate_until_ms_ = a.until_ms;
}
void supervisor::carry_out(act_connect& a) {
    if (w_.broken(mutation::never_reconnects) && connected_before_)
        return;
    connected_before_ = true;
    w_.net.connect(host_.index, generation_, host_at(a.address), ++attempt_);
}
void supervisor::carry_out(act_close_link&) {
    close_link();
}
void supervisor::carry_out(act_send& a) {
    send(a.what);
}
void supervisor::carry_out(act_start_qemu&) {
    had_vm_ = true;
    order(0, [this] {
        w_.disks.boots(host_.index, anew_);
        host_.vm.start_primary();
    });
}
void supervisor::carry_out(act_replicate& a) {
    order(0, [this, replication = a.replication] {
        replication_ = replication;
        reported_protecting_ = reported_lost_ = false;
        host_.vm.replicate(static_cast<std::uint8_t>(peer_));
    });
}
void supervisor::carry_out(act_go_on_alone&) {
    order(0, [this] { host_.vm.go_on_alone(); });
}
void supervisor::carry_out(act_report_gpu_failure&) {
    order(0, [this] { host_.vm.report_gpu_failure(); });
}
void supervisor::carry_out(act_kill_qemu& a) {
    if (w_.broken(mutation::survives_refusal) && primary_->state() != primary_state::leaving)
        return;
    order(0, [this, why = a.why] {
        if (killed_why_.empty())
            killed_why_ = why;
        host_.vm.kill(why);
    });
}
void supervisor::carry_out(act_ended& a) {
    w_.ends.ends(host_.index, had_vm_, false);
    order(0, [this, in_order = a.in_order, why = a.why] { finish(in_order, why); });
}
void supervisor::carry_out(act_mark& a) {
    order_mark(a.mark, a.flush);
}

// ---- what a standby decided

void supervisor::carry_out(act_standby_state& a) {
    w_.say(host_.index, "standby {}{}{}", to_text(a.state), a.why.empty() ? "" : ": ", a.why);
}
void supervisor::carry_out(act_standby_ask& a) {
    w_.arbiter->ask(host_.index, a.request);
}
void supervisor::carry_out(act_standby_send& a) {
    send(a.what);
}
void supervisor::carry_out(act_standby_close_link&) {
    close_link();
}
void supervisor::carry_out(act_take_over& a) {
    w_.say(host_.index, "takes over: {}", a.why);
    order(0, [this] { host_.vm.take_over(); });
}
void supervisor::carry_out(act_restart_qemu& a) {
    w_.say(host_.index, "starts its QEMU anew: {}", a.why);
    w_.ends.starts_qemu_anew(host_.index);
    order(0, [this, qemu = a.qemu] {
        qemu_ = qemu;
        reported_copy_lost_ = false;
        expects_death_ = true;
        host_.vm.kill("another one is started");
        expects_death_ = false;
        host_.vm.start_standby();
    });
}
void supervisor::carry_out(act_standby_mark& a) {
    order_mark(a.mark, a.flush);
}
void supervisor::carry_out(act_standby_use_files&) {
    standby_->on_files_ready({});
}
void supervisor::carry_out(act_running& a) {
    peer_ = -1;
    had_vm_ = true;
    w_.disks.taken_over();
    auto config = config_of_primary();
    config.has_standby = false;
    config.standby_address.clear();
    config.mark = a.mark;
    successor_.emplace(config);
    successor_->start_after_takeover(a.term, a.lease_until, host_.clock_ms(), a.gpu_failed);
}
void supervisor::carry_out(act_standby_ended& a) {
    w_.ends.ends(host_.index, had_vm_, true);
    order(0, [this, in_order = a.in_order, why = a.why] { finish(in_order, why); });
}

} // namespace kagemusha::world
