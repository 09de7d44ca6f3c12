// SPDX-License-Identifier: GPL-2.0-or-later
//
// What people ask of a supervisor: commands at its socket, its status, signals; and the warning about keys that
// expire.
#include "control/base/json_text.hpp"
#include "control/keys/key_dates.hpp"
#include "control/supervise/supervisor_impl.hpp"

#include <fmt/format.h>

#include <csignal>
#include <unistd.h>

namespace kagemusha::control {

// Of a standby, or where we listen as one: what belongs to it is beside it.
bool supervisor::use_address(const std::string& address, std::string& error) {
    const auto state = state_address_beside(address), gpu = gpu_address_beside(address);
    if (state.empty() || gpu.empty())
        error = fmt::format("'{}' is no address: HOST:PORT or unix:PATH", address);
    else if (needs_tls(address) && vm_.protection.tls.empty())
        error =
            fmt::format("{} is no Unix socket, so the VM's description needs 'tls' in [protection], on this "
                        "machine, too, where any user may connect: make keys with `kage keys`",
                        address);
    else
        error = why_not_a_standby(vm_, address);
    if (!error.empty())
        return false;
    state_address_ = state;
    gpu_address_ = gpu;
    return true;
}

json supervisor::certificates() const {
    json out = json::array();
    if (vm_.protection.tls.empty())
        return out;
    const auto now_s = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    for (const auto& date : key_dates(vm_.protection.tls, vm_.name))
        out.push_back(
            {{"name", date.name}, {"expires_at_s", date.expires_at_s}, {"days_left", date.days_left(now_s)}});
    return out;
}

// At the start, and twice a day.
void supervisor::watch_keys() {
    const auto now = std::chrono::steady_clock::now();
    if (vm_.protection.tls.empty() ||
        (keys_watched_at_.time_since_epoch().count() != 0 && now < keys_watched_at_ + std::chrono::hours(12)))
        return;
    keys_watched_at_ = now;
    const auto now_s = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    if (const auto warning = key_warning(key_dates(vm_.protection.tls, vm_.name), now_s); !warning.empty())
        log("keys", warning);
}

json supervisor::status() {
    const auto s = loop_->status();
    return {{"name", registration_ ? registration_->control_socket() : ""},
            {"vm", vm_.name},
            {"role", s.role},
            {"state", s.state},
            {"protected", s.role == "primary" && s.state == "protecting"},
            {"degraded", s.degraded},
            {"waiting_for", s.waiting_for.empty() ? pilot_->copy_waits_for() : s.waiting_for},
            {"standby_problem", s.standby_problem},
            {"warning", warning_},
            {"gpu_lost", gpu_lost_},
            {"peer", s.peer},
            {"peer_differences", s.peer_differences},
            {"guest_files", in_use_ == prepared_->fingerprint.parts ? "release" : "kept"},
            {"protocol_version", s.protocol_version},
            {"term", s.term},
            {"takeovers", s.takeovers},
            {"last_takeover", s.last_takeover},
            {"last_takeover_ns",
             {{"committed", committed_ns_},
              {"decided", s.decided_ns},
              {"running", running_ns_},
              {"output", s.gate_opened_ns},
              {"first_command", completed_ns_}}},
            {"gate_open_ms", s.gate_open_ms},
            {"unprotected_ms", s.unprotected_ms},
            {"checkpoint_age_ms", pilot_->checkpoint_age_ms()},
            {"gpu_behind_ms", pilot_->gpu_behind_ms()},
            {"certificates", certificates()},
            {"checkpoints", pilot_->last().checkpoints},
            {"early_checkpoints", pilot_->last().early},
            {"pause_us", pilot_->last().pause_us},
            {"total_pause_us", pilot_->last().total_pause_us},
            {"epoch_us", pilot_->last().epoch_us},
            {"disk_missing_bytes", pilot_->disk_missing_bytes()},
            {"disk_copied_bytes", pilot_->disk_copied_bytes()},
            {"paused_percent", pilot_->paused_percent()},
            {"qemu", pilot_->alive()},
            {"qemu_pid", pilot_->pid()},
            {"confinement", prepared_->confinement.says},
            {"console_log", prepared_->config.console->log},
            {"pid", ::getpid()}};
}

json supervisor::answer(const json& request) {
    const auto text = [&](const char* key) { return text_in(request, key); };
    const auto command = text("command");
    if (command == "status")
        return status();
    if (command == "stop") {
        log("stop", "asked to");
        loop_->stop();
        return {{"done", true}};
    }
    if (command == "switchover") {
        const auto now = loop_->status();
        if (now.role != "primary" || now.state != "protecting")
            return {{"error", fmt::format("there is no standby to switch over to{}{}",
                                          now.degraded.empty() ? "" : ": ", now.degraded)}};
        log("switchover", "asked to");
        switching_over_ = true;
        pilot_->hand_over();
        return {{"done", true}};
    }
    if (command == "cancel-switchover") {
        if (!switching_over_)
            return {{"error", "no switchover is under way"}};
        pilot_->cancel_hand_over("it was cancelled"); // the VM has not been handed over yet,
        loop_->cancel_switchover();                   // or it has
        return {{"done", true}};
    }
    if (command == "drill")
        return begin_drill();
    if (command == "protect") {
        const auto now = loop_->status();
        if (now.role != "primary")
            return {{"error", "this is a standby: ask the VM that runs"}};
        if (vm_.arbiter.what == described_arbiter::kind::none)
            return {{"error", "the VM's description has no [arbiter]: it can't be protected"}};
        if (const auto address = text("standby"); !address.empty()) {
            std::string error;
            if (!use_address(address, error))
                return {{"error", error}};
            loop_->protect(address);
        } else if (vm_.protection.standby.empty() || options_.standby) {
            return {{"error", "name the new standby's address: kage protect VM ADDRESS"}};
        } else {
            loop_->protect({});
        }
        return {{"done", true}};
    }
    return {{"error", fmt::format("'{}' is no command of a supervisor", command)}};
}

// Whoever asked gets the answer when the VM runs on the standby.
json supervisor::begin_drill() {
    const auto now = loop_->status();
    if (now.role != "primary" || now.state != to_text(ha::primary_state::protecting) || switching_over_)
        return {{"error", fmt::format("no drill: the VM is not protected, so it would be lost{}{}",
                                      now.degraded.empty() ? "" : ": ", now.degraded)}};
    if (!now.standby_problem.empty())
        return {{"error", "no drill: a takeover would have to wait: " + now.standby_problem}};
    if (drill_.under_way())
        return {{"error", "a drill is under way"}};
    log("drill", "asked to: QEMU is killed, and the standby goes on");
    drill_.begin(pilot_->checkpoint_age_ms(), boot_ns());
    loop_->drill();
    return nullptr;
}

// The host shuts down, or somebody stops the service: who has a standby moves there. A person at the terminal
// (Ctrl-C) means the VM.
void supervisor::asked_by_signal(int number) {
    const auto now = loop_->status();
    const bool handing_over = now.state == to_text(ha::primary_state::handing_over);
    if (number == SIGTERM && now.role == "primary" &&
        (handing_over || now.state == to_text(ha::primary_state::protecting))) {
        moving_out_ = switching_over_ = true;
        log("switchover", fmt::format("signal {}: the VM moves to its standby", number));
        if (!handing_over)
            pilot_->hand_over();
        return;
    }
    log("stop", fmt::format("signal {}", number));
    loop_->stop();
}

} // namespace kagemusha::control
